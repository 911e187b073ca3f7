"""The schema is the sum of its migrations, on every way to it, on both ends of the PostgreSQL range."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from oncommit.db.migrate import latest_version, migrate, migrations, sql, statements, status
from oncommit.testing.servers import Database
from tests.migrations.catalog import describe, is_whole

Connect = Callable[..., Awaitable[asyncpg.Connection]]

# A row in every table that is there, so that later migrations meet data.
FILL = {
    "outbox": "INSERT INTO oncommit.outbox (event_type, payload) VALUES ('order.placed', '{}')",
    "outbox_delayed": "INSERT INTO oncommit.outbox_delayed (event_type, not_before) VALUES ('a', now() + '1 day')",
    "outbox_relay": "INSERT INTO oncommit.outbox_relay (relay_id, name, sinks, version) "
    "VALUES (gen_random_uuid(), 'a', '{main}', '1')",
    "outbox_lane": "INSERT INTO oncommit.outbox_lane (sink, lane) SELECT 'main', max(lane) + 1 "
    "FROM (SELECT lane FROM oncommit.outbox_lane UNION ALL SELECT -1) AS l",
    "outbox_archive": "INSERT INTO oncommit.outbox_archive (id, created_at, sent_at, event_id, attempts, crashes, "
    "schema_version, priority, lane, sink, event_type, content_type, headers) "
    "VALUES (1, now(), now(), gen_random_uuid(), 1, 0, 1, 5, 0, 'main', 'a', 'application/json', '{}')",
    "dead_letter": "INSERT INTO oncommit.dead_letter (source, origin, message_id, reason, expires_at) "
    "VALUES ('outbox', 'main', gen_random_uuid(), 'exhausted', now())",
    "setting": "INSERT INTO oncommit.setting (name, value) VALUES (gen_random_uuid(), '1')",
}


def psql(dsn: str, text: str, *options: str) -> None:
    command = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", *options, dsn]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=60)


def printed_sql() -> str:
    command = [sys.executable, "-m", "oncommit", "migrate", "--sql"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


async def test_migrate_makes_what_the_snapshot_shows(bare: Database) -> None:
    await migrate(bare.dsn)
    assert await is_whole(bare.dsn)


@pytest.mark.parametrize("options", [(), ("--single-transaction",)], ids=["autocommit", "one-transaction"])
async def test_the_printed_sql_makes_the_same(bare: Database, options: tuple[str, ...]) -> None:
    printed = printed_sql()
    psql(bare.dsn, printed, *options)
    assert await is_whole(bare.dsn)
    assert (await status(bare.dsn)).pending == ()
    psql(bare.dsn, printed, *options)  # again: no error, nothing new
    assert await migrate(bare.dsn) == ()


async def test_step_by_step_with_data_makes_the_same(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn)
    filled = set()
    for version in range(1, latest_version() + 1):
        assert [step.version for step in await migrate(bare.dsn, to=version)] == [version]
        for table, insert in FILL.items():
            if await connection.fetchval("SELECT to_regclass($1)", f"oncommit.{table}"):
                await connection.execute(insert)
                filled.add(table)
    assert filled == set(FILL)
    assert await is_whole(bare.dsn)


async def test_statements_one_by_one_make_the_same(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn)
    for statement in statements():
        await (await connection.prepare(statement)).fetch()  # a prepared statement holds exactly one
    assert await is_whole(bare.dsn)


@pytest.mark.parametrize("schema", ["order", "user", "select", "shop_events", "oncommit2"])
async def test_in_a_schema_of_another_name(bare: Database, connect: Connect, schema: str) -> None:
    await migrate(bare.dsn, schema)
    assert await is_whole(bare.dsn, schema)
    connection = await connect(bare.dsn)
    assert await connection.fetchval("SELECT to_regnamespace('oncommit')") is None
    source = await connection.fetch("SELECT prosrc FROM pg_proc WHERE pronamespace = to_regnamespace($1)", schema)
    bodies = "\n".join(row["prosrc"] for row in source)
    assert not re.search(r"\boncommit\b", bodies)
    await connection.execute(f"INSERT INTO \"{schema}\".outbox (event_type) VALUES ('a')")
    assert await connection.fetchval(f'SELECT state FROM "{schema}".events') == "pending"


async def test_two_schemas_live_side_by_side(bare: Database) -> None:
    await migrate(bare.dsn, "order")
    assert (await status(bare.dsn)).applied == ()
    await migrate(bare.dsn)
    assert await is_whole(bare.dsn)
    assert await describe(bare.dsn) == await describe(bare.dsn, "order")


async def test_partitions_are_like_their_parent(bare: Database, connect: Connect) -> None:
    await migrate(bare.dsn)
    connection = await connect(bare.dsn)
    partitions = await connection.fetch(
        "SELECT inhrelid AS oid, (SELECT count(*) FROM pg_index WHERE indrelid = inhrelid) AS indexes "
        "FROM pg_inherits WHERE inhparent = 'oncommit.outbox_archive'::regclass"
    )
    assert len(partitions) == 8  # today and a week
    assert {row["indexes"] for row in partitions} == {4}
    left = "SELECT count(*) FROM pg_constraint WHERE conrelid = ANY ($1::oid[]) AND contype = 'c'"
    assert await connection.fetchval(left, [row["oid"] for row in partitions]) == 0
    make = "SELECT oncommit.make_archive_partition((oncommit.now() AT TIME ZONE 'UTC')::date + $1::int)"
    assert [await connection.fetchval(make, ahead) for ahead in (7, 8, 8)] == [False, True, False]


def test_files_are_numbered_without_gaps() -> None:
    assert [step.version for step in migrations()] == list(range(1, latest_version() + 1))


def test_the_text_is_the_statements_and_nothing_else() -> None:
    for since in range(latest_version() + 1):
        text = sql("order", since=since)
        assert all(f"\n{statement};\n" in text for statement in statements("order", since=since))
        assert text.count("DO $migration$") == len(statements("order", since=since)) == latest_version() - since


def test_no_word_of_ours_looks_like_a_bind_parameter() -> None:
    """SQLAlchemy's text(), which Alembic's op.execute() uses, would take `:word` for one."""
    for statement in statements():
        assert not re.search(r"(?<![:\w\\]):(\w+)(?!:)", statement)


def test_no_migration_ends_the_dollar_quotes_it_stands_in() -> None:
    for step in migrations():
        assert "$text$" not in step.text
        assert "$migration$" not in step.text
