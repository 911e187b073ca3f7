"""Migrating on a live system: racing, killed, blocked, without rights, on the wrong database."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from oncommit.db import migrate as module
from oncommit.db.migrate import Migration, check, latest_version, migrate, migrations, statements, status
from oncommit.errors import (
    ConfigError,
    DatabaseUnreachable,
    MigrationConflict,
    SchemaError,
    SchemaMissing,
    SchemaOutdated,
)
from oncommit.testing.servers import Database
from tests.migrations.catalog import is_whole

Connect = Callable[..., Awaitable[asyncpg.Connection]]

WAITERS = """
    SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE NOT l.granted AND a.datname = current_database() AND a.application_name LIKE 'oncommit%'
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('oncommit:migrate', 0))"
# The kind that hurts on a live system: it needs the table for itself.
ALTERING = Migration(latest_version() + 1, "probe", "ALTER TABLE oncommit.outbox ADD COLUMN probe integer;", "0" * 64)


async def until_somebody_waits(connection: asyncpg.Connection) -> int:
    async with asyncio.timeout(20):
        while (pid := await connection.fetchval(WAITERS)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # PostgreSQL gives no signal when somebody begins to wait
    return int(pid)


async def test_twice_is_nothing(bare: Database) -> None:
    assert await migrate(bare.dsn) == migrations()
    before = await status(bare.dsn)
    assert await migrate(bare.dsn) == ()
    assert await status(bare.dsn) == before
    assert before.current == before.latest == latest_version()


async def test_racing_migrators_apply_each_migration_once(bare: Database) -> None:
    done = await asyncio.gather(*(migrate(bare.dsn) for _ in range(5)))
    assert sorted(step.version for steps in done for step in steps) == [step.version for step in migrations()]
    assert await is_whole(bare.dsn)


async def test_racing_with_the_printed_statements(bare: Database, connect: Connect) -> None:
    async def by_hand() -> None:
        connection = await connect(bare.dsn)
        for statement in statements():
            await connection.execute(statement)

    await asyncio.gather(by_hand(), by_hand(), migrate(bare.dsn))
    assert await is_whole(bare.dsn)


async def test_over_a_connection_of_the_caller(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn)
    await migrate(connection)
    assert (await check(connection)).pending == ()
    async with connection.transaction():
        await migrate(connection, "order")
        await check(connection, "order")
        assert connection.is_in_transaction()
    assert (await status(bare.dsn, "order")).pending == ()


async def test_rolled_back_with_the_transaction_of_the_caller(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await migrate(connection)
    await transaction.rollback()
    assert (await status(bare.dsn)).applied == ()


@pytest.mark.parametrize("broken", [step.version for step in migrations()])
async def test_a_crash_in_any_migration_leaves_nothing_of_it(bare: Database, connect: Connect, broken: int) -> None:
    crashing, watching = await connect(bare.dsn), await connect(bare.dsn)
    await migrate(bare.dsn, to=broken - 1)
    await crashing.execute("BEGIN")
    await crashing.execute(migrations()[broken - 1].statement())
    await watching.execute("SELECT pg_terminate_backend($1, 5000)", crashing.get_server_pid())
    assert (await status(bare.dsn)).current == broken - 1
    assert [step.version for step in await migrate(bare.dsn)] == list(range(broken, latest_version() + 1))
    assert await is_whole(bare.dsn)


async def test_a_migrator_killed_at_work_is_no_obstacle(bare: Database, connect: Connect) -> None:
    holding = await connect(bare.dsn)
    await migrate(bare.dsn, to=2)
    await holding.execute("BEGIN")
    await holding.execute(LOCK)
    program = await asyncio.create_subprocess_exec(sys.executable, "-m", "oncommit", "migrate", "--database", bare.dsn)
    await until_somebody_waits(holding)
    program.kill()
    await program.wait()
    await holding.execute("ROLLBACK")
    assert (await status(bare.dsn)).current == 2
    await migrate(bare.dsn)
    assert await is_whole(bare.dsn)


async def test_a_lost_connection_is_told_and_resumed(bare: Database, connect: Connect) -> None:
    holding = await connect(bare.dsn)
    await holding.execute("BEGIN")
    await holding.execute(LOCK)
    migrating = asyncio.create_task(migrate(bare.dsn))
    await holding.execute("SELECT pg_terminate_backend($1, 5000)", await until_somebody_waits(holding))
    with pytest.raises(DatabaseUnreachable, match="cannot be reached"):
        await migrating
    await holding.execute("ROLLBACK")
    await migrate(bare.dsn)
    assert await is_whole(bare.dsn)


async def test_a_long_transaction_is_waited_for_without_blocking_writers(bare: Database, connect: Connect) -> None:
    await migrate(bare.dsn)
    reading, writing, migrating = [await connect(bare.dsn, server_settings={"application_name": "oncommit-test"})
                                   for _ in range(3)]  # fmt: skip
    await reading.execute("BEGIN")
    await reading.execute("SELECT * FROM oncommit.outbox")
    work = asyncio.create_task(module._patiently(migrating, "oncommit", ALTERING, lock_timeout=0.2, patience=60))
    slowest = 0.0
    for _ in range(3):
        await until_somebody_waits(writing)
        begun = time.monotonic()
        await writing.execute("INSERT INTO oncommit.outbox (event_type) VALUES ('a')")
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 5  # behind the migrator, not behind the reader, who never leaves
    assert not work.done()
    await reading.execute("COMMIT")
    assert await work
    assert await writing.fetchval("SELECT count(probe) FROM oncommit.outbox") == 0


async def test_patience_ends_with_the_name_of_the_holder(bare: Database, connect: Connect) -> None:
    await migrate(bare.dsn)
    reading = await connect(bare.dsn, server_settings={"application_name": "nightly report"})
    await reading.execute("BEGIN")
    await reading.execute("SELECT * FROM oncommit.outbox")
    migrating = await connect(bare.dsn)
    with pytest.raises(SchemaError, match=rf"process {reading.get_server_pid()} \(nightly report, idle in transaction"):
        await module._patiently(migrating, "oncommit", ALTERING, lock_timeout=0.05, patience=0.2)
    assert (await status(bare.dsn)).current == latest_version()
    assert not migrating.is_in_transaction()


async def test_another_migrator_that_hangs_is_given_up_too(bare: Database, connect: Connect) -> None:
    holding = await connect(bare.dsn)
    await holding.execute("BEGIN")
    await holding.execute(LOCK)
    with pytest.raises(SchemaError, match=r"migration 1 \(ground\) got no lock within 0.1 s"):
        await migrate(bare.dsn, lock_timeout=0.05, patience=0.1)


async def test_a_statement_timeout_of_the_role_does_not_count(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn, server_settings={"statement_timeout": "1ms"})
    step = Migration(latest_version() + 1, "slow", "SELECT pg_sleep(0.05);", "0" * 64)
    await migrate(bare.dsn)
    assert await module._patiently(connection, "oncommit", step, lock_timeout=1, patience=1)
    assert await connection.fetchval("SHOW statement_timeout") == "1ms"
    assert await connection.fetchval("SHOW lock_timeout") == "0"


# ── What does not fit ─────────────────────────────────────────────────────────────────────────────


async def test_never_migrated(bare: Database) -> None:
    assert (await status(bare.dsn)).current == 0
    with pytest.raises(SchemaMissing, match="oncommit migrate"):
        await check(bare.dsn)
    with pytest.raises(SchemaMissing, match="oncommit migrate --schema order"):
        await check(bare.dsn, "order")


async def test_older_than_the_code(bare: Database) -> None:
    await migrate(bare.dsn, to=latest_version() - 1)
    with pytest.raises(SchemaOutdated, match=f"at version {latest_version() - 1}, this code needs {latest_version()}"):
        await check(bare.dsn)


async def test_newer_than_the_code_is_fine(bare: Database, connect: Connect) -> None:
    await migrate(bare.dsn)
    await (await connect(bare.dsn)).execute("INSERT INTO oncommit.migration VALUES (99, 'future', 'x')")
    found = await check(bare.dsn)
    assert [entry.version for entry in found.newer] == [99]
    assert await migrate(bare.dsn) == ()


async def test_a_changed_migration_is_noticed_everywhere(bare: Database, connect: Connect) -> None:
    await migrate(bare.dsn, to=3)
    connection = await connect(bare.dsn)
    await connection.execute("UPDATE oncommit.migration SET checksum = 'other' WHERE version = 2")
    for act in (migrate, check):
        with pytest.raises(MigrationConflict, match=r"2 \(outbox\)"):
            await act(bare.dsn)
    with pytest.raises(asyncpg.RaiseError, match="migration 2 was applied here with another text"):
        await connection.execute(statements()[1])
    assert (await status(bare.dsn)).current == 3


@pytest.mark.parametrize("to", [-1, 1000])
async def test_a_version_that_is_none(bare: Database, to: int) -> None:
    with pytest.raises(ConfigError, match=f"there is no migration {to}"):
        await migrate(bare.dsn, to=to)


HOSTILE = ['x"; drop', "x'; drop table a; --", "", " ", "Oncommit", "a.b", "pg_temp", "ü", "a" * 64, "a\0b", "1a", None]


@pytest.mark.parametrize("schema", HOSTILE)
async def test_hostile_schema_names_reach_no_database(schema: str) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    for act in (migrate, status, check):
        with pytest.raises(ConfigError, match="schema name"):
            await act(nowhere, schema)
    with pytest.raises(ConfigError, match="schema name"):
        statements(schema)


async def test_without_rights_it_says_what_to_grant(bare: Database, connect: Connect) -> None:
    admin = await connect(bare.dsn)
    role = f"r_{bare.name}"
    await admin.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        connection = await connect(bare.dsn.replace("postgres@", f"{role}@"))
        with pytest.raises(SchemaError, match=r"permission denied .* CREATE SCHEMA oncommit AUTHORIZATION"):
            await migrate(connection)
        await migrate(bare.dsn, "order")
        with pytest.raises(SchemaError, match="USAGE on schema"):
            await status(connection, "order")
        # What the message says helps.
        await admin.execute(f'CREATE SCHEMA oncommit AUTHORIZATION "{role}"')
        assert await migrate(connection) == migrations()
    finally:
        await admin.execute(f'DROP OWNED BY "{role}"')
        await admin.execute(f'DROP ROLE "{role}"')


@pytest.mark.parametrize(
    "foreign", ["CREATE TABLE oncommit.outbox (id int)", "CREATE TABLE oncommit.migration (id int)"]
)
async def test_a_schema_of_somebody_else(bare: Database, connect: Connect, foreign: str) -> None:
    connection = await connect(bare.dsn)
    await connection.execute(f"CREATE SCHEMA oncommit; {foreign}")
    with pytest.raises(SchemaError, match="choose another schema name"):
        await migrate(bare.dsn)


async def test_a_standby_takes_no_migration(bare: Database, connect: Connect) -> None:
    connection = await connect(bare.dsn, server_settings={"default_transaction_read_only": "on"})
    with pytest.raises(SchemaError, match="connect to the primary"):
        await migrate(connection)


async def test_repeatable_read_as_the_default_of_the_role(bare: Database, connect: Connect) -> None:
    connections = [
        await connect(bare.dsn, server_settings={"default_transaction_isolation": "repeatable read"}) for _ in range(3)
    ]
    done = await asyncio.gather(*(migrate(connection) for connection in connections))
    assert sum(len(steps) for steps in done) == latest_version()
