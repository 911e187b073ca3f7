"""Days of the archive come and go, and delivery never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.relay.maintenance import archive as archive_module
from oncommit.relay.maintenance.archive import Archive, Day, in_turn, of_day
from oncommit.relay.maintenance.leader import Limits, NotLeader, Seat
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.maintenance.tools import DAYS, relay, set_clock, without_days
from tests.integration.relay.tools import add, drained, until

TODAY = datetime(2026, 5, 20, 8, 0, tzinfo=UTC)
LIMITS = Limits(lock=0.3, statement=5.0, idle=5.0)
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture(autouse=True)
async def no_days(connection: asyncpg.Connection) -> None:
    """An archive without days."""
    await without_days(connection)


async def leading(connection: asyncpg.Connection) -> Archive:
    owner = uuid4()
    seat = Seat(connection, schema="oncommit", owner=owner, lease=60.0)
    await seat.make()
    assert await seat.hold()
    return Archive(connection, schema="oncommit", owner=owner, limits=LIMITS)


async def made(connection: Any, *days: str) -> None:
    for day in days:
        await connection.fetchval("SELECT oncommit.make_archive_partition($1)", date.fromisoformat(day))


async def there(connection: Any) -> list[str]:
    return [row[0].removeprefix("outbox_archive_") for row in await connection.fetch(DAYS)]


@asynccontextmanager
async def reading(database: Database, sql: str = "SELECT count(*) FROM oncommit.outbox_archive") -> AsyncIterator[Any]:
    """Somebody who has read, and does not end his transaction."""
    reader = await asyncpg.connect(database.dsn)
    transaction = reader.transaction()
    await transaction.start()
    await reader.execute(sql)
    yield reader
    await transaction.rollback()
    await reader.close()


async def delivered(connection: asyncpg.Connection, broker: RecordingBroker) -> None:
    """Events go all the way into the archive now, whoever is in the middle of something."""
    before = await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive")
    events = await add(connection, "a", 3)
    await broker.wait_for(len(broker.messages) + 3, timeout=15.0)
    await drained(connection)
    assert broker.ids[-3:] == events
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == before + 3


# ── Days to come ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_week_is_made_ahead_and_today_where_it_is_missing(connection: asyncpg.Connection) -> None:
    archive = await leading(connection)
    await set_clock(connection, TODAY)
    assert await archive.make_days()
    week = [f"202605{20 + ahead}" for ahead in range(8)]
    assert await there(connection) == week
    assert await archive.make_days()
    await set_clock(connection, TODAY + timedelta(days=1))
    assert await archive.make_days()
    assert await there(connection) == [*week, "20260528"]
    attached = await connection.fetchval(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'oncommit.outbox_archive'::regclass"
    )
    assert attached == 9


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
async def test_days_are_those_of_utc_wherever_the_server_stands(connection: asyncpg.Connection, zone: str) -> None:
    archive = await leading(connection)
    await connection.execute(f"SET TimeZone = '{zone}'")
    for moment in (datetime(2026, 5, 20, 0, 0, tzinfo=UTC), datetime(2026, 5, 20, 23, 59, 59, tzinfo=UTC)):
        await set_clock(connection, moment)
        assert await archive.make_days()
        assert (await there(connection))[0] == "20260520"
        assert (await there(connection))[-1] == "20260527"
        await connection.execute(
            "INSERT INTO oncommit.outbox_archive (id, created_at, sent_at, event_id, attempts, crashes, schema_version,"
            " priority, lane, sink, event_type, content_type, headers) VALUES (1, now(), now(), gen_random_uuid(), 0,"
            " 0, 1, 5, 0, 'main', 't', 'x/y', '{}')"
        )
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive_20260520") == 2


async def test_a_day_is_made_while_somebody_reads_and_delivery_goes_on(
    database: Database, connection: asyncpg.Connection
) -> None:
    await made(connection, f"{await connection.fetchval('SELECT now()'):%Y-%m-%d}")
    broker = RecordingBroker()
    async with reading(database), relay(database, broker, maintenance=False):
        await delivered(connection, broker)
        assert await (await leading(connection)).make_days()
        await delivered(connection, broker)
    assert len(await there(connection)) == 8


async def test_a_day_that_cannot_be_made_yet_holds_up_nobody(
    database: Database,
    connection: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody holds a lock that an attach needs (so does a detach, or VACUUM); the attach queues, and gives up."""
    today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
    await made(connection, today.isoformat())
    archive = await leading(connection)
    archive._limits = Limits(lock=4.0, statement=10.0, idle=10.0)
    monkeypatch.setattr(archive_module, "DAYS_AHEAD", 1)
    lock = "LOCK TABLE oncommit.outbox_archive IN SHARE UPDATE EXCLUSIVE MODE"
    broker = RecordingBroker()
    other = await asyncpg.connect(database.dsn)
    async with reading(database, lock), relay(database, broker, maintenance=False):
        making = asyncio.create_task(archive.make_days())
        await until(other, WAITING, 1)
        await delivered(other, broker)
        assert not making.done(), "nobody waited for it"
        assert not await making
    assert "cannot be made: canceling statement due to lock timeout" in caplog.text
    assert len(await there(connection)) == 1
    assert await archive.make_days()
    await other.close()


async def test_a_table_of_a_days_name_that_is_no_part_of_the_archive(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    archive = await leading(connection)
    await set_clock(connection, TODAY)
    await connection.execute("CREATE TABLE oncommit.outbox_archive_20260522 (id int)")
    assert not await archive.make_days()
    assert "outbox_archive_20260522 is no part of the archive" in caplog.text
    assert len(await there(connection)) == 8


# ── Days that are over ───────────────────────────────────────────────────────────────────────────────


async def test_days_go_when_they_ended_so_long_ago_and_no_others(connection: asyncpg.Connection) -> None:
    archive = await leading(connection)
    await made(connection, "2025-12-31", "2026-05-04", "2026-05-05", "2026-05-06", "2026-05-20", "2026-05-27")
    # Others' tables with such names, and a day that somebody has detached to keep it.
    await connection.execute("CREATE TABLE oncommit.outbox_archive_2024 (id int)")
    await connection.execute("CREATE TABLE oncommit.outbox_archive_20250101_copy (id int)")
    await connection.execute("ALTER TABLE oncommit.outbox_archive DETACH PARTITION oncommit.outbox_archive_20251231")
    kept = ["2024", "20250101_copy", "20251231"]
    await set_clock(connection, datetime(2026, 5, 19, 23, 59, 59, tzinfo=UTC))  # the 5th ended 13 d 23:59:59 ago
    assert await archive.drop_days(14)
    assert await there(connection) == [*kept, "20260505", "20260506", "20260520", "20260527"]
    await set_clock(connection, datetime(2026, 5, 20, 0, 0, tzinfo=UTC))
    assert await archive.drop_days(14)
    assert await there(connection) == [*kept, "20260506", "20260520", "20260527"]
    await connection.execute("DROP TABLE oncommit.outbox_archive_2024, oncommit.outbox_archive_20250101_copy")


async def test_who_reads_the_archive_holds_up_the_drop_and_not_delivery(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "DETACH_TIMEOUT", 4.0)
    today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
    await made(connection, "2026-01-01", "2026-01-02", today.isoformat())
    archive = await leading(connection)
    other = await asyncpg.connect(database.dsn)
    broker = RecordingBroker()
    async with relay(database, broker, maintenance=False):
        async with reading(database) as reader:
            dropping = asyncio.create_task(archive.drop_days(14))
            await until(other, WAITING, 1)
            await delivered(other, broker)
            assert not dropping.done(), "nobody waited for it"
            with pytest.raises(TimeoutError):
                await dropping
            # It is leaving. New readers don't see it, days can be made, and the rest has to wait for it.
            assert await connection.fetchval("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 1
            assert await archive.make_days()
            dropping = asyncio.create_task(archive.drop_days(14))
            await delivered(other, broker)
            assert await dropping is False
            assert await reader.fetchval("SELECT count(*) FROM oncommit.outbox_archive") >= 3
        assert await archive.drop_days(14)
        await delivered(other, broker)
    assert "20260101" not in await there(connection)
    assert "20260102" not in await there(connection)
    await other.close()


async def test_who_reads_one_day_holds_up_the_drop_and_not_delivery(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "DETACH_TIMEOUT", 4.0)
    today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
    await made(connection, "2026-01-01", today.isoformat())
    archive = await leading(connection)
    other = await asyncpg.connect(database.dsn)
    broker = RecordingBroker()
    async with relay(database, broker, maintenance=False):
        async with reading(database, "SELECT FROM oncommit.outbox_archive_20260101"):
            dropping = asyncio.create_task(archive.drop_days(14))
            await until(other, WAITING, 1)
            await delivered(other, broker)
            assert not dropping.done(), "nobody waited for it"
            with pytest.raises(TimeoutError):
                await dropping
        assert await archive.drop_days(14)
    assert await there(connection) == [f"{today:%Y%m%d}"]
    await other.close()


@pytest.mark.parametrize("mine", [True, False])
async def test_a_detach_that_was_cut_off_by_a_crash_is_finished(
    database: Database, connection: asyncpg.Connection, *, mine: bool
) -> None:
    await made(connection, "2026-01-01", "2026-01-02")
    leader = await asyncpg.connect(database.dsn)
    archive = await leading(leader)
    async with reading(database):
        if mine:
            dropping = asyncio.create_task(archive.drop_days(14))
        else:
            sql = of_day("detach_day", "20260101", "oncommit")
            dropping = asyncio.create_task(leader.execute(sql))
        await until(connection, WAITING, 1)
        await connection.execute("SELECT pg_terminate_backend($1)", leader.get_server_pid())
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await dropping
    assert await connection.fetchval("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 1
    await connection.execute("DELETE FROM oncommit.setting")
    archive = await leading(connection)
    assert await archive.drop_days(14)
    # What somebody else has begun is finished, and his table is his.
    assert await there(connection) == ([] if mine else ["20260101"])
    assert await connection.fetchval("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 0


@pytest.mark.parametrize("step", ["mark_day", "detach_day"])
async def test_a_crash_after_any_step(connection: asyncpg.Connection, step: str) -> None:
    await made(connection, "2026-01-01", "2026-01-02")
    for name in ("mark_day", "detach_day"):
        await connection.execute(of_day(name, "20260101", "oncommit"))
        if name == step:
            break
    assert await (await leading(connection)).drop_days(14)
    assert await there(connection) == []


async def test_who_leads_no_longer_drops_nothing(connection: asyncpg.Connection) -> None:
    await made(connection, "2026-01-01", "2026-01-02")
    await connection.execute(of_day("mark_day", "20260101", "oncommit"))
    await connection.execute(of_day("detach_day", "20260101", "oncommit"))
    zombie = await leading(connection)
    await connection.execute("DELETE FROM oncommit.setting")
    await leading(connection)
    with pytest.raises(NotLeader):
        await zombie.drop_days(14)
    with pytest.raises(NotLeader):
        await zombie.make_days()
    assert await there(connection) == ["20260101", "20260102"]
    assert isinstance(zombie._owner, UUID)


async def test_without_the_rights_it_says_so_and_delivery_goes_on(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await made(connection, "2026-01-01")
    archive = await leading(connection)
    await connection.execute("CREATE ROLE guest; GRANT USAGE ON SCHEMA oncommit TO guest;"
                             " GRANT ALL ON oncommit.setting TO guest")  # fmt: skip
    try:
        await connection.execute("SET ROLE guest")
        assert not await archive.drop_days(14)
        assert "must be owner" in caplog.text
        assert not await archive.make_days()
        assert "permission denied" in caplog.text
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute("DROP OWNED BY guest; DROP ROLE guest")
    assert "20260101" in await there(connection)


# ── Pure ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_furthest_goes_first_and_what_others_detached_stays() -> None:
    def day(name: str, *, attached: bool = True, pending: bool = False, marked: bool = False) -> Day:
        return Day(day=name, attached=attached, pending=pending, marked=marked, late=False)

    days = [
        day("1"),
        day("2", attached=False),
        day("3", pending=True, marked=True),
        day("4", attached=False, marked=True),
        day("5", marked=True),
    ]
    assert [one.day for one in in_turn(days)] == ["4", "3", "1", "5"]


@pytest.mark.parametrize("day", ["", "2026051", "20260520; DROP TABLE x", "2026052\n"])
def test_a_day_is_eight_digits(day: str) -> None:
    with pytest.raises(ValueError, match="is no day"):
        of_day("drop_day", day, "oncommit")
