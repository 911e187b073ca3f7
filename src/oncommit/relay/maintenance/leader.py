"""One relay leads the maintenance, by a lease in the table of settings: the seat.

Failure story. The leader renews the lease every third of it, on the database's clock; the clocks of hosts count for
nothing but the pauses between two looks. A leader that dies, sleeps or is cut off loses the seat when the lease has run
out; one that stops leaves it at once. A leader that wakes late still believes in its seat, so believing is not enough:
every act is a transaction that first locks the seat and looks whose it is (the fence). Nobody can take the seat before
such a transaction has ended, and it ends by itself soon, also where its program sleeps: by its limits. No locks and no
settings of a session: all of it works through a pooler in transaction mode.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import msgspec

from oncommit.db.sql import query
from oncommit.relay.lease import RENEW_EVERY

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

LOCK_TIMEOUT: Final = 2.0
STATEMENT_TIMEOUT: Final = 30.0


class NotLeader(Exception):
    """The seat is somebody else's by now."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long an act may take, in seconds."""

    lock: float = LOCK_TIMEOUT
    statement: float = STATEMENT_TIMEOUT
    idle: float = 10.0
    """Between two statements; the transaction of a program that sleeps ends after it."""


class Seat:
    """The leader's seat, as one relay sees it over one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        schema: str,
        owner: UUID,
        lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._owner = owner
        self._lease = lease
        self._clock = clock
        self._renewed: float | None = None

    async def make(self) -> None:
        """Make the seat, where this database has never had one."""
        await self._ask("make_seat")

    async def hold(self) -> bool:
        """Keep the seat, or take it if it is free; whether it is ours."""
        now = self._clock()
        if self._renewed is None:
            if await self._ask("take_seat", str(self._owner), self._lease):
                self._renewed = now
        elif now - self._renewed >= self._lease * RENEW_EVERY:
            self._renewed = now if await self._ask("keep_seat", str(self._owner), self._lease) else None
        return self._renewed is not None

    def lost(self) -> None:
        """A fence has found another owner."""
        self._renewed = None

    async def leave(self) -> None:
        """Let others have it."""
        self._renewed = None
        await self._ask("leave_seat", str(self._owner))

    async def _ask(self, name: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = await self._connection.fetch(
            query(f"maintenance/{name}", self._schema), *parameters, timeout=self._lease * RENEW_EVERY
        )
        return rows


@asynccontextmanager
async def act(connection: Connection, *, schema: str, owner: UUID, limits: Limits) -> AsyncIterator[None]:
    """One transaction of the leader, fenced and with limits.

    A block that PostgreSQL refuses is rolled back, and the connection can be used on. After anything else, such as a
    time limit of ours, whoever owns the connection has to drop it, which ends it; or its limits do.

    Raises:
        NotLeader: The seat is not ours; nothing was done.
    """
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", timeout=limits.statement)
    try:
        bounds = [f"{round(seconds * 1000)}ms" for seconds in (limits.lock, limits.statement, limits.idle)]
        await connection.fetch(query("maintenance/limits", schema), *bounds, timeout=limits.statement)
        if not await connection.fetch(query("maintenance/fence", schema), str(owner), timeout=limits.statement):
            raise NotLeader
        yield
    except (asyncpg.PostgresError, NotLeader):
        if not connection.is_closed():
            await connection.execute("ROLLBACK", timeout=limits.statement)
        raise
    await connection.execute("COMMIT", timeout=limits.statement)
