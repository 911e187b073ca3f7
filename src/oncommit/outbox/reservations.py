"""What the sender asks of PostgreSQL about the events it has reserved: read again, settle, hand back.

Failure story. Each statement has a time limit, commits by itself and can be lost at any point; none is tried again.
What was not settled lapses, and the relay sends it a second time. Each acts only while the reservation holds, by the
database's clock (O-lapse), so a sender that was asleep for longer changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit.brokers.row import FetchedRow
from oncommit.db.calls import Call, Work
from oncommit.db.failures import sqlstate
from oncommit.db.pools import Runner
from oncommit.db.sql import query

log: Final = logging.getLogger("oncommit.outbox")

_NO_PARTITION: Final = "23514"


def boottime() -> float:
    """Seconds on a clock that goes on while the machine sleeps, as reservations do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Reserved(msgspec.Struct):
    """What was read again."""

    rows: list[FetchedRow]
    deadline: float
    """When the first reservation lapses, on our clock; never later than the database thinks."""
    lapsed: list[FetchedRow]


class Reservations:
    """What the sender asks of PostgreSQL: read, settle, hand back; each with a time limit."""

    def __init__(self, runner: Runner, schema: str, *, archive: bool) -> None:
        self._runner = runner
        self._schema = schema
        self._archive = archive

    async def read(self, ids: Sequence[UUID], *, kept: float, timeout: float) -> Reserved:
        """What of these is reserved still, and for longer than ``kept``; in the order of its lanes."""
        asked = boottime()
        rows = await self._ask("read", [list(ids)], timeout=timeout)
        fetched = [FetchedRow(*row) for row in rows]
        mine = [row for row in fetched if row.wait > kept]
        left = min((row.wait for row in mine), default=0.0)
        return Reserved(mine, asked + left, [row for row in fetched if row.wait <= kept])

    async def settle(self, rows: Sequence[FetchedRow], ages: Sequence[float], *, timeout: float) -> set[UUID]:
        """Move acknowledged events to the archive; those of which the reservation still held."""
        places = [*_places(rows), list(ages)]
        try:
            return await self._ids("settle", [*places, self._archive], timeout=timeout)
        except Exception as error:
            if sqlstate(error) != _NO_PARTITION:
                raise
        # Today's partition of the archive is missing. The relay makes it, and says so; we settle without a copy rather
        # than have every event delivered twice until then.
        log.warning("%d events are settled without a copy in the archive: it has no partition of today", len(rows))
        return await self._ids("settle", [*places, False], timeout=timeout)

    async def hand_back(self, rows: Sequence[FetchedRow], *, timeout: float) -> set[UUID]:
        """Leave these to the relay at once."""
        return await self._ids("hand_back", _places(rows), timeout=timeout)

    async def _ids(self, name: str, parameters: Sequence[Any], *, timeout: float) -> set[UUID]:
        rows = await self._ask(name, parameters, timeout=timeout)
        return {value if isinstance(value, UUID) else UUID(str(value)) for (value,) in rows}

    async def _ask(self, name: str, parameters: Sequence[Any], *, timeout: float) -> Sequence[Any]:
        call = Call(query(f"optimistic/{name}", self._schema), parameters)

        def work() -> Work[Sequence[Any]]:
            return (yield call)

        return await self._runner.run(work, self._schema, timeout=timeout)


def _places(rows: Sequence[FetchedRow]) -> list[list[Any]]:
    return [[row.sink for row in rows], [row.lane for row in rows], [row.place for row in rows]]
