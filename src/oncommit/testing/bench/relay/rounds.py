"""One round of each side: empty everything, write the backlog, let it work, and read the times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from oncommit.errors import OncommitError
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.relay import backlog
from oncommit.testing.bench.relay.homes import Target
from oncommit.testing.bench.relay.plan import Plan
from oncommit.testing.bench.relay.process import Watched, run_to_end
from oncommit.testing.bench.relay.timeline import Arrival, Mark, arrival_rate, rate
from oncommit.testing.bench.relay.work import Job

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

Command = tuple[list[str], dict[str, str], bytes]
"""A module with its arguments, what to add to the environment, and what it reads from stdin."""

WORK: Final = "oncommit.testing.bench.relay.work"
_LOOK_EVERY: Final = 0.05
_STALLED: Final = 60.0
_SIDE_LIMIT: Final = 1800.0
_MARKS: Final = """
SELECT extract(epoch FROM sent_at)::float8 AS at, count(*)::int AS events
FROM outbox_archive GROUP BY sent_at ORDER BY 1
"""


class Round(msgspec.Struct, frozen=True):
    """What one round of a relay, or of its loop without a broker, came to."""

    per_s: float
    cpu_us: float
    """Of the process, an event."""
    peak_rss_mb: float
    marks: list[Mark]


class Rounds:
    """Rounds at one place, for one target."""

    def __init__(self, place: Place, target: Target, plan: Plan) -> None:
        self._place = place
        self._target = target
        self._plan = plan
        self.fill_seconds = 0.0

    def direct(self) -> float:
        """Events a second by the broker's client alone."""
        return self._without_database("direct")

    def adapter(self) -> float:
        """Events a second by our adapter alone."""
        return self._without_database("adapter")

    def _without_database(self, side: str) -> float:
        asyncio.run(self._prepare())
        marks = self._side(side)
        return arrival_rate(self._arrival(self._plan.events), marks)

    def reference(self) -> float:
        """Events a second as most libraries do it."""
        asyncio.run(self._prepare(usual=True))
        return rate(self._side("reference"))

    def database(self) -> Round:
        """The relay's loop without a broker."""
        job = self._job("database")
        command: Command = ([WORK], {}, msgspec.json.encode(job))
        return asyncio.run(self._drained([command], self._plan.events))

    def relay(self, *, conditions: bool = False, **settings: str) -> Round:
        """The relay as users start it; under the plan's conditions, or without them; with settings as its variables."""
        commands = self._commands(self._plan.relays if conditions else 1, settings)
        events = (self._plan.waiting if conditions else 0) or self._plan.events
        found = asyncio.run(self._drained(commands, events, conditions=conditions))
        return msgspec.structs.replace(found, per_s=arrival_rate(self._arrival(events), found.marks))

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────

    def _commands(self, count: int, settings: Mapping[str, str]) -> list[Command]:
        environment = {
            **settings,
            "ONCOMMIT_DATABASE": self._place.dsn,
            "ONCOMMIT_SCHEMA": self._place.schema,
            "ONCOMMIT_BROKER": self._target.url,
        }
        return [(["oncommit", "relay"], environment, b"") for _ in range(count)]

    def _arrival(self, events: int) -> Arrival:
        found = self._target.arrived()
        if found.messages < events:
            raise OncommitError(f"{events} events were sent and {found.messages} are at the broker: please report it")
        return found

    def _job(self, side: str) -> Job:
        return Job(
            side=side,
            dsn=self._place.dsn,
            schema=self._place.schema,
            broker=self._target.url,
            events=self._plan.events,
            seconds=self._plan.reference_seconds,
        )

    def _side(self, name: str) -> list[Mark]:
        told = run_to_end([WORK], msgspec.json.encode(self._job(name)), timeout=_SIDE_LIMIT)
        return msgspec.json.decode(told, type=list[Mark])

    async def _prepare(self, *, usual: bool = False) -> None:
        await self._empty()
        async with self._filling() as connection:
            fill = backlog.fill_usual if usual else backlog.fill
            await fill(connection, self._target.event_type, self._plan.events, checkpoint=self._plan.checkpoints)

    async def _empty(self) -> None:
        async with self._place.connection() as connection:
            await backlog.reset(connection)
        await asyncio.to_thread(self._target.empty)

    @asynccontextmanager
    async def _filling(self) -> AsyncIterator[Connection]:
        begun = time.monotonic()
        async with self._place.connection() as connection:
            yield connection
        self.fill_seconds += time.monotonic() - begun

    async def _drained(self, commands: list[Command], events: int, *, conditions: bool = False) -> Round:
        await self._empty()
        async with self._held_open(wanted=conditions and self._plan.open_transaction):
            async with self._filling() as connection:
                delayed = self._plan.delayed if conditions else 0
                last = await backlog.fill(
                    connection,
                    self._target.event_type,
                    events,
                    delayed=delayed,
                    checkpoint=self._plan.checkpoints,
                )
            async with self._place.connection() as connection:
                with ExitStack() as stack:
                    relays = [stack.enter_context(Watched(*command)) for command in commands]
                    await self._wait(connection, relays, last)
                    marks = [Mark(row["at"], row["events"]) for row in await connection.fetch(_MARKS)]
                    ahead: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
                    ahead -= time.time()
        if sum(mark.events for mark in marks) != events:
            raise OncommitError(f"{events} events were written and {sum(m.events for m in marks)} are in the archive")
        begin, end = marks[0].at - ahead, marks[-1].at - ahead
        counted = events - marks[0].events
        return Round(
            per_s=rate(marks) if len(marks) > 1 else 0.0,
            cpu_us=sum(relay.cpu_seconds(begin, end) for relay in relays) / max(counted, 1) * 1e6,
            peak_rss_mb=max(relay.peak_rss_mb for relay in relays),
            marks=marks,
        )

    async def _wait(self, connection: Connection, relays: list[Watched], last: UUID | None) -> None:
        """Until nothing is left. Looks for one row by its id, which costs the database next to nothing."""
        seen, since = -1, time.monotonic()
        while await connection.fetchval("SELECT EXISTS (SELECT FROM outbox WHERE event_id = $1)", last) or (
            await connection.fetchval("SELECT EXISTS (SELECT FROM outbox)")
        ):
            for relay in relays:
                relay.check()
            await asyncio.sleep(_LOOK_EVERY)
            if time.monotonic() - since > _STALLED:
                left = await connection.fetchval("SELECT count(*) FROM outbox")
                if left == seen:
                    raise OncommitError(f"the relay goes no further, {left} events are left: {relays[0].log_tail()}")
                seen, since = left, time.monotonic()
        dead = await connection.fetchval("SELECT min(error_message) FROM dead_letter")
        if dead is not None:
            raise OncommitError(f"events became dead letters: {dead}")

    @asynccontextmanager
    async def _held_open(self, *, wanted: bool) -> AsyncIterator[None]:
        """A transaction that is open all the while: with a snapshot, a write, and an event that it never commits."""
        if not wanted:
            yield
            return
        async with self._place.connection() as connection:
            transaction = connection.transaction(isolation="repeatable_read")
            await transaction.start()
            await connection.execute("INSERT INTO outbox (event_type) VALUES ('never')")
            try:
                yield
            finally:
                await transaction.rollback()


def in_rotation(sides: Sequence[str], pairs: int) -> Iterator[tuple[int, str]]:
    """A B C, C B A, …: no side always comes first."""
    for pair in range(pairs):
        for side in sides if pair % 2 == 0 else reversed(sides):
            yield pair, side
