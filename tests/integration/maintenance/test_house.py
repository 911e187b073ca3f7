"""Dead letters expire with a warning, by one set of days for the whole database; the leader keeps house by itself."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.cli.main import run
from oncommit.errors import ConfigError
from oncommit.ops.retention import change_retention, read_retention
from oncommit.ops.stats import read_stats
from oncommit.relay.maintenance import expiry
from oncommit.relay.maintenance.expiry import Warned
from oncommit.relay.maintenance.house import keep_house
from oncommit.relay.maintenance.leader import Limits, NotLeader, Seat
from oncommit.retention import Retention
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.maintenance.tools import delay, relay, set_clock
from tests.integration.relay.tools import add, drained, until

NOON = datetime(2026, 5, 20, 12, 0, tzinfo=UTC)
LIMITS = Limits(lock=0.5, statement=5.0, idle=5.0)
LEFT = "SELECT message_id FROM oncommit.dead_letter ORDER BY id"


async def seated(connection: asyncpg.Connection) -> UUID:
    owner = uuid4()
    seat = Seat(connection, schema="oncommit", owner=owner, lease=3600.0)
    await seat.make()
    assert await seat.hold()
    return owner


async def house(connection: asyncpg.Connection, owner: UUID, warned: Warned | None = None) -> bool:
    return await keep_house(connection, schema="oncommit", owner=owner, warned=warned or Warned(), limits=LIMITS)


async def bury(
    connection: asyncpg.Connection, name: str, died: datetime, *, keep: int = 14, state: str = "dead", event: str = ""
) -> None:
    await connection.execute(
        "INSERT INTO oncommit.dead_letter (source, origin, message_id, event_id, reason, died_at, expires_at, state)"
        " VALUES ('outbox', 'main', $1, $2, 'exhausted', $3, $4, $5)",
        name, UUID(event) if event else None, died, died + timedelta(days=keep), state,
    )  # fmt: skip


async def left(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(LEFT)]


async def test_dead_letters_expire_by_their_time_and_by_what_holds_now(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(expiry, "EXPIRE_ROWS", 2)
    owner = await seated(connection)
    await set_clock(connection, NOON)
    over, young = NOON - timedelta(days=14), NOON - timedelta(days=14) + timedelta(seconds=1)
    for number in range(5):
        await bury(connection, f"over{number}", over)
    await bury(connection, "young", young)
    await bury(connection, "promised longer", over, keep=30)
    await bury(connection, "promised shorter", young, keep=3)
    await bury(connection, "in replay", over, state="replaying")
    await bury(connection, "history", over, state="replayed")
    assert await house(connection, owner)
    assert await left(connection) == ["young", "promised longer", "promised shorter", "in replay"]
    assert sum(int(line.split()[0]) for line in caplog.messages if "have expired, unanswered" in line) == 5
    # More days for everybody save what is there.
    await change_retention(connection, dead_letter_days=20, inbox_days=21)
    await set_clock(connection, NOON + timedelta(days=2))
    assert await house(connection, owner)
    assert "young" in await left(connection)
    await set_clock(connection, NOON + timedelta(days=17))
    assert await house(connection, owner)
    assert await left(connection) == ["in replay"]


async def test_a_warning_comes_before_once_a_day(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    warned = Warned(lambda: now[0])
    owner = await seated(connection)
    await set_clock(connection, NOON)
    await bury(connection, "a", NOON - timedelta(days=12))
    await bury(connection, "b", NOON - timedelta(days=12) + timedelta(seconds=1))
    await bury(connection, "dealt with", NOON - timedelta(days=13), state="discarded")

    async def told() -> list[str]:
        caplog.clear()
        await house(connection, owner, warned)
        return [message for message in caplog.messages if "expire within" in message]

    (warning,) = await told()
    assert warning.startswith("1 dead letters of outbox main expire within 2 days, the first at 2026-05-22T12:")
    now[0] += 86399
    assert await told() == []
    now[0] += 1
    await set_clock(connection, NOON + timedelta(days=1))
    (warning,) = await told()
    assert warning.startswith("2 dead letters")


async def test_expiry_touches_nothing_that_waits_to_be_delivered(
    database: Database, connection: asyncpg.Connection
) -> None:
    """A year passes: live, failed and delayed events, and what is parked, are as they were; then they are delivered."""
    owner = await seated(connection)
    live = await add(connection, "a", 2)
    await connection.execute(
        "UPDATE oncommit.outbox SET state = 'failed', available_at = now() WHERE event_id = $1", UUID(live[0])
    )
    later = await delay(connection, "a", "now()")
    await bury(connection, live[1], datetime.now(UTC), event=live[1])
    await set_clock(connection, "pg_catalog.statement_timestamp() + interval '400 days'")
    assert await house(connection, owner)
    await connection.execute("DELETE FROM oncommit.setting WHERE name = 'maintenance'")
    broker = RecordingBroker()
    async with relay(database, broker):
        await broker.wait_for(3)
        await drained(connection)
    assert sorted(broker.ids) == sorted([*live, later])


async def test_a_parked_head_goes_with_its_record_and_frees_its_key(connection: asyncpg.Connection) -> None:
    owner = await seated(connection)
    head, behind = await add(connection, "a", 2)
    (other,) = await add(connection, "b")
    lane = await connection.fetchval("SELECT lane FROM oncommit.outbox WHERE event_id = $1", UUID(head))
    await connection.execute("INSERT INTO oncommit.outbox_lane (sink, lane) SELECT 'main', generate_series(0, 71)")
    await connection.execute(
        "UPDATE oncommit.outbox SET state = 'dead_letter', available_at = 'infinity' WHERE event_id = ANY ($1)",
        [UUID(head), UUID(other)],
    )
    await set_clock(connection, NOON)
    await bury(connection, head, NOON - timedelta(days=14), event=head)
    await bury(connection, other, NOON - timedelta(days=13), event=other)
    assert await house(connection, owner)
    live = await connection.fetch("SELECT event_id::text FROM oncommit.outbox ORDER BY id")
    assert [row[0] for row in live] == [behind, other]
    freed = await connection.fetch("SELECT lane FROM oncommit.outbox_lane WHERE rescan > 0")
    assert [row[0] for row in freed] == [lane]


async def test_who_leads_no_longer_expires_nothing(connection: asyncpg.Connection) -> None:
    owner = await seated(connection)
    await set_clock(connection, NOON)
    await bury(connection, "a", NOON - timedelta(days=99))
    await connection.execute("DELETE FROM oncommit.setting")
    await seated(connection)
    with pytest.raises(NotLeader):
        await house(connection, owner)
    assert await left(connection) == ["a"]


# ── For how long ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_defaults_are_on_record_after_the_first_turn(connection: asyncpg.Connection) -> None:
    assert await read_retention(connection) == Retention()
    await house(connection, await seated(connection))
    stored = await connection.fetchval("SELECT value::text FROM oncommit.setting WHERE name = 'retention'")
    assert json.loads(stored) == {"archive_days": 14, "dead_letter_days": 14, "inbox_days": 15}


@pytest.mark.parametrize("broken", ['{"archive_days": 90}', '{"archive_days": "x"}', '"no"', '{"inbox_days": 1}'])
async def test_nothing_expires_by_a_record_that_cannot_be(
    connection: asyncpg.Connection, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await seated(connection)
    await connection.execute("INSERT INTO oncommit.setting VALUES ('retention', $1)", broken)
    await set_clock(connection, NOON)
    await bury(connection, "a", NOON - timedelta(days=99))
    assert not await house(connection, owner)
    assert "nothing expires: the retention on record in this database cannot be used" in caplog.text
    assert await left(connection) == ["a"]
    # And there is a way out.
    await change_retention(connection, archive_days=10, shorten=True)
    assert await house(connection, owner)
    assert await left(connection) == []


async def test_a_set_that_does_not_go_together_is_refused(connection: asyncpg.Connection) -> None:
    with pytest.raises(ConfigError, match=r"inbox_days \(15\) must be at least 31, one more than archive_days \(30\)"):
        await change_retention(connection, archive_days=30)
    await change_retention(connection, inbox_days=31)
    with pytest.raises(ConfigError, match="shortens inbox_days from 31 to 20"):
        await change_retention(connection, inbox_days=20)
    with pytest.raises(ConfigError, match="there is no 'archiv_days'"):
        await change_retention(connection, archiv_days=30)
    assert await read_retention(connection) == Retention(inbox_days=31)


async def test_what_dies_is_kept_as_long_as_is_agreed(database: Database, connection: asyncpg.Connection) -> None:
    from oncommit.errors import PublishRejected
    from oncommit.testing.brokers import FailingBroker

    await change_retention(connection, dead_letter_days=40, inbox_days=41)
    await add(connection, "a")
    async with relay(database, FailingBroker(lambda _message: PublishRejected("no"))):
        await drained(connection)
    kept = await connection.fetchval("SELECT expires_at - died_at FROM oncommit.dead_letter")
    assert kept == timedelta(days=40)


def test_the_command(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["retention", "--database", database.dsn]
    assert run([*there, "--archive-days", "30"]) == 2
    assert "inbox_days (15) must be at least 31" in capsys.readouterr().err
    assert run([*there, "--archive-days", "30", "--inbox-days", "31"]) == 0
    assert "archive      30" in capsys.readouterr().out
    assert run([*there, "--archive-days", "7"]) == 2
    assert "shortens archive_days from 30 to 7" in capsys.readouterr().err
    assert run([*there, "--archive-days", "7", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"archive_days": 7, "dead_letter_days": 14, "inbox_days": 31}
    assert run([*there, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["archive_days"] == 7


# ── By itself ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_leader_keeps_house_by_itself(database: Database, connection: asyncpg.Connection) -> None:
    days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'oncommit.outbox_archive'::regclass"
    tomorrow = await connection.fetchval("SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')")
    await connection.execute(f"DROP TABLE oncommit.outbox_archive_{tomorrow}")
    await connection.execute("SELECT oncommit.make_archive_partition('2026-01-01')")
    assert await connection.fetchval(days) == 8
    async with relay(database, RecordingBroker()):
        await until(connection, f"SELECT to_regclass('oncommit.outbox_archive_{tomorrow}') IS NOT NULL", wanted=True)
        await until(connection, "SELECT to_regclass('oncommit.outbox_archive_20260101') IS NULL", wanted=True)
        await until(connection, days, 8)
        housekeepers = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncommit relay housekeeping'"
        await until(connection, housekeepers, 0)


async def test_a_housekeeper_that_hangs_does_not_hold_up_what_is_due(
    database: Database, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT oncommit.make_archive_partition('2026-01-01')")
    reader = await asyncpg.connect(database.dsn)
    transaction = reader.transaction()
    await transaction.start()
    await reader.execute("SELECT count(*) FROM oncommit.outbox_archive")
    broker = RecordingBroker()
    async with relay(database, broker):
        await until(connection, "SELECT count(*) FROM pg_inherits WHERE inhdetachpending", 1)
        event = await delay(connection, "a", "now()")
        async with asyncio.timeout(5):
            await broker.wait_for(1)
        assert broker.ids == [event]
    await transaction.rollback()
    await reader.close()
    # The server goes on with a detach whose program has left.
    await until(connection, "SELECT count(*) FROM pg_inherits WHERE inhdetachpending", 0)


# ── How it stands ────────────────────────────────────────────────────────────────────────────────────


async def test_stats_say_how_it_stands(
    database: Database, connection: asyncpg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    found = (await read_stats(connection)).maintenance
    assert (found.leader, found.leader_id, found.next_due_seconds, found.delayed) == (None, None, None, 0)
    assert found.archive_days_ahead == 7
    async with relay(database, RecordingBroker(), lease=60.0) as leader:
        await until(connection, "SELECT value ->> 'owner' FROM oncommit.setting", str(leader.relay_id))
        await delay(connection, None, "now() + interval '1 hour'")
        await delay(connection, None, "now() + interval '2 hours'")
        found = (await read_stats(connection)).maintenance
        assert (found.leader, found.leader_id, found.delayed) == (leader.name, leader.relay_id, 2)
        assert 0 < (found.lease_left_seconds or 0) <= 60
        assert 3500 < (found.next_due_seconds or 0) < 3601
        today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
        assert found.oldest_archive_day == today
        assert await asyncio.to_thread(run, ["stats", "--database", database.dsn]) == 0
        assert f"maintenance: led by {leader.name}, next delayed event in 3" in capsys.readouterr().out
        assert await asyncio.to_thread(run, ["stats", "--database", database.dsn, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["maintenance"]
        assert told["leader"] == leader.name
        assert told["oldest_archive_day"] == today.isoformat()
    await connection.execute(f"DROP TABLE oncommit.outbox_archive_{today + timedelta(days=3):%Y%m%d}")
    await set_clock(connection, "pg_catalog.statement_timestamp() + interval '90 minutes'")
    found = (await read_stats(connection)).maintenance
    assert found.leader_id is None
    assert found.archive_days_ahead in (1, 2)  # 1: the clock has passed midnight
    assert -1900 < (found.next_due_seconds or 0) < -1700
    await connection.execute(f"DROP TABLE oncommit.outbox_archive_{today:%Y%m%d}")
    await set_clock(connection, f"'{today} 12:00Z'::timestamptz")
    assert (await read_stats(connection)).maintenance.archive_days_ahead == -1
    assert await asyncio.to_thread(run, ["stats", "--database", database.dsn]) == 0
    assert "the archive has no partition for today" in capsys.readouterr().out
