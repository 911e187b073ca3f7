"""Databases in which nothing was migrated yet, on both ends of the PostgreSQL range."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg
import pytest

from oncommit.testing.servers import AnyServer, Database, Databases


@pytest.fixture(scope="session")
def bare_databases() -> Iterator[Callable[[AnyServer], Databases]]:
    made: dict[str, Databases] = {}

    def on(server: AnyServer) -> Databases:
        return made.setdefault(server.name, Databases(server, lambda _dsn: None))

    yield on
    for databases in made.values():
        databases.close()


@pytest.fixture
def bare(any_postgres: AnyServer, bare_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    """An empty database, on the oldest and on the newest."""
    with bare_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], object]]:
    """A function that connects; everything it opened is closed at the end."""
    opened: list[asyncpg.Connection] = []

    async def open_one(dsn: str, **options: object) -> asyncpg.Connection:
        opened.append(await asyncpg.connect(dsn, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.terminate()
