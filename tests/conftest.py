"""Fixtures of our own tests: short names for those of the plugin, and both ends of the PostgreSQL range."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from oncommit.testing.servers import AnyServer, Database, Databases

OLDEST, NEWEST = 15, 18
# One job of the published matrix is one version: ONCOMMIT_TEST_POSTGRES=15 runs everything on that one alone.
ONLY = os.environ.get("ONCOMMIT_TEST_POSTGRES")
VERSIONS = [int(ONLY)] if ONLY else [OLDEST, NEWEST]


@pytest.fixture(scope="session")
def postgres(oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """The newest PostgreSQL we support, or the one that was asked for."""
    return oncommit_servers(f"postgres{VERSIONS[-1]}")


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: f"pg{version}")
def any_postgres(request: pytest.FixtureRequest, oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """The oldest and the newest PostgreSQL we support, one after the other."""
    return oncommit_servers(f"postgres{request.param}")


@pytest.fixture
def database(postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    """A fresh migrated database on the newest PostgreSQL."""
    with oncommit_databases(postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
def any_database(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    """A fresh migrated database on the oldest and on the newest."""
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def empty_databases(postgres: AnyServer) -> Iterator[Databases]:
    """Makes databases on the newest PostgreSQL in which nothing of ours was made."""
    databases = Databases(postgres, _leave_empty)
    yield databases
    databases.close()


@pytest.fixture
def empty_database(empty_databases: Databases) -> Iterator[Database]:
    """A database on the newest PostgreSQL in which nothing of ours was made."""
    with empty_databases.fresh() as fresh:
        yield fresh


def _leave_empty(_dsn: str) -> None:
    """No migration."""
