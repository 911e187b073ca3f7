"""W8: with strict order, the order of ids is the order of commits; without it, nobody waits for anybody."""

from __future__ import annotations

import asyncio
import itertools
from uuid import UUID

import asyncpg
import psycopg
import pytest

from oncommit import Event, Outbox
from oncommit.outbox.write import MOST_KEY_LOCKS
from oncommit.testing.servers import Database
from tests.integration.outbox.apart import PATIENCE, Apart
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import Writer

STRICT, LOOSE = Outbox(strict_order=True), Outbox()


def of(key: str) -> Event[None]:
    return Event("order.changed", aggregate=("order", key))


@pytest.fixture(autouse=True)
def tables_seen(shop: Database) -> None:
    """So that nothing else is asked in between."""
    with psycopg.connect(shop.dsn) as connection:
        for outbox in (STRICT, LOOSE):
            outbox.add(connection)


def test_the_second_writer_of_a_key_waits_for_the_firsts_commit(
    writer: Writer, other: Apart, observer: Observer
) -> None:
    writer.begin()
    first = writer.add(STRICT, of("a"))
    other.do(other.writer.begin)
    adding = other.start_adding(observer, STRICT, of("a"))
    writer.commit()
    second = adding.result(PATIENCE)
    other.do(other.writer.commit)
    assert observer.live() == [*first, *second]


def test_without_it_ids_do_not_follow_commits(writer: Writer, other: Apart, observer: Observer) -> None:
    """What strict order is for: the one who commits last has the smaller id."""
    writer.begin()
    first = writer.add(LOOSE, of("a"))
    other.do(other.writer.begin)
    second = other.do(other.writer.add, LOOSE, of("a"))
    other.do(other.writer.commit)
    assert observer.live() == [*second]
    writer.commit()
    assert observer.live() == [*first, *second]


def test_other_keys_and_no_keys_do_not_wait(writer: Writer, other: Apart, observer: Observer) -> None:
    writer.begin()
    writer.add(STRICT, of("a"), Event("alone"))
    other.do(other.writer.begin)
    other.do(other.writer.add, STRICT, of("b"), Event("alone"))
    other.do(other.writer.commit)
    writer.commit()
    assert len(observer.live()) == 4


def test_an_add_can_ask_for_it_or_go_without(writer: Writer, observer: Observer) -> None:
    held = "SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = %s"
    writer.begin()
    pid = writer.pid()
    writer.add(STRICT, of("a"), strict_order=False)
    writer.add(STRICT, Event("alone"))
    assert observer.value(held, pid) == 0
    writer.add(LOOSE, of("a"), strict_order=True)
    assert observer.value(held, pid) == 2  # the key, and the share in all keys
    writer.rollback()
    assert observer.value(held, pid) == 0


def test_a_savepoint_that_is_rolled_back_lets_go(writer: Writer, other: Apart, observer: Observer) -> None:
    writer.begin()
    writer.savepoint()
    writer.add(STRICT, of("a"))
    writer.rollback_to()
    other.do(other.writer.begin)
    second = other.do(other.writer.add, STRICT, of("a"))
    other.do(other.writer.commit)
    writer.commit()
    assert observer.live() == [*second]


async def test_ids_are_in_the_order_of_commits_under_load(any_shop: Database) -> None:
    """Each transaction notes, once it holds its key, the turn it has; commits are in that order, so ids must be."""
    turns = itertools.count()
    outbox = Outbox(strict_order=True)

    async def work(name: int) -> None:
        connection = await asyncpg.connect(any_shop.dsn)
        for _ in range(15):
            async with connection.transaction():
                await outbox.add(connection, event := of("a"), of(f"own {name}"))
                await connection.execute("INSERT INTO orders VALUES ($1, $2, 't')", event.id, f"{next(turns):05}")
        await connection.close()

    await asyncio.gather(*(work(name) for name in range(6)))
    with Observer(any_shop.dsn) as observer:
        commits = [event_id for (event_id,) in observer.rows("SELECT event_id FROM orders ORDER BY key")]
        ids = observer.rows("SELECT event_id FROM oncommit.outbox WHERE aggregate_id = 'a' ORDER BY id")
    assert [event_id for (event_id,) in ids] == commits
    assert len(commits) == 90


@pytest.mark.parametrize("count", [5, MOST_KEY_LOCKS + 1])
async def test_calls_with_the_same_keys_cannot_deadlock(shop: Database, count: int) -> None:
    """Locks are taken sorted, whatever the order of the events."""

    async def work(step: int) -> None:
        connection = await asyncpg.connect(shop.dsn)
        for _ in range(20):
            async with connection.transaction():
                await STRICT.add(connection, *[of(str(number)) for number in range(count)][::step])
        await connection.close()

    await asyncio.gather(*(work(step) for step in (1, -1, 1, -1)))


def test_many_keys_take_one_lock_and_all_writers_wait(writer: Writer, other: Apart, observer: Observer) -> None:
    """Ten thousand locks would use up the table that the whole server shares."""
    writer.begin()
    pid = writer.pid()
    many: tuple[UUID, ...] = writer.add(STRICT, *[of(str(number)) for number in range(10_000)])
    held = "SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = %s"
    assert observer.value(held, pid) == 1
    other.do(other.writer.begin)
    adding = other.start_adding(observer, STRICT, of("3"))
    writer.commit()
    later = adding.result(PATIENCE)
    other.do(other.writer.commit)
    assert observer.live() == [*many, *later]


def test_many_keys_wait_for_the_writer_of_one(writer: Writer, other: Apart, observer: Observer) -> None:
    writer.begin()
    first = writer.add(STRICT, of("3"))
    other.do(other.writer.begin)
    adding = other.start_adding(observer, STRICT, *[of(str(number)) for number in range(100)])
    writer.commit()
    many = adding.result(PATIENCE)
    other.do(other.writer.commit)
    assert observer.live() == [*first, *many]
