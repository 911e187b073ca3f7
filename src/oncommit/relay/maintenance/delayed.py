"""Delayed events are moved to the live ones when their time has come.

Failure story. A move is one transaction: killed, cut off or refused in the middle, everything waits where it was, and
whoever leads next moves it. A lost answer to its end leaves either; the next look tells. Nothing is moved twice, and
nothing that was delivered meanwhile is brought back (``move_due.sql``). While nobody leads, which lasts as long as a
lease, what is due is late by that much.

An event that the live table refuses (a trigger of somebody's, say), or whose id somebody else is just adding, must not
hold up the others: after a batch that fails by the fault of a row they go one by one, and the one at fault is set aside
for a while, in memory only. Two in a row that wait for a lock are no fault of theirs: then the loop starts over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

from oncommit.db.sql import query
from oncommit.identifiers import wake_channel
from oncommit.outbox.wake import payload_of
from oncommit.relay.maintenance.leader import Limits, act
from oncommit.relay.settling import REFUSED

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.maintenance")
MOVE_ROWS: Final = 1000
MOVE_BYTES: Final = 8 * 1024 * 1024
MOVE_LIMITS: Final = Limits(lock=0.5, statement=30.0, idle=10.0)
# Before the time of the last one moved, for what commits late; what commits later than that is found by a full look.
SLACK: Final = timedelta(minutes=1)
FULL_LOOK_EVERY: Final = 60.0
# Something is due, and somebody else is changing it.
HELD_UP: Final = 0.2
ASIDE_REFUSED: Final = 60.0
ASIDE_LOCKED: Final = 5.0
MOST_ASIDE: Final = 1000
_AT_FAULT: Final = (*REFUSED, asyncpg.RaiseError, asyncpg.LockNotAvailableError)


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


class Aside:
    """Events that cannot be moved now, each until some time. Past its cap it takes no more. Pure."""

    def __init__(self) -> None:
        self._until: dict[UUID, float] = {}

    def put(self, event: UUID, until: float) -> bool:
        """Leave this one alone until then; whether there was room for it."""
        if len(self._until) >= MOST_ASIDE:
            return False
        self._until[event] = until
        return True

    def at(self, now: float) -> list[UUID]:
        """Those to leave alone now."""
        self._until = {event: until for event, until in self._until.items() if until > now}
        return list(self._until)


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
        self._aside = Aside()
        self._one_by_one = 0
        self._waited = False

    async def turn(self) -> float:
        """Move a batch of what is due; for how many seconds there is nothing to do.

        Raises:
            NotLeader: The seat is somebody else's.
        """
        now = self._clock()
        begin, aside = self._floor.begin(now), self._aside.at(now)
        found = await self._connection.fetch(
            query("maintenance/next_due", self._schema), begin, aside, timeout=self._timeout
        )
        if not found:
            return self._longest_pause
        if (wait := found[0]["seconds"]) > 0:
            return float(min(wait, self._longest_pause))
        rows = 1 if self._one_by_one else MOVE_ROWS
        try:
            moved = await self._move(begin, aside, rows)
        except _AT_FAULT as error:
            if rows == 1:
                self._set_aside(found[0]["event_id"], error)
            else:
                self._one_by_one = rows
            return 0.0
        self._waited = False
        self._one_by_one = max(self._one_by_one - moved, 0)
        return 0.0 if moved else HELD_UP

    def _set_aside(self, event: UUID, error: asyncpg.PostgresError) -> None:
        """Leave this one for later, so that the others can go."""
        locked = isinstance(error, asyncpg.LockNotAvailableError)
        if locked and self._waited:
            raise error
        self._waited = locked
        if not self._aside.put(event, self._clock() + (ASIDE_LOCKED if locked else ASIDE_REFUSED)):
            raise error
        if locked:
            log.info("the delayed event %s is due, and somebody else is writing one with its id", event)
        else:
            log.error("the delayed event %s is due, and is refused: %s; it is tried again every minute", event, error)

    async def _move(self, begin: datetime | None, aside: list[UUID], rows: int) -> int:
        async with act(self._connection, schema=self._schema, owner=self._owner, limits=MOVE_LIMITS):
            (row,) = await self._connection.fetch(
                query("maintenance/move_due", self._schema), begin, aside, rows, MOVE_BYTES,
                timeout=MOVE_LIMITS.statement,
            )  # fmt: skip
            if row["moved"]:
                await self._connection.fetch(
                    query("outbox/take_back", self._schema), row["moved"], [], timeout=MOVE_LIMITS.statement
                )
        if row["gone"]:
            self._floor.passed(row["last"])
        for sink in row["sinks"]:
            self._wake(sink)
        if row["sinks"]:  # other relays have their lanes
            told = (wake_channel(self._schema), payload_of(frozenset(row["sinks"])))
            await self._connection.execute(query("outbox/notify", self._schema), *told, timeout=self._timeout)
        return int(row["gone"])
