"""One leads: by a lease on the database's clock, with a fence before every act."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from oncommit.relay.maintenance.leader import Limits, NotLeader, Seat, act
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.maintenance.tools import delay, relay, set_clock
from tests.integration.relay.tools import add, drained, until

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
OWNER = "SELECT value ->> 'owner' FROM oncommit.setting WHERE name = 'maintenance'"
LIMITS = Limits(lock=1.0, statement=5.0, idle=5.0)


def seat(connection: asyncpg.Connection, lease: float = 10.0) -> Seat:
    return Seat(connection, schema="oncommit", owner=uuid4(), lease=lease)


async def test_one_leads_until_its_lease_has_run_out_on_the_databases_clock(connection: asyncpg.Connection) -> None:
    now = [0.0]
    await set_clock(connection, NOON)
    one, two = seat(connection), seat(connection)
    one._clock = lambda: now[0]
    await one.make()
    await two.make()
    assert [await one.hold(), await two.hold(), await one.hold()] == [True, False, True]
    # An hour passes on the host of the first, and nothing on the database: it renews, and leads on.
    now[0] = 3600.0
    assert [await one.hold(), await two.hold()] == [True, False]
    # The database's clock passes the lease: the second takes over, the first learns it when it renews.
    await set_clock(connection, NOON + timedelta(seconds=10))
    assert await two.hold()
    now[0] += 10.0
    assert not await one.hold()
    assert not await one.hold()
    await two.leave()
    assert await one.hold()


async def test_a_lease_that_ran_out_and_that_nobody_wanted_is_renewed(connection: asyncpg.Connection) -> None:
    now = [0.0]
    await set_clock(connection, NOON)
    one = seat(connection)
    one._clock = lambda: now[0]
    await one.make()
    assert await one.hold()
    await set_clock(connection, NOON + timedelta(days=1))
    now[0] = 10.0
    assert await one.hold()
    assert not await seat(connection).hold()


async def test_nobody_takes_the_seat_in_the_middle_of_an_act(
    database: Database, connection: asyncpg.Connection
) -> None:
    acting = await asyncpg.connect(database.dsn)
    await set_clock(connection, NOON)
    one, two = seat(acting), seat(connection)
    await one.make()
    assert await one.hold()
    async with act(acting, schema="oncommit", owner=one._owner, limits=LIMITS):
        await set_clock(connection, NOON + timedelta(hours=1))
        assert not await two.hold()
        # The leader's own renewal, on its other connection, does not wait for it.
        await connection.execute("SET lock_timeout = '1ms'")
        renewing = Seat(connection, schema="oncommit", owner=one._owner, lease=10.0, clock=lambda: 100.0)
        renewing._renewed = 0.0
        assert await renewing.hold()
        await set_clock(connection, NOON + timedelta(hours=2))
    assert await two.hold()
    with pytest.raises(NotLeader):
        async with act(acting, schema="oncommit", owner=one._owner, limits=LIMITS):
            raise AssertionError("it was let in")
    assert not acting.is_in_transaction()
    await acting.close()


async def test_an_act_waits_for_a_takeover_that_is_under_way_and_then_sees_it(
    database: Database, connection: asyncpg.Connection
) -> None:
    acting = await asyncpg.connect(database.dsn)
    await set_clock(connection, NOON)
    one, two = seat(acting), seat(connection)
    await one.make()
    assert await one.hold()
    await set_clock(connection, NOON + timedelta(hours=1))
    transaction = connection.transaction()
    await transaction.start()
    assert await two.hold()

    async def try_to() -> None:
        async with act(acting, schema="oncommit", owner=one._owner, limits=LIMITS):
            raise AssertionError("it was let in")

    late = asyncio.create_task(try_to())
    watching = await asyncpg.connect(database.dsn)
    await until(
        watching,
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        1,
    )
    await transaction.commit()
    with pytest.raises(NotLeader):
        await late
    await watching.close()
    await acting.close()


async def test_a_leader_who_sleeps_in_the_middle_of_an_act_loses_it(
    database: Database, connection: asyncpg.Connection
) -> None:
    """The server ends its transaction: nobody would ever lead again otherwise."""
    await set_clock(connection, NOON)
    acting = await asyncpg.connect(database.dsn)
    one, two = seat(acting), seat(connection)
    await one.make()
    assert await one.hold()

    async def sleep_in_it() -> None:
        async with act(acting, schema="oncommit", owner=one._owner, limits=Limits(lock=1, statement=5, idle=0.1)):
            await set_clock(connection, NOON + timedelta(hours=1))
            async with asyncio.timeout(10):
                while not (await two.hold() and acting.is_closed()):  # noqa: ASYNC110 - neither has an event for it
                    await asyncio.sleep(0.01)
            await acting.execute("SELECT 1")

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
        await sleep_in_it()
    acting.terminate()


SLEEPER = """
import asyncio, sys
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.testing.brokers import RecordingBroker

quick = RelaySettings(lease=2.0, statement_timeout=1.5)
asyncio.run(Relay(sys.argv[1], {"main": RecordingBroker()}, settings=quick).run())
"""


async def test_a_leader_that_is_paused_for_longer_than_its_lease(
    database: Database, connection: asyncpg.Connection
) -> None:
    """Stopped and continued: another leads, moves what is due once, and the sleeper finds that it has lost the seat."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SLEEPER, database.dsn)
    try:
        await until(connection, f"SELECT count(*) FROM ({OWNER}) o(owner) WHERE owner IS NOT NULL", 1)
        sleeper = await connection.fetchval(OWNER)
        os.kill(process.pid, signal.SIGSTOP)
        events = [await delay(connection, "a", "now()") for _ in range(3)]
        broker = RecordingBroker()
        async with relay(database, broker) as awake:
            await broker.wait_for(3)
            await drained(connection)
            assert await connection.fetchval(OWNER) == str(awake.relay_id)
            os.kill(process.pid, signal.SIGCONT)
            await until(
                connection, f"SELECT count(*) FROM oncommit.outbox_relay WHERE relay_id <> '{awake.relay_id}'", 1
            )
            events.append(await delay(connection, "a", "now() + interval '100 ms'"))
            await until(connection, "SELECT count(*) FROM oncommit.outbox_archive", 4)
            assert await connection.fetchval(OWNER) == str(awake.relay_id) != sleeper
        sent = await connection.fetch("SELECT event_id::text FROM oncommit.outbox_archive ORDER BY id")
        assert [row[0] for row in sent] == events
        assert broker.ids[:3] == events[:3]
    finally:
        process.kill()
        await process.wait()


async def test_who_stops_leaves_the_seat_at_once(database: Database, connection: asyncpg.Connection) -> None:
    async with relay(database, RecordingBroker(), lease=60.0) as first:
        await until(connection, OWNER, str(first.relay_id))
    assert await connection.fetchval(OWNER) is None
    async with relay(database, RecordingBroker(), lease=60.0) as second:
        await until(connection, OWNER, str(second.relay_id))


async def test_delivery_goes_on_where_maintenance_cannot(
    database: Database, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await connection.execute("ALTER TABLE oncommit.setting RENAME TO hidden")
    try:
        broker = RecordingBroker()
        async with relay(database, broker):
            events = await add(connection, "a", 2)
            await broker.wait_for(2)
            assert broker.ids == events
            async with asyncio.timeout(10):
                while "maintenance starts over" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                    await asyncio.sleep(0.01)
            await connection.execute("ALTER TABLE oncommit.hidden RENAME TO setting")
            await delay(connection, "a", "now()")
            await broker.wait_for(3)
    finally:
        await connection.execute("ALTER TABLE IF EXISTS oncommit.hidden RENAME TO setting")
