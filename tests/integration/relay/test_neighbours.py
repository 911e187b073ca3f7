"""A relay beside what it did not expect: one of its name, a newer schema, a wrong clock of the host, a full server."""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import pytest

from oncommit.relay.relay import Relay
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.relay.tools import QUICK, add, drained, until

HOUR = 3600.0


async def test_two_relays_of_one_name_share_the_work(any_database: Database) -> None:
    """A name is for people: the rights hang on ids."""
    connection = await asyncpg.connect(any_database.dsn)
    brokers = RecordingBroker(), RecordingBroker()
    relays = [Relay(any_database.dsn, {"main": broker}, settings=QUICK, name="same") for broker in brokers]
    async with relays[0], relays[1]:
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE name = 'same'", 2)
        await until(connection, "SELECT count(DISTINCT owner) FROM oncommit.outbox_lane", 2)
        written = {f"k{n}": await add(connection, f"k{n}", 3) for n in range(40)}
        await drained(connection)
    await connection.close()
    assert sorted(brokers[0].ids + brokers[1].ids) == sorted(event for events in written.values() for event in events)
    for events in written.values():
        assert [one for one in brokers[0].ids + brokers[1].ids if one in events] == events
    assert brokers[0].ids
    assert brokers[1].ids


async def test_an_old_relay_works_on_a_newer_schema(any_database: Database) -> None:
    """A column more, a default more, and a migration on record that this code has never heard of."""
    connection = await asyncpg.connect(any_database.dsn)
    await connection.execute("ALTER TABLE oncommit.outbox ADD COLUMN flavour text DEFAULT 'plain'")
    await connection.execute("ALTER TABLE oncommit.outbox_archive ADD COLUMN flavour text DEFAULT 'plain'")
    await connection.execute("ALTER TABLE oncommit.outbox_relay ADD COLUMN mood text NOT NULL DEFAULT 'good'")
    await connection.execute(
        'INSERT INTO oncommit.migration SELECT (jsonb_populate_record(m, \'{"version": 9999, "name": "later"}\')).*'
        " FROM oncommit.migration m ORDER BY version DESC LIMIT 1"
    )
    broker = RecordingBroker()
    async with Relay(any_database.dsn, {"main": broker}, settings=QUICK) as relay:
        await relay.check()
        events = await add(connection, "a", 5)
        await drained(connection)
    assert broker.ids == events
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == 5
    await connection.close()


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_the_hosts_clock_decides_nothing(database: Database, monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    """Leases, due times and the archive's days go by the database's clock, and waits by one that nobody can set."""
    connection = await asyncpg.connect(database.dsn)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + off)
    broker = RecordingBroker()
    async with Relay(database.dsn, {"main": broker}, settings=QUICK):
        events = await add(connection, "a", 3)
        await drained(connection)
        await until(
            connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE heartbeat > now() - interval '2 s'", 1
        )
        events += await add(connection, "a", 3)
        await drained(connection)
    assert broker.ids == events
    rows: list[Any] = await connection.fetch("SELECT sent_at BETWEEN created_at AND now() FROM oncommit.outbox_archive")
    assert [row[0] for row in rows] == [True] * 6
    await connection.close()


async def test_a_server_that_is_full_is_waited_for(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A role with one connection cannot run a relay, which needs a few: the log says so, and it begins when it can."""
    connection = await asyncpg.connect(database.dsn)
    role = f"narrow_{database.name}"
    await connection.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 1')
    await connection.execute(f'GRANT USAGE ON SCHEMA oncommit TO "{role}"')
    await connection.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA oncommit TO "{role}"')
    await connection.execute(f'GRANT ALL ON ALL SEQUENCES IN SCHEMA oncommit TO "{role}"')
    try:
        broker = RecordingBroker()
        narrow = database.dsn.replace("//postgres@", f"//{role}@")
        assert narrow != database.dsn
        async with Relay(narrow, {"main": broker}, settings=QUICK):
            events = await add(connection, "a", 3)
            await until(connection, f"SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = '{role}'", True)
            while "too many connections" not in caplog.text:  # the log has no event
                await until(connection, "SELECT pg_sleep(0.05)::text", "")
            await connection.execute(f'ALTER ROLE "{role}" CONNECTION LIMIT -1')
            await drained(connection)
        assert broker.ids == events
    finally:
        await connection.execute(f'DROP OWNED BY "{role}"')
        await connection.execute(f'DROP ROLE "{role}"')
        await connection.close()
