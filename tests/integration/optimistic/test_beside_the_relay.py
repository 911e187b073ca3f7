"""A sender and a relay on one table: reserved, handed back, lapsed, and how far a lane is empty."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from oncommit import Event, Outbox
from oncommit.brokers.row import FetchedRow
from oncommit.errors import PublishFailed
from oncommit.relay import ordering
from oncommit.relay import store as store_module
from oncommit.relay.relay import Relay
from oncommit.relay.store import Store
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from tests.integration.optimistic.tools import World, altered
from tests.integration.relay.tools import QUICK, add, register, until


def placed(name: str = "placed", key: str | None = "k", **more: object) -> Event:
    return Event(name, key=key, **more)


@asynccontextmanager
async def relaying(world: World, broker: RecordingBroker) -> AsyncIterator[Relay]:
    """A relay that has its lanes."""
    async with Relay(world.dsn, {"main": broker}, settings=QUICK) as relay:
        await until(world.pool, "SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL", 72)
        yield relay


def names(broker: RecordingBroker) -> list[str]:
    return [message.topic.removeprefix("events.") for message in broker.messages]


async def test_the_relay_leaves_a_reserved_event_alone_and_holds_its_key(world: World) -> None:
    """It sees both; the sender has the first in its hand."""
    relays = FailingBroker()
    world.broker.hold()
    outbox = world.outbox(limit=20.0)
    async with relaying(world, relays):
        await world.add(outbox, placed("one"))
        await world.broker.publishing.wait()
        await world.add(outbox, placed("two"))
        await world.add(outbox, placed("other", "x"))  # reserved as well, behind the one that hangs
        await add(world.pool, "y", event_type="free")
        await relays.wait_for(1)
        assert names(relays) == ["free"]
        claimed = await world.rows("SELECT state FROM oncommit.events WHERE event_type IN ('one', 'other')")
        assert claimed == [("optimistic",)] * 2
        world.broker.release()
        await world.finished(2)
        await relays.wait_for(2)
        await world.until_states()
    assert names(relays) == ["free", "two"]
    assert world.arrived[0] == "one"
    assert sorted(await world.archived()) == ["free", "one", "other", "two"]


async def behind(world: World) -> float:
    """Seconds until an event goes that was left to the relay behind a reserved one, once that one is settled."""
    relays = FailingBroker()
    world.broker.hold()
    outbox = world.outbox(limit=6.0)
    async with relaying(world, relays) as relay:
        await world.add(outbox, placed("one"))
        await world.broker.publishing.wait()
        await world.add(outbox, placed("two"))
        lanes = relay.sinks["main"].lanes
        async with asyncio.timeout(5):  # the relay has seen both
            while not any(  # noqa: ASYNC110 - the relay tells nobody
                block.followed for lane in lanes.owned.values() for block in lane.order.blocked.values()
            ):
                await asyncio.sleep(0.005)
        world.broker.release()
        began = time.monotonic()
        await world.finished(1)
        await relays.wait_for(1)
        return time.monotonic() - began


async def test_the_next_of_the_key_goes_soon_after_the_reserved_one(world: World) -> None:
    assert await behind(world) < 1.5


async def test_mutation_without_looking_again_it_waits_for_the_end_of_the_reservation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchedRow, "is_reserved", False)
    assert await behind(world) > 3


async def test_what_is_handed_back_goes_soon(world: World) -> None:
    relays = FailingBroker()
    world.broker.judge = lambda _message: PublishFailed("no")
    outbox = world.outbox(limit=30.0)
    async with relaying(world, relays):
        for number in range(10):
            await world.add(outbox, placed(f"n{number}"))
        async with asyncio.timeout(10):
            await relays.wait_for(10)
        await world.until_states()
    assert names(relays) == [f"n{number}" for number in range(10)]


async def test_a_lapsed_reservation_is_taken_over(world: World) -> None:
    """The sender died right after the commit: nobody has to repair anything."""
    relays = FailingBroker()
    world.broker.hold()
    outbox = world.outbox(limit=0.4)
    async with relaying(world, relays):
        await world.add(outbox, placed("one"), placed("two"))
        await world.add(outbox, placed("three"))
        await relays.wait_for(3)
        await world.until_states()
        world.broker.release()
    assert names(relays) == ["one", "two", "three"]
    assert await world.archived() == ["one", "two", "three"]


async def test_a_lapsed_reservation_that_fails_is_tried_again(world: World) -> None:
    relays = FailingBroker(lambda _message: PublishFailed("no") if len(relays.refused) < 2 else None)
    world.broker.hold()
    outbox = world.outbox(limit=0.2)
    async with relaying(world, relays):
        await world.add(outbox, placed("one"), placed("two"))
        await relays.wait_for(2)
        await world.until_states()
    assert names(relays) == ["one", "two"]
    world.broker.release()


async def test_what_is_not_due_is_not_claimed(world: World) -> None:
    async with world.pool.acquire() as connection:
        store, _ = await register(connection)
        await store.make_lanes()
        lanes = {row.lane: row.epoch for row in await store.take_lanes(10.0, 64, urgent=False)}
        await add(connection, "k", state="pending")
        ((lane, place),) = await connection.fetch("SELECT lane, id FROM oncommit.outbox")
        await connection.execute(
            "UPDATE oncommit.outbox SET state = 'optimistic', available_at = oncommit.now() + interval '1 hour'"
        )
        window = [store_module.Window(lane, lanes[lane], 0, place, 10)]
        (row,) = await store.fetch(window, batch=1, **_budget(store))
        assert row.is_reserved
        assert await store.left_claims([lane]) == []
        assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_claim") == 0
        await connection.execute("UPDATE oncommit.outbox SET available_at = oncommit.now()")
        (row,) = await store.fetch(window, batch=2, **_budget(store))
        assert not row.is_reserved
        assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_claim") == 1


def _budget(_store: Store) -> dict[str, Any]:
    return {"budget": 10_000}


def test_a_row_that_has_failed_or_is_parked_is_not_looked_at_again() -> None:
    class Row:
        place, ordering_key = 1, "k"

        def __init__(self, wait: float, *, is_reserved: bool) -> None:
            self.wait, self.is_reserved = wait, is_reserved

    order = ordering.LaneOrder()
    order.admit([Row(3600.0, is_reserved=False)], 0.0)
    assert order.next_due() == 3600.0
    order = ordering.LaneOrder()
    looks = []
    now = 0.0
    while now < 2.0:
        order.admit([Row(2.0 - now, is_reserved=True)], now)
        now = order.next_due()
        looks.append(round(now, 2))
    assert looks == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0]


# ── Settled_to (O-settled) ────────────────────────────────────────────────────────────────────────


async def lanes_of(connection: asyncpg.Connection) -> tuple[Store, dict[int, int]]:
    store, _ = await register(connection)
    await store.make_lanes()
    return store, {row.lane: row.epoch for row in await store.take_lanes(10.0, 64, urgent=False)}


async def settled_to(world: World, lane: int) -> int:
    ((value,),) = await world.rows("SELECT settled_to FROM oncommit.outbox_lane WHERE lane = $1", lane)
    return int(value)


async def test_a_relay_notes_how_far_its_lanes_are_empty(world: World) -> None:
    relays = FailingBroker()
    async with relaying(world, relays):
        async with world.pool.acquire() as connection, connection.transaction():
            await Outbox().add(connection, *[placed(key=f"k{number}") for number in range(1500)])
        await relays.wait_for(1500)
        await world.until_states()
        await until(world.pool, "SELECT count(*) FROM oncommit.outbox_lane WHERE settled_to >= 1000", 72)
    assert await world.rows("SELECT max(settled_to) <= 1500 FROM oncommit.outbox_lane") == [(True,)]


async def test_it_goes_as_far_as_what_is_sure_and_ends_below_what_is_live(world: World) -> None:
    async with world.pool.acquire() as connection:
        store, lanes = await lanes_of(connection)
        await connection.execute("SELECT setval('oncommit.outbox_id_seq', 5000)")
        await add(connection, "k")
        ((lane, place),) = await connection.fetch("SELECT lane, id FROM oncommit.outbox")
        assert place == 5001
        assert len(await store.note_settled(lanes, sure=4000, noted=5001)) == 64
        assert await settled_to(world, lane) == 4000
        await store.note_settled(lanes, sure=9000, noted=9000)
        assert await settled_to(world, lane) == 5000
        assert await settled_to(world, (lane + 1) % 64) == 9000
        assert await store.note_settled(lanes, sure=9500, noted=9500) == []  # not worth a write


async def test_it_goes_back_where_the_sequence_has_fallen(world: World) -> None:
    async with world.pool.acquire() as connection:
        store, lanes = await lanes_of(connection)
        await store.note_settled(lanes, sure=9000, noted=9000)
        await add(connection, "k")
        ((lane,),) = await connection.fetch("SELECT lane FROM oncommit.outbox")
        await store.note_settled(lanes, sure=1, noted=1)
        assert await settled_to(world, lane) == 0


async def act_below_the_floor(world: World) -> int:
    """A replay puts a row back at its old place while a relay is noting how far the lane is empty."""
    async with world.pool.acquire() as relays, world.pool.acquire() as operator:
        store, lanes = await lanes_of(relays)
        await operator.execute("SELECT setval('oncommit.outbox_id_seq', 5000)")
        replay = operator.transaction()
        await replay.start()
        await operator.execute(
            "INSERT INTO oncommit.outbox (id, event_type, key) OVERRIDING SYSTEM VALUE VALUES (7, 'again', 'k')"
        )
        lane = await operator.fetchval("SELECT lane FROM oncommit.outbox")
        await operator.execute(
            "UPDATE oncommit.outbox_lane SET rescan = rescan + 1, settled_to = least(settled_to, 6) WHERE lane = $1",
            lane,
        )
        noting = asyncio.create_task(store.note_settled(lanes, sure=5000, noted=5000))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await until(world.pool, waits, 1)
        await replay.commit()
        await noting
        return await settled_to(world, lane)


async def test_an_act_below_the_floor_is_not_overlooked(world: World) -> None:
    assert await act_below_the_floor(world) < 7


async def test_mutation_without_the_rescan_that_was_seen_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = altered("relay/note_settled", "AND l.rescan = r.rescan AND l.settled_to = r.settled_to", "")
    monkeypatch.setattr(store_module, "query", blind)
    assert await act_below_the_floor(world) >= 7


async def two_looks(relay: Relay) -> None:
    """Until the relay has tended its lanes twice more."""
    loop = relay.sinks["main"]
    async with asyncio.timeout(10):
        for _ in range(2):
            last = loop._tended
            while loop._tended == last:  # noqa: ASYNC110 - the relay tells nobody
                await asyncio.sleep(0.01)


async def test_a_writer_that_has_not_committed_holds_it_down(world: World) -> None:
    """His row may still appear below; and the next of its key has to see it."""
    relays = FailingBroker()
    async with relaying(world, relays) as relay, world.pool.acquire() as slow:
        late = slow.transaction()
        await late.start()
        await Outbox().add(slow, placed("late"))
        async with world.pool.acquire() as connection, connection.transaction():
            await Outbox().add(connection, *[placed(key=f"k{number}") for number in range(1500)])
        await relays.wait_for(1500)
        await until(world.pool, "SELECT count(*) FROM oncommit.outbox", 0)
        await two_looks(relay)
        assert await world.rows("SELECT max(settled_to) FROM oncommit.outbox_lane") == [(0,)]
        await late.commit()
        await relays.wait_for(1501)
        await until(world.pool, "SELECT count(*) FROM oncommit.outbox_lane WHERE settled_to >= 1000", 72)
