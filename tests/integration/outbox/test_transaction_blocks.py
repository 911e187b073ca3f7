"""``outbox.transaction``: a transaction on a connection from a pool, with the hook behind its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from oncommit import Event, Outbox
from oncommit.errors import ConfigError, UnsupportedConnection
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer

Events = tuple[Event[Any], ...]
STRICT = "DROP TABLE IF EXISTS strict; CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
BREAK = "INSERT INTO strict VALUES (1), (1)"


class Block:
    """The same block over any pool; blocking ones run as they are."""

    def __init__(self, pool: Any, *, blocking: bool = False) -> None:
        self.pool = pool
        self.blocking = blocking

    async def run(self, outbox: Outbox, act: Callable[[Any, Callable[..., Any]], Awaitable[None]]) -> None:
        """``act`` gets the connection and a function that adds."""
        if self.blocking:
            with outbox.transaction(self.pool) as tx:

                async def add_now(*events: Event[Any]) -> Any:
                    return outbox.add(tx, *events)

                await act(tx, add_now)
            return
        async with outbox.transaction(self.pool) as tx:

            async def add(*events: Event[Any]) -> Any:
                return await outbox.add(tx, *events)

            await act(tx, add)

    async def sql(self, tx: Any, statement: str) -> None:
        """Run a statement in the block."""
        method = tx.exec_driver_sql if hasattr(tx, "exec_driver_sql") else tx.execute
        outcome = method(statement)
        if not self.blocking:
            await outcome


async def _asyncpg(dsn: str, _: str, stack: AsyncExitStack) -> Block:
    return Block(await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=1, max_size=2)))


async def _psycopg(dsn: str, _: str, stack: AsyncExitStack) -> Block:
    pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=2, open=False)
    return Block(stack.enter_context(pool), blocking=True)


async def _psycopg_autocommit(dsn: str, _: str, stack: AsyncExitStack) -> Block:
    pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=2, open=False, kwargs={"autocommit": True})
    return Block(stack.enter_context(pool), blocking=True)


async def _psycopg_async(dsn: str, _: str, stack: AsyncExitStack) -> Block:
    pool = psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False)
    return Block(await stack.enter_async_context(pool))


async def _engine(_: str, url: str, stack: AsyncExitStack) -> Block:
    engine = sqlalchemy.create_engine(url.format("psycopg"))
    stack.callback(engine.dispose)
    return Block(engine, blocking=True)


async def _async_engine(_: str, url: str, stack: AsyncExitStack) -> Block:
    engine = create_async_engine(url.format("asyncpg"))
    stack.push_async_callback(engine.dispose)
    return Block(engine)


async def _async_engine_psycopg(_: str, url: str, stack: AsyncExitStack) -> Block:
    engine = create_async_engine(url.format("psycopg"))
    stack.push_async_callback(engine.dispose)
    return Block(engine)


POOLS = [_asyncpg, _psycopg, _psycopg_autocommit, _psycopg_async, _engine, _async_engine, _async_engine_psycopg]


@pytest.fixture(params=POOLS, ids=lambda make: make.__name__.strip("_"))
async def block(request: pytest.FixtureRequest, shop: Database) -> AsyncIterator[Block]:
    async with AsyncExitStack() as stack:
        yield await request.param(shop.dsn, shop.url("{}"), stack)


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def outbox(heard: list[str], observer: Observer) -> Outbox:
    def hear(events: Events) -> None:
        committed = set(observer.live())  # an error here would only be logged, so what comes too early has a mark
        heard.extend(event.type if event.id in committed else f"{event.type}, not committed" for event in events)

    return Outbox(after_commit=hear)


async def test_the_hook_hears_of_what_was_committed(block: Block, outbox: Outbox, heard: list[str]) -> None:
    async def act(tx: Any, add: Callable[..., Any]) -> None:
        await block.sql(tx, "INSERT INTO orders VALUES (gen_random_uuid(), 'k', 't')")
        await add(Event("first"), Event("second"))
        await add(Event("third"))
        assert heard == []

    await block.run(outbox, act)
    assert heard == ["first", "second", "third"]
    await block.run(outbox, _nothing)
    assert heard == ["first", "second", "third"]


async def _nothing(_tx: Any, _add: Callable[..., Any]) -> None:
    """A transaction without events."""


async def test_an_error_in_the_block_rolls_back(
    block: Block, outbox: Outbox, heard: list[str], observer: Observer
) -> None:
    async def act(_tx: Any, add: Callable[..., Any]) -> None:
        await add(Event("lost"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block.run(outbox, act)
    assert (heard, observer.live()) == ([], [])


async def test_an_error_at_the_commit_is_the_callers(
    block: Block, outbox: Outbox, heard: list[str], observer: Observer
) -> None:
    observer.rows(STRICT)

    async def act(tx: Any, add: Callable[..., Any]) -> None:
        await add(Event("lost"))
        await block.sql(tx, BREAK)

    with pytest.raises(Exception, match="duplicate key"):
        await block.run(outbox, act)
    assert (heard, observer.live()) == ([], [])


async def test_an_event_added_again_after_its_savepoint_is_told_once(
    block: Block, outbox: Outbox, heard: list[str], observer: Observer
) -> None:
    event = Event("kept")

    async def act(tx: Any, add: Callable[..., Any]) -> None:
        await block.sql(tx, "SAVEPOINT s")
        await add(event)
        await block.sql(tx, "ROLLBACK TO SAVEPOINT s")
        await add(event)

    await block.run(outbox, act)
    assert (heard, observer.live()) == (["kept"], [event.id])


async def test_without_a_hook_it_is_a_transaction_and_no_more(block: Block, observer: Observer) -> None:
    async def act(_tx: Any, add: Callable[..., Any]) -> None:
        await add(Event("kept"))

    await block.run(Outbox(), act)
    assert len(observer.live()) == 1


async def test_an_async_hook_is_awaited_or_refused_at_once(block: Block, observer: Observer) -> None:
    heard: list[str] = []

    async def hear(events: Events) -> None:
        heard.extend(event.type for event in events)

    async def act(_tx: Any, add: Callable[..., Any]) -> None:
        await add(Event("kept"))

    if block.blocking:
        with pytest.raises(ConfigError, match="async function"):
            await block.run(Outbox(after_commit=hear), act)
        assert observer.live() == []
    else:
        await block.run(Outbox(after_commit=hear), act)
        assert heard == ["kept"]


async def test_a_failing_hook_leaves_the_caller_in_peace(
    block: Block, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_events: Events) -> None:
        raise RuntimeError("no luck")

    async def act(_tx: Any, add: Callable[..., Any]) -> None:
        await add(Event("kept"))

    outbox = Outbox(after_commit=fails)
    await block.run(outbox, act)
    assert len(observer.live()) == 1
    assert "no luck" in caplog.text
    assert outbox._open == {}


async def test_the_connection_is_back_in_its_pool_when_the_hook_runs(shop: Database) -> None:
    """So that a hook can use the pool, however small that is."""
    pool = await asyncpg.create_pool(shop.dsn, min_size=1, max_size=1)
    counts: list[int] = []

    async def hear(_events: Events) -> None:
        async with pool.acquire(timeout=5) as connection:
            counts.append(await connection.fetchval("SELECT count(*) FROM oncommit.outbox"))

    outbox = Outbox(after_commit=hear)
    async with outbox.transaction(pool) as tx:
        await outbox.add(tx, Event("kept"))
    assert counts == [1]
    await pool.close()


async def test_a_cancelled_block_leaves_nothing(shop: Database, observer: Observer) -> None:
    heard: list[Events] = []
    outbox = Outbox(after_commit=heard.append)
    inside = asyncio.Event()
    async with asyncpg.create_pool(shop.dsn, min_size=1, max_size=1) as pool:

        async def work() -> None:
            async with outbox.transaction(pool) as tx:
                await outbox.add(tx, Event("lost"))
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (heard, outbox._open, observer.live()) == ([], {}, [])


async def test_blocks_at_the_same_time_hear_each_of_their_own(shop: Database) -> None:
    heard: list[set[str]] = []
    outbox = Outbox(after_commit=lambda events: heard.append({event.type for event in events}))
    async with asyncpg.create_pool(shop.dsn, min_size=1, max_size=4) as pool:

        async def work(name: str) -> None:
            for _ in range(10):
                async with outbox.transaction(pool) as tx:
                    await outbox.add(tx, Event(name))
                    await outbox.add(tx, Event(name))

        await asyncio.gather(*(work(name) for name in "abcdef"))
    assert sorted(next(iter(names)) for names in heard) == sorted("abcdef" * 10)
    assert all(len(names) == 1 for names in heard)


@pytest.mark.parametrize("thing", [None, "postgresql://nowhere", object()])
def test_what_is_no_pool_is_refused(thing: object) -> None:
    outbox = Outbox()
    begin: Callable[[Any], AbstractAsyncContextManager[Any]] = outbox.transaction
    with pytest.raises(UnsupportedConnection, match="is no pool"):
        begin(thing)
