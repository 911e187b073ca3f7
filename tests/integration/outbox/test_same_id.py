"""W3: adding an event again changes nothing, wherever it lies and whoever is writing it at this moment."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4, uuid5

import asyncpg
import psycopg
import pytest

from oncommit import Event, Outbox
from oncommit.testing.servers import Database
from tests.integration.outbox.apart import PATIENCE, Apart
from tests.integration.outbox.observer import DELIVER, Observer
from tests.integration.outbox.writers import Writer

OUTBOX = Outbox()
TOMORROW = timedelta(days=1)
MOVE = """
    WITH due AS (DELETE FROM oncommit.outbox_delayed WHERE event_id = $1 RETURNING *)
    INSERT INTO oncommit.outbox (event_id, event_type) SELECT event_id, event_type FROM due
    ON CONFLICT (event_id) DO NOTHING
"""
EVERYWHERE = """
    SELECT count(*)
    FROM (
        SELECT event_id FROM oncommit.outbox UNION ALL SELECT event_id FROM oncommit.outbox_delayed
        UNION ALL SELECT event_id FROM oncommit.outbox_archive UNION ALL SELECT event_id FROM oncommit.dead_letter
    ) AS e
    WHERE event_id = %s
"""


def commit(writer: Writer, *events: Event[Any]) -> tuple[UUID, ...]:
    writer.begin()
    added = writer.add(OUTBOX, *events)
    writer.commit()
    return added


def everywhere(observer: Observer, event_id: UUID) -> int:
    """How many rows of it there are, in all tables."""
    return int(observer.value(EVERYWHERE, event_id))


@pytest.mark.parametrize("given", [True, False], ids=["given", "made"])
def test_live_delivered_dead_delayed(writer: Writer, observer: Observer, given: bool) -> None:
    event = Event("order.placed", id=uuid4()) if given else Event("order.placed")
    assert commit(writer, event) == (event.id,)
    assert commit(writer, event) == ()  # live
    observer.deliver()
    assert commit(writer, event) == ()  # delivered
    assert everywhere(observer, event.id) == 1

    event = Event("order.placed", id=uuid4()) if given else Event("order.placed")
    commit(writer, event)
    observer.bury()
    assert commit(writer, event) == ()  # dead
    assert everywhere(observer, event.id) == 1

    moment = datetime.now(UTC) + TOMORROW
    event = Event("order.late", id=uuid4(), not_before=moment) if given else Event("order.late", not_before=moment)
    assert commit(writer, event) == (event.id,)
    assert commit(writer, event) == ()  # delayed
    assert everywhere(observer, event.id) == 1


def test_the_same_id_with_another_time_is_still_the_same_event(writer: Writer, observer: Observer) -> None:
    now, later = (
        Event("order.placed", id=uuid4(), not_before=moment) for moment in (None, datetime.now(UTC) + TOMORROW)
    )
    assert commit(writer, now) == (now.id,)
    assert commit(writer, Event("order.placed", id=now.id, not_before=later.not_before)) == ()
    assert commit(writer, later) == (later.id,)
    assert commit(writer, Event("order.placed", id=later.id)) == ()
    observer.deliver()
    assert commit(writer, Event("order.placed", id=now.id, not_before=later.not_before)) == ()
    assert (everywhere(observer, now.id), everywhere(observer, later.id)) == (1, 1)


def test_only_the_new_ones_of_a_call_are_written_and_named(writer: Writer, observer: Observer) -> None:
    moment = datetime.now(UTC) + TOMORROW
    live, sent, late = Event("a", id=uuid4()), Event("a", id=uuid4()), Event("a", id=uuid4(), not_before=moment)
    commit(writer, sent)
    observer.deliver()
    commit(writer, live, late)
    one, two, three = Event("a", id=uuid4()), Event("a"), Event("a", not_before=moment)
    assert commit(writer, sent, one, late, three, live, two) == (one.id, three.id, two.id)
    assert observer.live() == [live.id, one.id, two.id]


def test_twice_in_one_transaction(writer: Writer, observer: Observer) -> None:
    event = Event("order.placed", id=uuid4())
    writer.begin()
    assert writer.add(OUTBOX, event) == (event.id,)
    assert writer.add(OUTBOX, event) == ()
    writer.commit()
    assert observer.live() == [event.id]


def test_what_is_written_wins_over_what_comes_later(writer: Writer, observer: Observer) -> None:
    event = Event("order.placed", id=uuid4(), payload={"total": 1})
    commit(writer, event)
    commit(writer, Event("order.changed", id=event.id, payload={"total": 2}))
    assert observer.value("SELECT event_type || payload::text FROM oncommit.outbox") == 'order.placed{"total":1}'


# -- Somebody else is at it


def test_the_second_waits_for_the_first_and_writes_nothing_where_that_commits(
    writer: Writer, other: Apart, observer: Observer
) -> None:
    event = Event("order.placed", id=uuid4())
    writer.begin()
    assert writer.add(OUTBOX, event) == (event.id,)
    other.do(other.writer.begin)
    adding = other.start_adding(observer, OUTBOX, event)
    writer.commit()
    assert adding.result(PATIENCE) == ()
    assert other.do(other.writer.run, "SELECT 1")[0][0] == 1  # its transaction goes on
    other.do(other.writer.commit)
    assert observer.live() == [event.id]


def test_the_second_writes_where_the_first_rolls_back(writer: Writer, other: Apart, observer: Observer) -> None:
    event = Event("order.placed", id=uuid4())
    writer.begin()
    writer.add(OUTBOX, event)
    other.do(other.writer.begin)
    adding = other.start_adding(observer, OUTBOX, event)
    writer.rollback()
    assert adding.result(PATIENCE) == (event.id,)
    other.do(other.writer.commit)
    assert observer.live() == [event.id]


def test_the_second_writes_where_the_firsts_connection_is_killed(
    writer: Writer, other: Apart, observer: Observer
) -> None:
    event = Event("order.placed", id=uuid4())
    writer.begin()
    writer.add(OUTBOX, event)
    other.do(other.writer.begin)
    adding = other.start_adding(observer, OUTBOX, event)
    observer.kill(writer.pid())
    assert adding.result(PATIENCE) == (event.id,)
    other.do(other.writer.commit)
    writer.reconnect()
    assert observer.live() == [event.id]


def test_delivered_while_the_add_waits_for_the_delivery(writer: Writer, other: Apart, observer: Observer) -> None:
    """The relay's move is open when the insert meets the row: it waits, inserts, looks, and takes its row back."""
    event = Event("order.placed", id=uuid4())
    commit(writer, event)
    other.do(other.writer.begin)
    with observer.connection.transaction():
        observer.deliver()
        adding = other.start(other.writer.add, OUTBOX, event)
        with Observer(writer.dsn) as looking:
            looking.wait_until_blocked(other.pid, until=adding.done)
    assert adding.result(PATIENCE) == ()
    other.do(other.writer.commit)
    assert observer.live() == []
    assert everywhere(observer, event.id) == 1


async def test_moved_when_due_while_it_is_added_again(any_shop: Database) -> None:
    """A delayed event becomes live in one statement. Whoever comes first, the other waits, and one row is left."""
    adder, mover = [await asyncpg.connect(any_shop.dsn) for _ in range(2)]
    with Observer(any_shop.dsn) as observer:
        for adder_first in (True, False):
            event = Event("order.late", id=uuid4(), not_before=datetime.now(UTC) + TOMORROW)
            again = Event("order.late", id=event.id)
            async with adder.transaction():
                await OUTBOX.add(adder, event)
            ours, theirs = adder.transaction(), mover.transaction()
            await ours.start()
            await theirs.start()
            if adder_first:
                assert await OUTBOX.add(adder, again) == ()
                moving = asyncio.ensure_future(mover.execute(MOVE, event.id))
                await asyncio.to_thread(observer.wait_until_blocked, mover.get_server_pid(), until=moving.done)
                await ours.commit()
                await moving
                await theirs.commit()
            else:
                await mover.execute(MOVE, event.id)
                adding = asyncio.ensure_future(OUTBOX.add(adder, again))
                await asyncio.to_thread(observer.wait_until_blocked, adder.get_server_pid(), until=adding.done)
                await theirs.commit()
                assert await adding == ()
                await ours.commit()
            assert observer.live()[-1] == event.id
            assert everywhere(observer, event.id) == 1
    for connection in (adder, mover):
        await connection.close()


# -- Above read committed


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_duplicate_that_the_snapshot_cannot_see_is_a_serialization_failure(
    any_shop: Database, isolation: str
) -> None:
    """Of our own tree it is not: the application's retry loop has to know it."""
    mine, theirs = [await asyncpg.connect(any_shop.dsn) for _ in range(2)]
    event = Event("order.placed", id=uuid4())

    async def add_behind(meanwhile: Callable[[], Awaitable[object]]) -> None:
        """In a transaction whose snapshot is older than what happens meanwhile."""
        async with mine.transaction(isolation=isolation):
            await mine.fetch("SELECT * FROM orders")
            await meanwhile()
            await OUTBOX.add(mine, event)

    async def they_add() -> None:
        async with theirs.transaction():
            await OUTBOX.add(theirs, event)

    with pytest.raises(asyncpg.SerializationError):
        await add_behind(they_add)
    with pytest.raises(asyncpg.SerializationError):  # live in the snapshot, delivered since
        await add_behind(lambda: theirs.execute(DELIVER))
    with Observer(any_shop.dsn) as observer:
        # Delivered before the snapshot: found as always.
        async with mine.transaction(isolation=isolation):
            assert await OUTBOX.add(mine, event) == ()
        assert everywhere(observer, event.id) == 1
    for connection in (mine, theirs):
        await connection.close()


async def test_what_came_and_went_since_the_snapshot_is_added_again(any_shop: Database) -> None:
    """The limit that take_back.sql tells of; under read committed the same is a no-op."""
    mine, theirs = [await asyncpg.connect(any_shop.dsn) for _ in range(2)]
    for isolation, seen in (("repeatable_read", False), ("read_committed", True)):
        event = Event("order.placed", id=uuid4())
        async with mine.transaction(isolation=isolation):
            await mine.fetch("SELECT * FROM orders")
            async with theirs.transaction():
                await OUTBOX.add(theirs, event)
            with Observer(any_shop.dsn) as observer:
                observer.deliver()
            assert await OUTBOX.add(mine, event) == (() if seen else (event.id,))
    for connection in (mine, theirs):
        await connection.close()


# -- Who knows an id


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event)), lambda event: Event("x", id=event.id)],
    ids=["copy", "deepcopy", "pickle", "id"],
)
def test_a_copy_is_the_same_event(
    shop: Database, observer: Observer, again: Callable[[Event[Any]], Event[Any]]
) -> None:
    event: Event[Any] = Event("order.placed")
    twin = again(event)  # made before anything was offered to a database
    with psycopg.connect(shop.dsn) as connection:
        OUTBOX.add(connection, event)
    observer.deliver()
    with psycopg.connect(shop.dsn) as connection:
        assert OUTBOX.add(connection, twin) == ()
    assert observer.live() == []


async def test_two_calls_made_before_the_first_was_awaited(shop: Database, observer: Observer) -> None:
    first, second = [await asyncpg.connect(shop.dsn) for _ in range(2)]
    event = Event("order.placed")
    async with second.transaction():
        async with first.transaction():
            calls = [OUTBOX.add(connection, event) for connection in (first, second)]
            assert await calls[0] == (event.id,)
        observer.deliver()
        assert await calls[1] == ()
    assert observer.live() == []
    for connection in (first, second):
        await connection.close()


def test_an_id_of_the_callers_own_making(writer: Writer, observer: Observer) -> None:
    order = uuid5(UUID(int=0), "order 42")
    assert commit(writer, Event("order.placed", id=order)) == (order,)
    assert commit(writer, Event("order.placed", id=order)) == ()
    assert observer.live() == [order]


def test_at_its_very_time_an_event_may_stand_in_both_tables(shop: Database, observer: Observer) -> None:
    """Two open transactions, one before the moment and one after: once in each table. add_timed.sql says who looks."""
    event = Event("order.late", not_before=datetime.now(UTC) + TOMORROW)
    with psycopg.connect(shop.dsn) as before, psycopg.connect(shop.dsn) as after:
        OUTBOX.add(before, event)
        # The same id when its time has come, without waiting a day for it.
        OUTBOX.add(after, Event("order.late", id=event.id, not_before=datetime.now(UTC) - TOMORROW))
    assert everywhere(observer, event.id) == 2
    # From then on it is known in both.
    with psycopg.connect(shop.dsn) as connection:
        assert OUTBOX.add(connection, event) == ()
        assert OUTBOX.add(connection, Event("order.late", id=event.id)) == ()
    assert everywhere(observer, event.id) == 2
