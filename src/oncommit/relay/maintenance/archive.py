"""The days of the archive: made a week ahead, taken out and dropped when their time is over.

Failure story. No step locks anything that a settle, or a reader, would wait for; each has a short limit for locks and
is tried again in the next turn. Making a day is one transaction: it is there whole or not at all. Taking one out goes
by steps that each can be the last before a crash: marked, leaving, out, dropped; the next turn sees how far a day has
come and goes on from there, whoever leads then. Somebody who reads the archive for hours holds up the leaving, and
nothing else. Where days cannot be made for a week, settling makes today's, or goes on without (relay/settling.py).
"""

from __future__ import annotations

import contextlib
import logging
import re
from datetime import date
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg
import msgspec

from oncommit.db.sql import query
from oncommit.relay.maintenance.leader import Limits, act

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.maintenance")
DAYS_AHEAD: Final = 7
# A detach waits for everybody who uses the archive. Longer ones are finished in a later turn.
DETACH_TIMEOUT: Final = 10.0
_STAND_IN: Final = "outbox_archive_00000000"
_DAY: Final = re.compile(r"\d{8}")


class Day(msgspec.Struct, frozen=True):
    """A day of the archive whose time is over."""

    day: str
    attached: bool
    pending: bool
    """Its detach has begun."""
    marked: bool
    late: bool


def in_turn(days: list[Day]) -> list[Day]:
    """What is out already first, then what is leaving (one at a time can), then the others, oldest first. Pure."""
    ours = [day for day in days if day.attached or day.marked]
    return sorted(ours, key=lambda day: (day.attached, not day.pending, day.day))


def of_day(name: str, day: str, schema: str) -> str:
    """A statement about a day, with the day's table in the place of its stand-in."""
    if not _DAY.fullmatch(day):
        raise ValueError(f"{day!r} is no day")
    return query(f"maintenance/{name}", schema).replace(_STAND_IN, f"outbox_archive_{day}")


class Archive:
    """The days of one database's archive, over one connection."""

    def __init__(self, connection: Connection, *, schema: str, owner: UUID, limits: Limits) -> None:
        self._connection = connection
        self._schema = schema
        self._owner = owner
        self._limits = limits

    async def make_days(self) -> bool:
        """Make what is missing from today to a week ahead; whether nothing is missing now.

        Raises:
            NotLeader: The seat is somebody else's.
        """
        well = True
        rows = await self._connection.fetch(
            query("maintenance/missing_days", self._schema), DAYS_AHEAD, timeout=self._limits.statement
        )
        for row in rows:
            if row["lies_beside"]:
                name = f"outbox_archive_{row['day']:%Y%m%d}"
                log.warning("%s is no part of the archive, so that day cannot be archived: attach or rename it", name)
                well = False
            else:
                well &= await self._make(row["day"])
        return well

    async def _make(self, day: date) -> bool:
        try:
            async with self._act():
                await self._connection.fetch(
                    query("maintenance/make_day", self._schema), day, timeout=self._limits.statement
                )
        except asyncpg.PostgresError as error:
            self._held_up(f"the archive's day {day} cannot be made", error, warn=True)
            return False
        log.info("the archive has a partition for %s", day)
        return True

    async def drop_days(self, keep: int) -> bool:
        """Drop what ended more than so many days ago; whether nothing of it is left.

        Raises:
            NotLeader: The seat is somebody else's.
            TimeoutError: Somebody reads the archive for so long that a day cannot leave; it will in a later turn.
        """
        rows = await self._connection.fetch(
            query("maintenance/archive_days", self._schema), keep, timeout=self._limits.statement
        )
        well = True
        for day in in_turn([Day(**dict(row)) for row in rows]):
            try:
                await self._drop(day)
            except asyncpg.PostgresError as error:
                self._held_up(f"the archive's day {day.day} cannot be dropped yet", error, warn=day.late)
                well = False
        return well

    async def _drop(self, day: Day) -> None:
        if day.attached and not day.pending:
            async with self._act():
                await self._execute("mark_day", day)
            await self._connection.execute(of_day("detach_day", day.day, self._schema), timeout=DETACH_TIMEOUT)
        elif day.pending:
            async with self._act():
                await self._execute("finish_day", day)
            if not day.marked:
                log.info("somebody else was taking the day %s out of the archive; it is out now, and is kept", day.day)
                return
        async with self._act():
            await self._execute("drop_day", day)
        log.info("the archive's day %s is past its time and was dropped", day.day)

    async def _execute(self, name: str, day: Day) -> None:
        await self._connection.execute(of_day(name, day.day, self._schema), timeout=self._limits.statement)

    def _act(self) -> contextlib.AbstractAsyncContextManager[None]:
        return act(self._connection, schema=self._schema, owner=self._owner, limits=self._limits)

    def _held_up(self, what: str, error: asyncpg.PostgresError, *, warn: bool) -> None:
        """Say so, unless the connection is gone, which is for others to deal with."""
        if self._connection.is_closed():
            raise error
        expected = isinstance(error, asyncpg.LockNotAvailableError) and not warn
        log.log(logging.INFO if expected else logging.WARNING, "%s: %s; tried again soon", what, error)
