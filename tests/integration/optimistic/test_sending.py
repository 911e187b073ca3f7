"""What can go wrong between the commit and the settle, and what then becomes of the event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import pytest

from oncommit import Event
from oncommit.brokers.base import Message, Outcome
from oncommit.db.connection import driver_for
from oncommit.db.pools import runner_for
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishFailed, PublishRejected, TopicUnavailable
from oncommit.outbox import reservations, write
from oncommit.outbox.crew import POOL
from oncommit.outbox.reservations import Reservations, Reserved
from oncommit.outbox.rows import Limits, prepare
from oncommit.retry import Backoff
from oncommit.testing.brokers import FailingBroker
from oncommit.topics import TopicRules
from tests.integration.optimistic.tools import World, altered


def placed(name: str = "placed", key: str | None = "k", **more: object) -> Event:
    return Event(name, key=key, **more)


def refuse(*names: str, outcome: Outcome = None) -> Callable[[Message], Outcome]:
    wanted = {f"events.{name}" for name in names}
    return lambda message: (outcome or PublishFailed("no")) if message.topic in wanted else None


# ── The broker ────────────────────────────────────────────────────────────────────────────────────


async def test_none_goes_after_a_failure_of_its_key(world: World) -> None:
    world.broker.judge = refuse("two")
    await world.add(world.outbox(), placed("one"), placed("two"), placed("three"), placed("other", "x"))
    await world.finished(4)
    assert world.arrived == ["one", "other"]
    assert sorted(map(str, world.reasons)) == ["None", "None", "refused", "refused"]
    assert await world.archived() == ["one", "other"]
    await world.until_states("pending", "pending")
    assert await world.rows("SELECT sum(attempts), count(available_at) FROM oncommit.outbox") == [(0, 0)]


class Loose(FailingBroker):
    """Keeps no chain: the mutation of the rule."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        return [
            outcome for message in batch for outcome in await super(Loose, self).publish([message], timeout=timeout)
        ]


async def test_mutation_without_the_chain_the_later_overtakes(world: World) -> None:
    world.broker = Loose(refuse("two"))
    await world.add(world.outbox(), placed("one"), placed("two"), placed("three"))
    await world.finished(3)
    assert world.arrived == ["one", "three"]


async def test_what_cannot_be_made_a_message_holds_back_its_key_too(world: World) -> None:
    def topic(event: Any) -> str:
        return f"events.{event.type}" if event.type != "two" else 1 / 0  # type: ignore[return-value]  # it raises

    outbox = world.outbox(topics={"main": TopicRules(function=topic)})
    await world.add(outbox, placed("one"), placed("two"), placed("three"))
    await world.finished(3)
    assert world.arrived == ["one"]
    await world.until_states("pending", "pending")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (PublishRejected("too large"), "rejected"),
        (TopicUnavailable("no stream"), "topic"),
        (PublishFailed("no"), "refused"),
    ],
)
async def test_what_the_broker_refuses_is_handed_back(world: World, outcome: Outcome, reason: str) -> None:
    world.broker.judge = refuse("bad", outcome=outcome)
    outbox = world.outbox()
    await world.add(outbox, placed("bad"))
    await world.finished(1)
    assert world.reasons == [reason]
    await world.until_states("pending")
    assert await world.add(outbox, placed("good", "x")) == ["optimistic"]  # nothing wrong with the broker
    await world.finished(2)
    assert world.arrived == ["good"]


async def test_a_broker_that_is_gone_costs_one_probe_now_and_then(world: World) -> None:
    world.broker.down = True
    outbox = world.outbox(circuit=Backoff(base=0.8, cap=0.8))
    assert await world.add(outbox, placed("lost")) == ["optimistic"]
    await world.finished(1)
    assert world.reasons == ["unavailable"]
    await world.until_states("pending")
    assert await world.add(outbox, placed("next", "x")) == ["pending"]
    world.broker.down = False
    await world.may_probe(outbox)
    assert await world.add(outbox, placed("behind")) == ["pending"]  # its lane is not empty, so it is no probe
    assert await world.add(outbox, placed("probe", "p")) == ["optimistic"]
    await world.finished(2)
    assert world.reasons[1] is None
    await world.pool.execute("TRUNCATE oncommit.outbox")
    assert await world.add(outbox, placed("again", "y")) == ["optimistic"]


async def test_only_one_add_probes(world: World) -> None:
    world.broker.down = True
    outbox = world.outbox()
    await world.add(outbox, placed("lost"))
    await world.finished(1)
    await world.may_probe(outbox)
    states = [await world.add(outbox, placed("probe", f"p{number}")) for number in range(5)]
    assert states.count(["optimistic"]) <= 2
    assert states[0] == ["optimistic"]


async def test_a_silent_broker_holds_up_no_commit_and_opens_the_circuit(world: World) -> None:
    world.broker.hold()
    outbox = world.outbox(limit=0.4)
    began = time.monotonic()
    await world.add(outbox, placed("silent"))
    assert time.monotonic() - began < 0.3
    await world.finished(1)
    assert world.reasons == ["timeout"]
    assert 0.2 < world.done[0].seconds < 1
    assert await world.add(outbox, placed("next", "x")) == ["pending"]
    world.broker.release()
    await world.until_states("pending", "pending")  # handed back, since there was time for it


async def test_what_was_acknowledged_late_is_settled_all_the_same(world: World) -> None:
    """Of the limit something is kept for the settle: a chain that is cut off half-way is no duplicate."""
    broker = OneByOne()
    world.broker = broker
    outbox = world.outbox(limit=1.0)
    await world.add(outbox, *[placed(f"n{number}") for number in range(30)])
    await world.finished(30)
    took = len(broker.messages)
    assert 3 < took < 30
    assert world.reasons.count(None) == took
    assert world.reasons.count("timeout") + world.reasons.count("refused") == 30 - took
    assert await world.archived() == world.arrived


async def test_a_row_with_little_time_left_takes_nobody_along(world: World) -> None:
    outbox = world.outbox(limit=2.0)
    async with outbox.transaction(world.pool) as first, outbox.transaction(world.pool) as second:
        await outbox.add(first, placed("old", "old"))
        await first.execute("UPDATE oncommit.outbox SET available_at = oncommit.now() + interval '0.1 second'")
        await outbox.add(second, placed("young", "young"))
    await world.finished(2)
    assert sorted(zip((sent.event_type for sent in world.done), world.reasons, strict=True)) == [
        ("old", "lapsed"), ("young", None),
    ]  # fmt: skip


class OneByOne(FailingBroker):
    """Takes 0.05 s for each message, and keeps to its time limit."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [NotAttempted("behind")] * len(batch)
        ends = time.monotonic() + timeout
        for index, message in enumerate(batch):
            await asyncio.sleep(0.05)
            if time.monotonic() > ends:
                outcomes[index] = PublishFailed("no answer in time")
                break
            outcomes[index] = None
            self.messages.append(message)
        return outcomes


class Broken(FailingBroker):
    async def open(self) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_broker_with_a_bug_opens_the_circuit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    outbox = world.outbox(broker=Broken(), circuit=Backoff(base=5, cap=5))
    await world.add(outbox, placed("one"))
    await world.finished(1)
    assert world.reasons == ["unavailable"]
    assert "cannot be used" in caplog.text
    assert await world.add(outbox, placed("two", "x")) == ["pending"]


class SlowToOpen(FailingBroker):
    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.opening = 0

    async def open(self) -> None:
        self.opening += 1
        await self.opened.wait()


async def test_a_broker_that_is_slow_to_open_goes_on_opening(world: World) -> None:
    broker = SlowToOpen()
    outbox = world.outbox(broker=broker, limit=0.3)
    await world.add(outbox, placed("early"))
    await world.finished(1)
    assert world.reasons == ["unavailable"]
    await world.may_probe(outbox)
    await world.add(outbox, placed("probe", "p"))
    await world.finished(2)
    assert broker.opening == 1
    broker.opened.set()
    await world.may_probe(outbox)
    await world.add(outbox, placed("late", "x"))
    await broker.wait_for(1)


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────


async def test_a_transaction_longer_than_the_limit_leaves_it_to_the_relay(world: World) -> None:
    outbox = world.outbox(limit=0.1)
    async with outbox.transaction(world.pool) as connection:
        await outbox.add(connection, placed("late"))
        await connection.execute("SELECT pg_sleep(0.2)")
    await world.finished(1)
    assert world.reasons == ["lapsed"]
    assert world.broker.messages == []
    assert await world.states() == ["optimistic"]


async def test_an_exhausted_pool_costs_the_event_its_chance_and_nobody_else(world: World) -> None:
    small = await asyncpg.create_pool(world.dsn, min_size=1, max_size=1)
    outbox = world.outbox(pool=small, limit=0.3)
    async with small.acquire():
        await world.add(outbox, placed("starved"))
        await world.finished(1)
        assert world.reasons == ["database"]
        assert await world.add(outbox, placed("next", "x")) == ["pending"]
    await outbox.close()
    await small.close()


async def test_a_pool_that_was_closed_first_harms_nobody(world: World) -> None:
    small = await asyncpg.create_pool(world.dsn, min_size=1, max_size=1)
    outbox = world.outbox(pool=small)
    await small.close()
    await world.add(outbox, placed("left"))
    await world.finished(1)
    assert world.reasons == ["database"]
    assert await world.states() == ["optimistic"]


async def test_a_settle_that_fails_means_a_second_delivery_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        reservations, "query", altered("optimistic/settle", 'oncommit".outbox o', 'oncommit".nothing o')
    )
    outbox = world.outbox(circuit=Backoff(base=0.2, cap=5))
    with caplog.at_level(logging.WARNING):
        await world.add(outbox, placed("twice"))
        await world.finished(1)
    assert world.reasons == ["unsettled"]
    assert await world.states() == ["optimistic"]
    assert "sends them again" in caplog.text
    # It may be a right that is missing: nothing is sent twice again and again, and a read that works is no cure.
    for number in range(3):
        assert await world.add(outbox, placed("next", f"x{number}")) == ["pending"]
        await world.pool.execute("TRUNCATE oncommit.outbox")
        await world.may_probe(outbox)
        assert await world.add(outbox, placed("probe", f"y{number}")) == ["optimistic"]
        await world.finished(number + 2)
    assert set(world.reasons) == {"unsettled"}
    assert outbox._sender is not None
    assert outbox._sender._circuits[POOL]._failures == 4


async def test_without_a_partition_of_today_events_leave_without_a_copy(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = await world.rows(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'oncommit.outbox_archive'::regclass"
    )
    for (name,) in partitions:
        await world.pool.execute(f"ALTER TABLE oncommit.outbox_archive DETACH PARTITION {name}")
    try:
        with caplog.at_level(logging.WARNING):
            await world.add(world.outbox(), placed())
            await world.finished(1)
        assert world.reasons == [None]
        assert (await world.states(), await world.archived()) == ([], [])
        assert "no partition of today" in caplog.text
    finally:
        for (name,) in partitions:
            await world.pool.execute(f"DROP TABLE {name}")
        days = (
            "SELECT oncommit.make_archive_partition((now() AT TIME ZONE 'UTC')::date + n) FROM generate_series(0, 7) n"
        )
        await world.pool.execute(days)


async def test_archive_none(world: World) -> None:
    await world.add(world.outbox(archive=False), placed())
    await world.finished(1)
    assert (await world.states(), await world.archived()) == ([], [])


# ── The fence (O-lapse) ───────────────────────────────────────────────────────────────────────────


async def reserved(world: World, limit: float = 30.0) -> tuple[Reservations, Reserved]:
    """An event that its sender has read, and holds in its hand."""
    event = placed()
    prepared = prepare([event], Limits(frozenset({"main"}), 1000))
    async with world.pool.acquire() as connection, connection.transaction():
        work = write.add(prepared, "oncommit", strict_order=False, reserving=(wish := write.Reserving(limit, 0)))
        await driver_for(connection).run(connection, work, "oncommit")
    assert wish.ids == [event.id]
    mine = Reservations(runner_for(world.pool), "oncommit", archive=True)
    found = await mine.read([event.id], kept=0.1, timeout=5)
    assert len(found.rows) == 1
    return mine, found


LAPSED = "UPDATE oncommit.outbox SET available_at = oncommit.now() - interval '1 second'"
FAILED = (
    "UPDATE oncommit.outbox SET state = 'pending', available_at = NULL;"
    "UPDATE oncommit.outbox SET state = 'failed', attempts = 1, available_at = oncommit.now() + interval '1 minute'"
)


@pytest.mark.parametrize("meanwhile", [LAPSED, FAILED], ids=["lapsed", "failed by the relay"])
@pytest.mark.parametrize("act", ["settle", "hand_back"])
async def test_a_late_sender_changes_nothing(world: World, meanwhile: str, act: str) -> None:
    mine, found = await reserved(world)
    await world.pool.execute(meanwhile)
    before = await world.rows("SELECT * FROM oncommit.outbox")
    if act == "settle":
        assert await mine.settle(found.rows, [0.0], timeout=5) == set()
    else:
        assert await mine.hand_back(found.rows, timeout=5) == set()
    assert await world.rows("SELECT * FROM oncommit.outbox") == before
    assert await world.archived() == []


@pytest.mark.parametrize(
    ("meanwhile", "fence"),
    [(LAPSED, 'AND o.available_at > "oncommit".now()'), (FAILED, "o.state = 'optimistic' AND ")],
    ids=["lapsed", "failed by the relay"],
)
async def test_mutation_without_the_fence_it_does(
    world: World, meanwhile: str, fence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, found = await reserved(world)
    await world.pool.execute(meanwhile)
    monkeypatch.setattr(reservations, "query", altered("optimistic/settle", fence, ""))
    assert len(await mine.settle(found.rows, [0.0], timeout=5)) == 1


async def test_what_is_left_counts_from_before_the_question(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-sending: the clock jumps by 10 seconds while the answer is on its way."""
    times = iter([1000.0, 1010.0])
    monkeypatch.setattr(reservations, "boottime", lambda: next(times))
    _, found = await reserved(world, limit=30.0)
    assert 1028 < found.deadline <= 1030


async def test_a_standby_shows_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, found = await reserved(world)
    monkeypatch.setattr(reservations, "query", altered("optimistic/read", "pg_is_in_recovery()", "true"))
    assert (await mine.read([found.rows[0].id], kept=0.1, timeout=5)).rows == []


# ── Ending, load ──────────────────────────────────────────────────────────────────────────────────


async def test_close_lets_sends_end(world: World) -> None:
    outbox = world.outbox()
    for number in range(20):
        await world.add(outbox, placed(f"n{number}", f"k{number}"))
    await outbox.close()
    assert len(world.broker.messages) == sum(reason is None for reason in world.reasons)
    assert outbox.optimistic is not None
    assert outbox.optimistic.successes + outbox.optimistic.skipped == 20
    assert await world.add(outbox, placed("after", "x")) == ["pending"]


async def test_close_cuts_off_what_hangs(world: World) -> None:
    world.broker.hold()
    outbox = world.outbox(limit=0.5)
    await world.add(outbox, placed())
    await world.broker.publishing.wait()
    async with asyncio.timeout(3):
        await outbox.close()
    assert world.reasons in (["stopped"], ["timeout"])
    assert {task.get_name() for task in asyncio.all_tasks() if "oncommit" in task.get_name()} == set()


async def test_many_requests_at_once(world: World) -> None:
    """Each its own transaction; of the pool no more than a few connections are taken."""
    outbox = world.outbox()
    keys = [f"k{number % 25}" for number in range(200)]
    locks = {key: asyncio.Lock() for key in keys}
    written: dict[str, list[str]] = {key: [] for key in keys}

    async def request(number: int, key: str) -> None:
        async with locks[key]:
            await world.add(outbox, placed(f"n{number}", key))
            written[key].append(f"n{number}")

    await asyncio.gather(*(request(number, key) for number, key in enumerate(keys)))
    await outbox.close()
    arrived = world.arrived
    assert len(arrived) == len(set(arrived))
    for names in written.values():
        mine = [name for name in arrived if name in names]
        assert mine == [name for name in names if name in mine]
    left = [name for (name,) in await world.rows("SELECT event_type FROM oncommit.outbox")]
    assert sorted(left + arrived) == sorted(f"n{number}" for number in range(200))


async def test_large_payloads_are_left_to_the_relay_beyond_a_limit(world: World) -> None:
    outbox = world.outbox(bytes=10_000)
    assert await world.add(outbox, placed(payload="x" * 11_000)) == ["pending"]
    world.broker.hold()
    assert await world.add(outbox, placed("a", "a", payload="x" * 6_000)) == ["optimistic"]
    assert await world.add(outbox, placed("b", "b", payload="x" * 6_000)) == ["pending"]
    world.broker.release()
    await world.finished(1)
    assert await world.add(outbox, placed("c", "c", payload="x" * 6_000)) == ["optimistic"]


async def test_an_observer_that_fails_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    outbox = world.outbox()

    def fails(_sent: object) -> None:
        raise RuntimeError("no luck")

    assert outbox._sender is not None
    outbox._sender._observer = fails
    await world.add(outbox, placed())
    await world.broker.wait_for(1)
    await outbox.close()
    assert "no luck" in caplog.text
    assert await world.states() == []


async def test_a_lost_answer_is_no_success(world: World) -> None:
    world.broker.judge = refuse("gone", outcome=BrokerUnavailable("the connection was lost before the answer"))
    await world.add(world.outbox(), placed("gone"))
    await world.finished(1)
    assert world.reasons == ["unavailable"]
