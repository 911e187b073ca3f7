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
from oncommit.outbox.hooks import Added, Behind

Open = dict[int, Added]

_ASYNC: Final = {
    ("asyncpg", "Pool"),
    ("psycopg_pool", "AsyncConnectionPool"),
    ("psycopg_pool", "AsyncNullConnectionPool"),
    ("sqlalchemy", "AsyncEngine"),
}
_SYNC: Final = {("psycopg_pool", "ConnectionPool"), ("psycopg_pool", "NullConnectionPool"), ("sqlalchemy", "Engine")}


def begin(pool: Any, blocks: Open, behind: Behind) -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
    """The context manager for this kind of pool."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(pool).__mro__}
    if names & _ASYNC:
        return _async_block(pool, blocks, behind)
    if names & _SYNC:
        behind.check_blocking()
        return _sync_block(pool, blocks, behind)
    msg = (
        f"a {type(pool).__module__}.{type(pool).__qualname__} is no pool: pass an asyncpg pool, a psycopg pool or a "
        "SQLAlchemy engine; with a session, add to it and commit it as usual"
    )
    raise UnsupportedConnection(msg)


@asynccontextmanager
async def _async_block(pool: Any, blocks: Open, behind: Behind) -> AsyncIterator[Any]:
    added = Added()
    async with _opened_async(pool, lambda: behind.send(added.once())) as connection:
        blocks[id(connection)] = added
        try:
            yield connection
        finally:
            del blocks[id(connection)]
    if (outcome := behind.hear(added.once())) is not None:
        await outcome


@contextmanager
def _sync_block(pool: Any, blocks: Open, behind: Behind) -> Iterator[Any]:
    added = Added()
    with _opened_sync(pool, lambda: behind.send(added.once())) as connection:
        blocks[id(connection)] = added
        try:
            yield connection
        finally:
            del blocks[id(connection)]
    behind.hear_blocking(added.once())


@asynccontextmanager
async def _opened_async(pool: Any, committed: Callable[[], None]) -> AsyncIterator[Any]:
    """A connection inside a transaction that ends with the block; ``committed`` is called before it is given back."""
    if hasattr(pool, "begin"):  # SQLAlchemy
        async with pool.begin() as connection:
            yield connection
        committed()
        return
    take: Callable[[], AbstractAsyncContextManager[Any]] = getattr(pool, "connection", None) or pool.acquire
    async with take() as connection:
        async with connection.transaction():
            yield connection
        committed()  # what leaves at once need not wait for the pool, which resets the connection first


@contextmanager
def _opened_sync(pool: Any, committed: Callable[[], None]) -> Iterator[Any]:
    if hasattr(pool, "begin"):  # SQLAlchemy
        with pool.begin() as connection:
            yield connection
        committed()
        return
    with pool.connection() as connection:
        with connection.transaction():
            yield connection
        committed()
