"""A world on the oldest and on the newest PostgreSQL, emptied before each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg
import psycopg
import pytest

from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.optimistic.tools import World

TABLES = "outbox, outbox_delayed, outbox_lane, outbox_relay, outbox_claim, outbox_archive, dead_letter"


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        with psycopg.connect(fresh.dsn, autocommit=True) as connection:
            # The test servers are quick and forgetful; a sender wants to know that a commit is on disk.
            name = psycopg.sql.Identifier(connection.info.dbname)
            connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET synchronous_commit = on").format(name))
            connection.execute("CREATE TABLE thing (key text PRIMARY KEY, n int NOT NULL DEFAULT 0)")
            connection.execute("CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        yield fresh


@pytest.fixture
def plain(shared: Database) -> Database:
    """Empty."""
    names = ", ".join(f"oncommit.{name}" for name in TABLES.split(", "))
    with psycopg.connect(shared.dsn, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {names}, thing, strict RESTART IDENTITY")
    return shared


@pytest.fixture
async def world(plain: Database) -> AsyncIterator[World]:
    pool = await asyncpg.create_pool(plain.dsn, min_size=1, max_size=6)
    made = World(plain.dsn, pool)
    yield made
    for outbox in made.outboxes:
        await outbox.close()
    await pool.close()
