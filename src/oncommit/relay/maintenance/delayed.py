"""Delayed events are moved to the live ones when their time has come.

Failure story. A move is one transaction: killed, cut off or refused in the middle, everything waits where it was, and
whoever leads next moves it. A lost answer to its end leaves either; the next look tells. Nothing is moved twice, and
nothing that was delivered meanwhile is brought back (``move_due.sql``). While nobody leads, which lasts as long as a
lease, what is due is late by that much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from oncommit.db.sql import query
from oncommit.relay.maintenance.leader import Limits, act

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

MOVE_ROWS: Final = 1000
MOVE_BYTES: Final = 8 * 1024 * 1024
MOVE_LIMITS: Final = Limits(lock=5.0, statement=30.0, idle=10.0)
# Before the time of the last one moved, for what commits late; what commits later than that is found by a full look.
SLACK: Final = timedelta(minutes=1)
FULL_LOOK_EVERY: Final = 60.0
# Something is due, and somebody else is changing it.
HELD_UP: Final = 0.2


class Floor:
    """Where to begin to look: not among the dead entries of what was moved. Pure.

    Example:
        >>> floor = Floor()
        >>> floor.passed(datetime(2026, 1, 1, 12, 0))
        >>> floor.begin(0.0) is None, floor.begin(1.0)
        (True, datetime.datetime(2026, 1, 1, 11, 59))
    """

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._looked: float | None = None

    def passed(self, last: datetime) -> None:
        """Everything up to this time was moved, as far as it could be seen."""
        self._last = last - SLACK

    def begin(self, now: float) -> datetime | None:
        """Where to begin now; None from time to time: at the very first."""
        if self._looked is None or now - self._looked >= FULL_LOOK_EVERY:
            self._looked = now
            return None
        return self._last


class Mover:
    """Moves what is due, over one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        schema: str,
        owner: UUID,
        longest_pause: float,
        wake: Callable[[str], None],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._owner = owner
        self._longest_pause = longest_pause
        self._wake = wake
        self._timeout = timeout
        self._clock = clock
        self._floor = Floor()

    async def turn(self) -> float:
        """Move a batch of what is due; for how many seconds there is nothing to do.

        Raises:
            NotLeader: The seat is somebody else's.
        """
        begin = self._floor.begin(self._clock())
        found = await self._connection.fetch(query("maintenance/next_due", self._schema), begin, timeout=self._timeout)
        if not found:
            return self._longest_pause
        if (wait := found[0]["seconds"]) > 0:
            return float(min(wait, self._longest_pause))
        return 0.0 if await self._move(begin) else HELD_UP

    async def _move(self, begin: datetime | None) -> int:
        async with act(self._connection, schema=self._schema, owner=self._owner, limits=MOVE_LIMITS):
            (row,) = await self._connection.fetch(
                query("maintenance/move_due", self._schema), begin, MOVE_ROWS, MOVE_BYTES, timeout=MOVE_LIMITS.statement
            )
            if row["moved"]:
                await self._connection.fetch(
                    query("outbox/take_back", self._schema), row["moved"], [], timeout=MOVE_LIMITS.statement
                )
        if row["gone"]:
            self._floor.passed(row["last"])
        for sink in row["sinks"]:
            self._wake(sink)
        return int(row["gone"])
