"""A statement to PostgreSQL from synchronous code.

asyncpg is the one driver that the library itself depends on. It needs an event loop; the caller's thread may
be running one (a test that kills the server in its middle), so ours runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncommit.testing.servers.errors import ServerError

Result = TypeVar("Result")


def run_async(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine to its end in a thread and an event loop of its own; its errors arrive here."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def in_thread() -> None:
        try:
            results.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=in_thread, name="oncommit-async", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def execute(dsn: str, statement: str, *, timeout: float = 30) -> None:
    """Run a statement outside any transaction."""
    fetch_value(dsn, statement, timeout=timeout)


def fetch_value(dsn: str, query: str, *arguments: Any, timeout: float = 30) -> Any:
    """The first column of the first row.

    Raises:
        ServerError: No answer within the time limit, or an error from the server.
    """
    import asyncpg

    try:
        return run_async(lambda: _fetch_value(dsn, query, arguments, timeout))
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ServerError(f"{type(error).__name__}: {error}") from error


async def _fetch_value(dsn: str, query: str, arguments: tuple[Any, ...], timeout: float) -> Any:
    import asyncpg

    async with asyncio.timeout(timeout):
        connection = await asyncpg.connect(dsn, timeout=timeout, statement_cache_size=0)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()
