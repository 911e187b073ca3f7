"""When an event is reserved for its writer, and when it is left to the relay."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from oncommit import Event, Outbox
from oncommit.errors import ConfigError, MissingDependency
from oncommit.outbox import write
from oncommit.outbox.optimistic import Optimistic
from oncommit.testing.brokers import RecordingBroker
from tests.integration.optimistic.tools import World, altered
from tests.integration.relay.tools import until

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def placed(name: str = "placed", key: str | None = "k", **more: object) -> Event:
    return Event(name, key=key, **more)


async def test_an_event_is_sent_and_settled_right_after_its_commit(world: World) -> None:
    outbox = world.outbox()
    assert await world.add(outbox, placed()) == ["optimistic"]
    (sent,) = await world.finished(1)
    assert (sent.event_type, sent.sink, sent.failure) == ("placed", "main", None)
    assert 0 < sent.seconds < 5
    assert world.arrived == ["placed"]
    assert (await world.states(), await world.archived()) == ([], ["placed"])
    stats = outbox.optimistic
    assert stats is not None
    assert (stats.attempts, stats.successes, stats.skipped, dict(stats.failures)) == (1, 1, 0, {})
    assert await world.add(outbox, placed("in rr", "x"), placed("too", "y", not_before=LONG_AGO)) == ["pending"] * 2
    counted = {name: found for name, found in stats.metrics.snapshot().items() if found}
    assert counted["outbox_optimistic_send_attempts_total"][()].value == 1
    assert counted["outbox_optimistic_send_success_total"][()].value == 1
    assert counted["outbox_optimistic_send_skipped_total"][()].value == 2
    assert counted["outbox_optimistic_send_latency_seconds"][()].count == 1
    assert counted["outbox_published_events_total"][("placed",)].value == 1


async def test_a_message_is_the_same_whoever_sends_it(world: World) -> None:
    event = Event("order.placed", aggregate=("order", 7), payload={"n": 1}, headers={"tenant": "a"})
    await world.add(world.outbox(source="shop"), event)
    await world.finished(1)
    (message,) = world.broker.messages
    assert (message.message_id, message.key, message.topic) == (str(event.id), "order:7", "events.order.placed")
    assert message.body == b'{"n":1}'
    assert message.headers["tenant"] == "a"
    assert "shop" in message.headers.values()


async def test_a_call_s_events_of_a_key_are_sent_in_order(world: World) -> None:
    outbox = world.outbox()
    names = [f"n{number}" for number in range(20)]
    assert await world.add(outbox, *[placed(name) for name in names]) == ["optimistic"] * 20
    await world.finished(20)
    assert world.arrived == names
    assert await world.archived() == names


async def lane_mates(world: World) -> tuple[str, str, str]:
    """Two keys of one lane, and one of another."""
    lane = "oncommit.lane_of(5::smallint, n::text, NULL, NULL, NULL)"
    sql = f"SELECT n::text FROM generate_series(1, 500) n WHERE ({lane} = 3) = $1"
    (one,), (two,), *_ = await world.rows(sql, True)
    ((other,), *_) = await world.rows(sql, False)
    return one, two, other


async def test_behind_a_live_row_of_its_lane_an_event_is_left_to_the_relay(world: World) -> None:
    one, two, other = await lane_mates(world)
    async with world.pool.acquire() as connection, connection.transaction():
        await Outbox().add(connection, placed("first", one))
    outbox = world.outbox()
    assert await world.add(outbox, placed("second", one)) == ["pending"]
    assert await world.add(outbox, placed("mate", two)) == ["pending"]
    assert await world.add(outbox, placed("other", other)) == ["optimistic"]
    assert await world.add(outbox, placed("urgent", one, priority=9)) == ["optimistic"]
    await world.finished(2)
    assert sorted(world.arrived) == ["other", "urgent"]
    assert outbox.optimistic is not None
    assert outbox.optimistic.skipped == 2


async def test_the_second_add_of_a_key_in_a_transaction_waits_for_the_first(world: World) -> None:
    outbox = world.outbox()
    async with outbox.transaction(world.pool) as connection:
        await outbox.add(connection, placed("one"))
        await outbox.add(connection, placed("two"))
        assert await world.states(connection) == ["optimistic", "pending"]
    await world.finished(1)
    assert world.arrived == ["one"]
    assert await world.states() == ["pending"]


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_above_read_committed_nothing_is_reserved(world: World, level: str) -> None:
    outbox = world.outbox()
    async with outbox.transaction(world.pool) as connection:
        await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level.replace('_', ' ')}")
        await outbox.add(connection, placed())
        assert await world.states(connection) == ["pending"]


@pytest.mark.parametrize(
    ("setting", "state"),
    [("off", "pending"), ("local", "pending"), ("on", "optimistic"), ("remote_write", "optimistic")],
)
async def test_a_commit_that_may_be_lost_is_not_reserved_for(world: World, setting: str, state: str) -> None:
    outbox = world.outbox()
    async with outbox.transaction(world.pool) as connection:
        await connection.execute(f"SET LOCAL synchronous_commit = {setting}")
        await outbox.add(connection, placed())
        await outbox.add(connection, placed("many", "x"), placed("more", "y"))
        assert await world.states(connection) == [state] * 3


async def test_many_are_left_to_the_relay(world: World) -> None:
    outbox = world.outbox(most=10)
    async with outbox.transaction(world.pool) as connection:
        await outbox.add(connection, *[placed(key=f"k{number}") for number in range(11)])
        assert await world.states(connection) == ["pending"] * 11
    async with outbox.transaction(world.pool) as connection:
        await outbox.add(connection, *[placed(key=f"k{number}") for number in range(10_000)])
    assert len(await world.states()) == 10_011
    assert world.done == []


async def test_a_delayed_event_waits_for_its_time(world: World) -> None:
    outbox = world.outbox()
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await world.add(outbox, placed("now"), placed("later", not_before=later)) == ["pending"]
    assert await world.rows("SELECT event_type FROM oncommit.outbox_delayed") == [("later",)]
    assert world.done == []


async def test_ids_of_the_caller(world: World) -> None:
    outbox = world.outbox()
    event = placed("mine", id=uuid4())
    assert await world.add(outbox, event) == ["optimistic"]
    await world.finished(1)
    async with outbox.transaction(world.pool) as connection:  # delivered: taken back, and not sent again
        assert await outbox.add(connection, event) == ()
        assert await world.states(connection) == []
    assert await world.add(outbox, placed("a", id=uuid4()), placed("b", id=uuid4())) == ["pending", "pending"]
    assert await world.add(outbox, placed("new", "z")) == ["optimistic"]
    await world.finished(2)
    assert world.arrived == ["mine", "new"]


async def test_a_transaction_tried_again_sends_once(world: World) -> None:
    """Its answer was lost: the same events, added again."""
    outbox = world.outbox()
    event = placed()
    for _ in range(2):
        await world.add(outbox, event)
        await world.finished(1)
    assert world.arrived == ["placed"]
    assert await world.states() == []


async def test_what_was_rolled_back_is_not_sent(world: World) -> None:
    outbox = world.outbox()
    async with outbox.transaction(world.pool) as connection:
        savepoint = connection.transaction()
        await savepoint.start()
        await outbox.add(connection, placed("lost"))
        await savepoint.rollback()
        await outbox.add(connection, placed("kept", "other"))
    await world.finished(1)
    with suppress(ZeroDivisionError):
        async with outbox.transaction(world.pool) as connection:
            await outbox.add(connection, placed("lost too"))
            raise ZeroDivisionError
    assert world.arrived == ["kept"]
    assert world.reasons == [None]


async def test_a_commit_that_fails_sends_nothing(world: World) -> None:
    outbox = world.outbox()
    block = outbox.transaction(world.pool)
    connection = await block.__aenter__()
    await outbox.add(connection, placed("lost"))
    await connection.execute("INSERT INTO strict VALUES (1), (1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await block.__aexit__(None, None, None)
    await world.add(outbox, placed("kept"))
    await world.finished(1)
    assert world.arrived == ["kept"]


async def test_a_connection_without_a_hook_leaves_all_to_the_relay(world: World) -> None:
    outbox = world.outbox()
    async with world.pool.acquire() as connection, connection.transaction():
        await outbox.add(connection, placed())
        assert await world.states(connection) == ["pending"]
    assert outbox.optimistic is not None
    assert outbox.optimistic.skipped == 1


async def test_one_flag_turns_it_off(world: World) -> None:
    outbox = Outbox(after_commit=world.pool, broker=world.broker, optimistic=False)
    assert outbox.optimistic is None
    assert await world.add(outbox, placed()) == ["pending"]
    await outbox.close()
    assert world.broker.messages == []


async def test_sinks_without_a_broker_here_are_left_to_the_relay(world: World) -> None:
    other = RecordingBroker()
    outbox = Outbox(
        sinks=("main", "other", "third"), after_commit=world.pool, broker={"main": world.broker, "other": other}
    )
    events = placed("a", sink="main"), placed("b", sink="other")
    assert await world.add(outbox, *events) == ["optimistic", "optimistic"]
    await world.broker.wait_for(1)
    await other.wait_for(1)
    assert ([m.topic for m in world.broker.messages], [m.topic for m in other.messages]) == (["events.a"], ["events.b"])
    assert "pending" in await world.add(outbox, placed("c", "x", sink="third"))
    await outbox.close()


async def test_a_role_that_may_not_look_is_warned_and_writes_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = world.outbox()
    await world.pool.execute(
        "DROP ROLE IF EXISTS narrow; CREATE ROLE narrow; GRANT USAGE ON SCHEMA oncommit TO narrow;"
        "GRANT SELECT, INSERT ON oncommit.outbox TO narrow"
    )
    try:
        with caplog.at_level(logging.WARNING):
            async with outbox.transaction(world.pool) as connection:
                await connection.execute("SET LOCAL ROLE narrow")
                await outbox.add(connection, placed())
                await outbox.add(connection, placed())
        assert await world.states() == ["pending", "pending"]
        assert caplog.text.count("outbox_lane") == 1
    finally:
        await world.pool.execute("DROP OWNED BY narrow; DROP ROLE narrow")


# ── Settled_to: where the look begins, and when there is none ─────────────────────────────────────


async def set_settled(world: World, settled_to: int, last_value: int | None = None) -> None:
    await world.pool.execute(
        "INSERT INTO oncommit.outbox_lane (sink, lane, settled_to)"
        " SELECT 'main', lane, $1 FROM generate_series(0, 71) lane"
        " ON CONFLICT (sink, lane) DO UPDATE SET settled_to = excluded.settled_to",
        settled_to,
    )
    if last_value is not None:
        await world.pool.execute("SELECT setval('oncommit.outbox_id_seq', $1)", last_value)


@pytest.mark.parametrize(
    ("settled_to", "last_value", "state"),
    [(0, 50_000, "optimistic"), (0, 50_001, "pending"), (60_000, 100_000, "optimistic"), (60_001, 60_000, "pending")],
)
async def test_too_far_behind_or_fallen_there_is_no_look(
    world: World, settled_to: int, last_value: int, state: str
) -> None:
    await set_settled(world, settled_to, last_value)
    outbox = world.outbox()
    assert await world.add(outbox, placed()) == [state]
    if state == "optimistic":
        await world.finished(1)
    await set_settled(world, settled_to, last_value)
    assert set(await world.add(outbox, placed("a", "a"), placed("b", "b"))) == {state}


async def test_a_live_row_above_settled_to_is_seen(world: World) -> None:
    async with world.pool.acquire() as connection, connection.transaction():
        await Outbox().add(connection, placed("first"))
    await set_settled(world, 0)
    assert await world.add(world.outbox(), placed("second")) == ["pending"]


# ── Settings ──────────────────────────────────────────────────────────────────────────────────────


async def test_what_cannot_be_is_said_when_the_outbox_is_made(world: World) -> None:
    with pytest.raises(ConfigError, match="needs a pool"):
        Outbox(broker=world.broker)
    with pytest.raises(ConfigError, match="needs a pool"):
        Outbox(after_commit=print, broker=world.broker)
    with pytest.raises(ConfigError, match="no sinks of this Outbox"):
        Outbox(after_commit=world.pool, broker={"other": world.broker})
    with pytest.raises(ConfigError, match="several sinks"):
        Outbox(sinks=("a", "b"), after_commit=world.pool, broker=world.broker)
    with pytest.raises(ConfigError, match="no adapter"):
        Outbox(after_commit=world.pool, broker="carrier://pigeon")
    with pytest.raises(ConfigError, match="after_commit must be"):
        Outbox(after_commit=42)
    with pytest.raises(ConfigError, match="limit"):
        Optimistic(limit=0)
    with pytest.raises(ConfigError, match="above zero"):
        Optimistic(most=0)
    assert issubclass(MissingDependency, ImportError)


# ── Mutations: each rule taken out once ───────────────────────────────────────────────────────────

LOOK = "ORDER BY o.id LIMIT 1) IS NULL"
LEVEL = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"


async def overtaken(world: World, *, settled_to: int = 0) -> bool:
    """Whether an event is reserved behind a live one that its key wrote before it."""
    async with world.pool.acquire() as connection, connection.transaction():
        await Outbox().add(connection, placed("first"))
    await set_settled(world, settled_to)
    return await world.add(world.outbox(), placed("second")) == ["optimistic"]


async def test_mutation_without_the_look_a_key_is_overtaken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await overtaken(world)
    blind = altered("optimistic/reserve_one", LOOK, "ORDER BY o.id LIMIT 1) IS NOT DISTINCT FROM NULL OR true")
    monkeypatch.setattr(write, "query", blind)
    await world.pool.execute("TRUNCATE oncommit.outbox")
    assert await overtaken(world)


async def test_the_look_relies_on_settled_to(world: World) -> None:
    """Nothing may be live at settled_to or below: whoever writes it there has to see to it."""
    assert not await overtaken(world)
    await world.pool.execute("TRUNCATE oncommit.outbox")
    assert await overtaken(world, settled_to=3)


async def stale_snapshot(world: World) -> list[str]:
    """Two writers of a key exclude each other; the second has taken its snapshot before the first commits."""
    await world.pool.execute("INSERT INTO thing VALUES ('k')")
    outbox = world.outbox()
    async with outbox.transaction(world.pool) as second:
        await second.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await second.fetch("SELECT 1 FROM thing")
        async with world.pool.acquire() as first, first.transaction():
            await Outbox().add(first, placed("first"))
        await outbox.add(second, placed("second"))
        return await world.states(second)


async def test_mutation_above_read_committed_the_look_is_blind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await stale_snapshot(world) == ["pending"]
    await world.pool.execute("TRUNCATE oncommit.outbox, thing")
    monkeypatch.setattr(write, "query", altered("optimistic/reserve_one", LEVEL, "true"))
    assert await stale_snapshot(world) == ["optimistic"]


async def second_of_one_call(world: World) -> list[str]:
    """Two transactions add the same known event; the second adds another of its key in the same call."""
    known, behind = placed("known", id=uuid4()), placed("behind")
    outbox = world.outbox()
    async with world.pool.acquire() as first:
        transaction = first.transaction()
        await transaction.start()
        await Outbox().add(first, known)
        adding = asyncio.create_task(world.add(outbox, known, behind))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await until(world.pool, waits, 1)
        await transaction.commit()
        return await adding


async def test_behind_an_event_that_somebody_else_just_wrote_nothing_is_reserved(world: World) -> None:
    """O-known: the insert waits for the other with its snapshot taken, and leaves that one out."""
    assert await second_of_one_call(world) == ["pending", "pending"]


async def test_mutation_with_known_ids_reserved_it_would_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "may_be_reserved", lambda prepared, _known: not any(prepared.times))
    assert await second_of_one_call(world) == ["pending", "optimistic"]
