"""``outbox.transaction(pool)``: a transaction with something behind its commit, for drivers without such a hook.

Failure story. The hook runs after the driver has reported the commit and the connection is back in its pool. An error
in the block, or in the commit itself, goes to the caller and no hook runs: what an unknown outcome has committed after
all, the relay finds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

from oncommit.errors import UnsupportedConnection
from oncommit.message import Event
from oncommit.outbox.hooks import AfterCommit, check_blocking, fire, fire_blocking

Open = dict[int, list[Event[Any]]]

_ASYNC: Final = {
    ("asyncpg", "Pool"),
    ("psycopg_pool", "AsyncConnectionPool"),
    ("psycopg_pool", "AsyncNullConnectionPool"),
    ("sqlalchemy", "AsyncEngine"),
}
_SYNC: Final = {("psycopg_pool", "ConnectionPool"), ("psycopg_pool", "NullConnectionPool"), ("sqlalchemy", "Engine")}


def begin(
    pool: Any, blocks: Open, hook: AfterCommit | None
) -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
    """The context manager for this kind of pool."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(pool).__mro__}
    if names & _ASYNC:
        return _async_block(pool, blocks, hook)
    if names & _SYNC:
        if hook is not None:
            check_blocking(hook)
        return _sync_block(pool, blocks, hook)
    msg = (
        f"a {type(pool).__module__}.{type(pool).__qualname__} is no pool: pass an asyncpg pool, a psycopg pool or a "
        "SQLAlchemy engine; with a session, add to it and commit it as usual"
    )
    raise UnsupportedConnection(msg)


@asynccontextmanager
async def _async_block(pool: Any, blocks: Open, hook: AfterCommit | None) -> AsyncIterator[Any]:
    events: list[Event[Any]] = []
    async with _opened_async(pool) as connection:
        blocks[id(connection)] = events
        try:
            yield connection
        finally:
            del blocks[id(connection)]
    if hook is not None and events and (outcome := fire(hook, _once(events))) is not None:
        await outcome


@contextmanager
def _sync_block(pool: Any, blocks: Open, hook: AfterCommit | None) -> Iterator[Any]:
    events: list[Event[Any]] = []
    with _opened_sync(pool) as connection:
        blocks[id(connection)] = events
        try:
            yield connection
        finally:
            del blocks[id(connection)]
    if hook is not None and events:
        fire_blocking(hook, _once(events))


def _once(events: list[Event[Any]]) -> tuple[Event[Any], ...]:
    """Each event once, though it was added again after its savepoint had been rolled back."""
    return tuple({event.id: event for event in events}.values())


@asynccontextmanager
async def _opened_async(pool: Any) -> AsyncIterator[Any]:
    """A connection inside a transaction that ends with the block."""
    if hasattr(pool, "begin"):  # SQLAlchemy
        async with pool.begin() as connection:
            yield connection
        return
    take: Callable[[], AbstractAsyncContextManager[Any]] = getattr(pool, "connection", None) or pool.acquire
    async with take() as connection, connection.transaction():
        yield connection


@contextmanager
def _opened_sync(pool: Any) -> Iterator[Any]:
    if hasattr(pool, "begin"):  # SQLAlchemy
        with pool.begin() as connection:
            yield connection
        return
    with pool.connection() as connection, connection.transaction():
        yield connection
