"""The application's pool, or a DSN, as somewhere to run a statement now and then behind its transactions.

Failure story. Each piece of work has one time limit for all of it, the wait for a connection included, so that an
exhausted pool or a silent server costs the caller that long and no longer. Work on a blocking pool runs in threads of
our own: one that hangs beyond the limit keeps its thread until the driver gives up, and then nothing else starts on it.
What a pool or driver raises is the caller's to judge; nothing is retried here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from oncommit.db.address import CONNECT_TIMEOUT, normalise_dsn
from oncommit.db.calls import Work
from oncommit.db.connection import driver_for
from oncommit.errors import UnsupportedConnection

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

MOST: Final = 4
"""Connections that are used at once, of ours or of the application's pool."""

_ASYNC: Final = {
    ("asyncpg", "Pool"): "asyncpg",
    ("psycopg_pool", "AsyncConnectionPool"): "psycopg",
    ("psycopg_pool", "AsyncNullConnectionPool"): "psycopg",
    ("sqlalchemy", "AsyncEngine"): "sqlalchemy",
}
_BLOCKING: Final = {
    ("psycopg_pool", "ConnectionPool"): "psycopg",
    ("psycopg_pool", "NullConnectionPool"): "psycopg",
    ("sqlalchemy", "Engine"): "sqlalchemy",
}


class Runner(Protocol):
    """Runs work on a connection of a pool, each statement committed by itself or all of them together."""

    async def run(self, make: Callable[[], Work[T]], schema: str, *, timeout: float) -> T:
        """Do this work, in this many seconds at most."""

    async def close(self) -> None:
        """Let go of what is ours; the application's pool is not."""


def is_pool(thing: object) -> bool:
    """Whether this is a pool, an engine or a DSN."""
    return isinstance(thing, str) or kind_of(thing) is not None


def kind_of(pool: object) -> tuple[str, bool] | None:
    """The driver's name, and whether its connections are awaited; nothing for what is no pool."""
    for cls in type(pool).__mro__:
        name = (cls.__module__.partition(".")[0], cls.__name__)
        if name in _ASYNC:
            return _ASYNC[name], True
        if name in _BLOCKING:
            return _BLOCKING[name], False
    return None


def belongs_to_a_loop(pool: object) -> bool:
    """Whether it can be used in the application's event loop alone; a DSN or a blocking pool is used in one of ours."""
    kind = kind_of(pool)
    return kind is not None and kind[1]


def runner_for(pool: Any) -> Runner:
    """What runs work on this pool. Made in the loop in which it will be used."""
    if isinstance(pool, str):
        return _Own(pool)
    kind = kind_of(pool)
    if kind is None:
        raise UnsupportedConnection(
            f"a {type(pool).__module__}.{type(pool).__qualname__} is no pool: pass an asyncpg pool, a psycopg pool, a "
            "SQLAlchemy engine, or a DSN"
        )
    if not kind[1]:
        return _Blocking(pool)
    return _Asyncpg(pool) if kind[0] == "asyncpg" else _Async(pool)


class _Asyncpg:
    """An asyncpg pool: statements commit by themselves."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._returning: set[asyncio.Task[None]] = set()

    async def run(self, make: Callable[[], Work[T]], schema: str, *, timeout: float) -> T:
        async with asyncio.timeout(timeout):
            connection = await self._pool.acquire()
            try:
                result: T = await driver_for(connection).run(connection, make(), schema)
            finally:
                # Not awaited: the pool resets the connection first, which is a trip that nobody has to wait for.
                task = asyncio.ensure_future(self._release(connection))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)
            return result

    async def close(self) -> None:
        await asyncio.gather(*self._returning, return_exceptions=True)

    async def _release(self, connection: Any) -> None:
        await self._pool.release(connection, timeout=CONNECT_TIMEOUT)


class _Own:
    """A small pool of our own. It connects when it is first used, and works through a pooler in transaction mode."""

    def __init__(self, dsn: str) -> None:
        self._dsn = normalise_dsn(dsn)
        self._pool: asyncpg.Pool[Any] | None = None
        self._runner: _Asyncpg | None = None
        self._opening = asyncio.Lock()

    async def run(self, make: Callable[[], Work[T]], schema: str, *, timeout: float) -> T:
        import asyncpg

        async with asyncio.timeout(timeout):
            async with self._opening:
                if self._runner is None:
                    self._pool = await asyncpg.create_pool(
                        self._dsn,
                        min_size=1,
                        max_size=MOST,
                        timeout=CONNECT_TIMEOUT,
                        statement_cache_size=0,
                        server_settings={"application_name": "oncommit sender"},
                    )
                    self._runner = _Asyncpg(self._pool)
            return await self._runner.run(make, schema, timeout=timeout)

    async def close(self) -> None:
        if self._runner is not None and self._pool is not None:
            await self._runner.close()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()


class _Async:
    """A psycopg pool or a SQLAlchemy engine: one short transaction."""

    def __init__(self, pool: Any) -> None:
        self._open = pool.begin if hasattr(pool, "begin") else pool.connection

    async def run(self, make: Callable[[], Work[T]], schema: str, *, timeout: float) -> T:
        async with asyncio.timeout(timeout), self._open() as connection:
            result: T = await driver_for(connection).run(connection, make(), schema)
            return result

    async def close(self) -> None:
        """The pool is the application's."""


class _Blocking:
    """A blocking pool or engine, in threads of our own."""

    def __init__(self, pool: Any) -> None:
        self._open = pool.begin if hasattr(pool, "begin") else pool.connection
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="oncommit-sender-db")

    async def run(self, make: Callable[[], Work[T]], schema: str, *, timeout: float) -> T:
        loop = asyncio.get_running_loop()
        work: Awaitable[T] = loop.run_in_executor(self._threads, partial(self._work, make, schema))
        async with asyncio.timeout(timeout):
            return await work

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, make: Callable[[], Work[T]], schema: str) -> T:
        with self._open() as connection:
            result: T = driver_for(connection).run(connection, make(), schema)
            return result
