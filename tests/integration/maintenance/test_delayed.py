"""Delayed events go when they are due: once, in their order, and not twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.relay.maintenance import delayed
from oncommit.relay.maintenance.delayed import Mover
from oncommit.relay.maintenance.leader import Limits, NotLeader, Seat
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.maintenance.tools import delay, relay, set_clock
from tests.integration.relay.tools import add, drained, until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return f"'{(NOON + timedelta(seconds=seconds)).isoformat()}'::timestamptz"


async def leading(connection: asyncpg.Connection) -> tuple[Mover, Seat, list[str]]:
    """A mover that leads; and what it wakes."""
    owner = uuid4()
    seat = Seat(connection, schema="oncommit", owner=owner, lease=10.0)
    await seat.make()
    assert await seat.hold()
    return mover(connection, owner, woken := []), seat, woken


def mover(connection: asyncpg.Connection, owner: UUID, woken: list[str]) -> Mover:
    return Mover(connection, schema="oncommit", owner=owner, longest_pause=1.0, wake=woken.append, timeout=5.0)


async def live(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("SELECT event_id::text FROM oncommit.outbox ORDER BY id")]


async def test_they_go_when_due_and_not_before(database: Database, connection: asyncpg.Connection) -> None:
    await set_clock(connection, NOON)
    early = await delay(connection, "a", at(30))
    late = await delay(connection, "a", at(60))
    broker = RecordingBroker()
    async with relay(database, broker):
        (first,) = await add(connection, "a")
        await broker.wait_for(1)
        await until(connection, "SELECT count(*) FROM oncommit.setting WHERE value ->> 'owner' <> ''", 1)
        assert broker.ids == [first]
        await set_clock(connection, NOON + timedelta(seconds=30))
        await broker.wait_for(2)
        # It takes its place in the order of its key now: behind what was written before, ahead of what comes.
        (last,) = await add(connection, "a")
        await broker.wait_for(3)
        assert broker.ids == [first, early, last]
        await set_clock(connection, NOON + timedelta(hours=1))
        await broker.wait_for(4)
        await drained(connection)
    assert broker.ids == [first, early, last, late]
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_delayed") == 0


async def test_they_do_not_block_their_key_meanwhile(database: Database, connection: asyncpg.Connection) -> None:
    await delay(connection, "a", "now() + interval '1 day'")
    broker = RecordingBroker()
    async with relay(database, broker):
        events = await add(connection, "a", 3)
        await drained(connection)
    assert broker.ids == events
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_delayed") == 1


async def test_a_pause_ends_when_the_next_is_due(connection: asyncpg.Connection) -> None:
    move, _, _ = await leading(connection)
    assert await move.turn() == 1.0
    await set_clock(connection, NOON)
    await delay(connection, None, at(0.25))
    assert await move.turn() == 0.25
    await delay(connection, None, at(3600))
    await connection.execute("DELETE FROM oncommit.outbox_delayed WHERE not_before < $1", NOON + timedelta(seconds=1))
    assert await move.turn() == 1.0


async def test_the_order_is_that_of_their_times_then_of_writing(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "MOVE_ROWS", 3)
    move, _, woken = await leading(connection)
    await set_clock(connection, NOON)
    third = [await delay(connection, "a", at(20)) for _ in range(2)]
    first = [await delay(connection, "a", at(5)) for _ in range(3)]
    second = [await delay(connection, "a", at(10), sink="audit") for _ in range(3)]
    await set_clock(connection, NOON + timedelta(seconds=15))
    assert [await move.turn() for _ in range(3)] == [0.0, 0.0, 1.0]
    await set_clock(connection, NOON + timedelta(seconds=20))
    assert [await move.turn() for _ in range(2)] == [0.0, 1.0]
    assert await live(connection) == [*first, *second, *third]
    assert woken == ["main", "audit", "main"]


async def test_everything_of_an_event_comes_along(connection: asyncpg.Connection) -> None:
    move, _, _ = await leading(connection)
    headers, payload, data = '{ "tier":"gold", "n": 1.10 }', '{"b": 1.000,  "a":2}', b"\x00\xff"
    columns = {
        "saga_id": uuid4(), "max_attempts": 7, "schema_version": 3, "priority": 8, "sink": "audit",
        "aggregate_type": "o", "aggregate_id": "1", "topic": "x", "correlation_id": "c",
        "causation_id": "d", "headers": headers,
    }  # fmt: skip
    await delay(connection, "k", "now() - interval '2 s'", payload=payload, **columns)
    await delay(connection, None, "now() - interval '1 s'", data=data, content_type="x/y")
    shared = (
        "event_id, created_at, saga_id, max_attempts, schema_version, priority, sink, event_type, aggregate_type,"
        " aggregate_id, key, topic, content_type, correlation_id, causation_id, headers::text, payload::text, data"
    )
    before = await connection.fetch(f"SELECT {shared} FROM oncommit.outbox_delayed ORDER BY not_before")
    await move.turn()
    after = await connection.fetch(f"SELECT {shared}, lane, state FROM oncommit.outbox ORDER BY id")
    assert [tuple(row)[:-2] for row in after] == [tuple(row) for row in before]
    assert after[0]["headers"] == headers
    assert after[0]["payload"] == payload
    assert [row["state"] for row in after] == ["pending"] * 2
    assert after[0]["lane"] >= 64  # urgent: the lane follows from the priority


async def test_a_batch_ends_at_so_many_bytes_but_one_always_goes(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "MOVE_BYTES", 100_000)
    move, _, _ = await leading(connection)
    for _ in range(3):
        await connection.execute(
            "INSERT INTO oncommit.outbox_delayed (event_type, not_before, data) SELECT 't', now() - interval '2 s',"
            " string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(1, 5000)"  # 80 kB, incompressible
        )
    counts = []
    for _ in range(3):
        await move.turn()
        counts.append(len(await live(connection)))
    assert counts == [2, 3, 3]
    monkeypatch.setattr(delayed, "MOVE_BYTES", 10)
    await delay(connection, None, "now()", data=b"x" * 1000)
    await move.turn()
    assert len(await live(connection)) == 4


@pytest.mark.parametrize("where", ["outbox", "outbox_archive", "dead_letter"])
async def test_what_is_known_already_is_not_brought_back(
    database: Database, connection: asyncpg.Connection, where: str
) -> None:
    """Two transactions add one event just before and just after its time; one row goes live, the other waits."""
    move, _, _ = await leading(connection)
    known = UUID(await delay(connection, "a", "now() - interval '2 s'"))
    other = await delay(connection, "a", "now() - interval '2 s'")
    if where == "outbox":
        await connection.execute("INSERT INTO oncommit.outbox (event_type, event_id) VALUES ('t', $1)", known)
    elif where == "dead_letter":
        await connection.execute(
            "INSERT INTO oncommit.dead_letter (source, origin, message_id, event_id, reason, expires_at)"
            " VALUES ('outbox', 'main', $1, $2, 'exhausted', 'infinity')", str(known), known,
        )  # fmt: skip
    else:
        await connection.execute("INSERT INTO oncommit.outbox (event_type, event_id) VALUES ('t', $1)", known)
        broker = RecordingBroker()
        async with relay(database, broker, maintenance=False):
            await drained(connection)
        assert broker.ids == [str(known)]
    await move.turn()
    assert await live(connection) == ([str(known), other] if where == "outbox" else [other])
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_delayed") == 0


async def test_a_writer_who_adds_it_at_the_same_moment(
    connection: asyncpg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His row is not committed yet when the mover inserts: it waits for him, and finds the event live."""
    monkeypatch.setattr(delayed, "MOVE_LIMITS", Limits(lock=10.0, statement=20.0, idle=5.0))
    move, _, _ = await leading(connection)
    known = UUID(await delay(connection, "a", "now() - interval '2 s'"))
    writer = await asyncpg.connect(database.dsn)
    transaction = writer.transaction()
    await transaction.start()
    place = await writer.fetchval(
        "INSERT INTO oncommit.outbox (event_type, event_id) VALUES ('t', $1) RETURNING id", known
    )
    moving = asyncio.create_task(move.turn())
    await until(writer, WAITING, 1)
    await transaction.commit()
    await moving
    assert await connection.fetchval("SELECT array_agg(id) FROM oncommit.outbox") == [place]
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_delayed") == 0
    await writer.close()


async def test_two_movers_never_move_one_twice(connection: asyncpg.Connection, database: Database) -> None:
    """The second has not the seat; nor would it find what the first is moving."""
    move, _, _ = await leading(connection)
    event = await delay(connection, "a", "now() - interval '2 s'")
    second = await asyncpg.connect(database.dsn)
    with pytest.raises(NotLeader):
        await mover(second, uuid4(), []).turn()
    # Both under the fence of one owner, as no two can be: the rows themselves keep them apart.
    owner = UUID(await connection.fetchval("SELECT value ->> 'owner' FROM oncommit.setting WHERE name = 'maintenance'"))
    holding = await asyncpg.connect(database.dsn)
    transaction = holding.transaction()
    await transaction.start()
    await holding.execute("SELECT FROM oncommit.outbox_delayed FOR UPDATE")
    assert await mover(second, owner, []).turn() == delayed.HELD_UP
    assert await live(connection) == []
    await transaction.rollback()
    await move.turn()
    assert await live(connection) == [event]
    await second.close()
    await holding.close()


async def test_what_commits_late_is_found(connection: asyncpg.Connection, database: Database) -> None:
    now = [0.0]
    move, _, _ = await leading(connection)
    move._clock = lambda: now[0]
    await set_clock(connection, NOON)
    writer = await asyncpg.connect(database.dsn)
    transaction = writer.transaction()
    await transaction.start()
    late = await delay(writer, "a", at(1))
    on_time = await delay(connection, "a", at(600))
    await set_clock(connection, NOON + timedelta(seconds=600))
    await move.turn()
    assert await live(connection) == [on_time]
    await transaction.commit()
    now[0] = delayed.FULL_LOOK_EVERY - 1
    assert await move.turn() == 1.0  # below the floor
    now[0] += 1
    await move.turn()
    assert await live(connection) == [on_time, late]
    await writer.close()


REFUSING = """
    CREATE FUNCTION oncommit.no_bad() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.event_type = 'bad' THEN RAISE EXCEPTION 'not here'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER no_bad BEFORE INSERT ON oncommit.outbox FOR EACH ROW EXECUTE FUNCTION oncommit.no_bad()
"""


async def test_one_that_is_refused_holds_up_nobody(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule of somebody's on the live table. It is tried again, and goes when the rule does."""
    now = [0.0]
    monkeypatch.setattr(delayed, "MOVE_ROWS", 4)
    move, _, _ = await leading(connection)
    move._clock = lambda: now[0]
    await connection.execute(REFUSING)
    try:
        events = [await delay(connection, "a", "now() - interval '2 s'") for _ in range(10)]
        for place in (0, 2, 9):
            await connection.execute(
                "UPDATE oncommit.outbox_delayed SET event_type = 'bad' WHERE event_id = $1", UUID(events[place])
            )
        good = [event for place, event in enumerate(events) if place not in (0, 2, 9)]
        for _ in range(30):
            await move.turn()
        assert await live(connection) == good
        assert len([line for line in caplog.messages if "is refused: not here" in line]) == 3
        assert await move.turn() == 1.0
        await connection.execute("DROP TRIGGER no_bad ON oncommit.outbox")
        now[0] = delayed.ASIDE_REFUSED
        for _ in range(3):  # one by one still
            await move.turn()
        assert await live(connection) == [*good, events[0], events[2], events[9]]
    finally:
        await connection.execute("DROP FUNCTION oncommit.no_bad CASCADE")


async def test_a_writer_of_one_id_who_does_not_end_holds_up_only_that(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(delayed, "MOVE_LIMITS", Limits(lock=0.1, statement=5.0, idle=5.0))
    move, _, _ = await leading(connection)
    move._clock = lambda: now[0]
    held, *others = [await delay(connection, "a", "now() - interval '2 s'") for _ in range(4)]
    writer = await asyncpg.connect(database.dsn)
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("INSERT INTO oncommit.outbox (event_type, event_id) VALUES ('t', $1)", UUID(held))
    for _ in range(6):
        await move.turn()
    assert await live(connection) == others
    await transaction.rollback()
    now[0] = delayed.ASIDE_LOCKED
    await move.turn()
    assert await live(connection) == [*others, held]
    await writer.close()


async def test_a_table_that_is_locked_is_no_events_fault(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration, say: nothing is set aside for it, and the order is kept."""
    monkeypatch.setattr(delayed, "MOVE_LIMITS", Limits(lock=0.1, statement=5.0, idle=5.0))
    move, _, _ = await leading(connection)
    events = [await delay(connection, "a", "now() - interval '2 s'") for _ in range(4)]
    other = await asyncpg.connect(database.dsn)
    async with other.transaction():
        await other.execute("LOCK TABLE oncommit.outbox IN ACCESS EXCLUSIVE MODE")
        assert [await move.turn(), await move.turn()] == [0.0, 0.0]
        with pytest.raises(asyncpg.LockNotAvailableError):
            await move.turn()
    owner = UUID(await connection.fetchval("SELECT value ->> 'owner' FROM oncommit.setting WHERE name = 'maintenance'"))
    await mover(connection, owner, []).turn()  # as the loop does when it starts over
    assert await live(connection) == events
    await other.close()
