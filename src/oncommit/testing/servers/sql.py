"""A statement to PostgreSQL from synchronous code.

asyncpg is the one driver that the library itself depends on. It needs an event loop; the caller's thread may be
running one (a test that kills the server in its middle), so ours runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from oncommit.testing.servers.errors import ServerError


def execute(dsn: str, statement: str, *, timeout: float = 30) -> None:
    """Run a statement outside any transaction."""
    fetch_value(dsn, statement, timeout=timeout)


def fetch_value(dsn: str, query: str, *arguments: Any, timeout: float = 30) -> Any:
    """The first column of the first row.

    Raises:
        ServerError: No answer within the time limit, or an error from the server.
    """
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_fetch_value(dsn, query, arguments, timeout)))
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread
            outcome.append(ServerError(f"{type(error).__name__}: {error}"))
            outcome[0].__cause__ = error

    thread = threading.Thread(target=work, name="oncommit-sql", daemon=True)
    thread.start()
    thread.join()
    if isinstance(outcome[0], ServerError):
        raise outcome[0]
    return outcome[0]


async def _fetch_value(dsn: str, query: str, arguments: tuple[Any, ...], timeout: float) -> Any:
    import asyncpg

    async with asyncio.timeout(timeout):
        connection = await asyncpg.connect(dsn, timeout=timeout)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()
