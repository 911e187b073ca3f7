"""A database of one's own: fresh, from the template, gone afterwards."""

from __future__ import annotations

import asyncpg
import pytest

from oncommit.testing.servers import AnyServer, Database, Databases, ServerError
from oncommit.testing.servers.sql import execute, fetch_value


def exists(server: AnyServer, name: str) -> bool:
    return bool(fetch_value(server.dsn, "select count(*) from pg_database where datname = $1", name))


async def test_the_database_answers_on_every_supported_postgres(any_database: Database) -> None:
    connection = await asyncpg.connect(any_database.dsn)
    try:
        assert await connection.fetchval("select current_database()") == any_database.name
        assert await connection.fetchval("show timezone") == "UTC"
    finally:
        await connection.close()


def test_each_test_has_the_template_and_nothing_of_the_others(postgres: AnyServer) -> None:
    made: list[str] = []

    def make_template(dsn: str) -> None:
        made.append(dsn)
        execute(dsn, "create table seed (n int)")

    databases = Databases(postgres, make_template)
    with databases.fresh() as one, databases.fresh() as other:
        execute(one.dsn, "insert into seed values (1)")
        assert fetch_value(other.dsn, "select count(*) from seed") == 0
    assert len(made) == 1


async def test_it_is_dropped_while_somebody_is_still_connected(postgres: AnyServer) -> None:
    with Databases(postgres, lambda _dsn: None).fresh() as database:
        connection = await asyncpg.connect(database.dsn)
    assert not exists(postgres, database.name)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("select 1")


def test_a_template_that_fails_is_dropped_and_tried_again(postgres: AnyServer) -> None:
    seen: list[str] = []

    def make_template(dsn: str) -> None:
        seen.append(dsn.rpartition("/")[2])
        if len(seen) == 1:
            raise ServerError("no luck")

    databases = Databases(postgres, make_template)
    with pytest.raises(ServerError, match="no luck"):
        databases.create()
    assert not exists(postgres, seen[0])
    with databases.fresh() as database:
        assert exists(postgres, database.name)


def test_urls_for_sqlalchemy_name_the_driver(database: Database) -> None:
    assert database.url("psycopg") == database.dsn.replace("postgresql:", "postgresql+psycopg:")
    assert database.dsn.startswith("postgresql://postgres@127.0.0.1:")
