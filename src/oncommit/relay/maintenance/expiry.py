"""Dead letters expire, and a warning comes before.

Failure story. A batch is one statement under the fence; a leader that dies in between leaves the rest to the next. A
warning may be repeated by another leader; none is lost, since it is said again every day.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from oncommit.db.sql import query
from oncommit.relay.maintenance.leader import Limits, act

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.maintenance")
EXPIRE_ROWS: Final = 500
WARN_DAYS: Final = 2
WARN_EVERY: Final = 86400.0


class Warned:
    """When a warning was given last, so that it is not said every few minutes. Pure but for its clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def is_due(self, what: str) -> bool:
        """Whether to say it now; if so, it counts as said."""
        now = self._clock()
        if now - self._last.get(what, -WARN_EVERY) < WARN_EVERY:
            return False
        self._last[what] = now
        return True


async def expire_dead_letters(
    connection: Connection, *, schema: str, owner: UUID, limits: Limits, days: int
) -> dict[str, int]:
    """Remove those whose time is over; how many of which source and origin.

    Raises:
        NotLeader: The seat is somebody else's.
    """
    total: dict[str, int] = {}
    expired = EXPIRE_ROWS
    while expired >= EXPIRE_ROWS:
        async with act(connection, schema=schema, owner=owner, limits=limits):
            rows = await connection.fetch(
                query("maintenance/expire_dead_letters", schema), days, EXPIRE_ROWS, timeout=limits.statement
            )
        expired = sum(row["expired"] for row in rows)
        for row in rows:
            whose = f"{row['source']} {row['origin']}"
            total[whose] = total.get(whose, 0) + row["expired"]
            if row["unanswered"]:
                log.warning("%d dead letters of %s have expired, unanswered", row["unanswered"], whose)
    return total


async def warn_of_expiry(connection: Connection, *, schema: str, limits: Limits, days: int, warned: Warned) -> None:
    """Say what will expire within the next days, once a day."""
    rows = await connection.fetch(
        query("maintenance/expiring_dead_letters", schema), days, WARN_DAYS, timeout=limits.statement
    )
    for row in rows:
        whose = f"{row['source']} {row['origin']}"
        if warned.is_due(whose):
            log.warning(
                "%d dead letters of %s expire within %d days, the first at %s: "
                "`oncommit events list --state dead_letter --oldest` shows those of the outbox",
                row["expiring"], whose, WARN_DAYS, row["first"].isoformat(timespec="seconds"),
            )  # fmt: skip
