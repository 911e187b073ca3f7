"""What a relay asks of PostgreSQL, one method a statement. No decisions here.

Failure story. Every statement has a time limit. A connection that breaks, or answers too late, is an error for the
caller, who forgets what hung on it (floors, notes) and connects anew; a statement whose answer was lost may have run,
and each of these can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from oncommit.brokers.row import FetchedRow
from oncommit.db.sql import query
from oncommit.relay.dead_topics import Routing, sources
from oncommit.retention import Retention

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection


class LaneRow(NamedTuple):
    """A lane that was taken."""

    lane: int
    epoch: int
    rescan: int
    settled_to: int = 0
    """At this id and below the lane was empty for good when that was noted (F-settled)."""


class Survey(msgspec.Struct, frozen=True):
    """The lanes of a sink as they are now."""

    others: int
    lanes: int
    mine: dict[int, LaneRow]


class LeftClaim(NamedTuple):
    """Part of a batch that a dead owner left behind."""

    lane: int
    first: int
    last: int
    rows: int
    alone: bool


class Stretch(NamedTuple):
    """Ids of one lane above ``low`` up to ``high``."""

    lane: int
    epoch: int
    low: int
    high: int


class Window(NamedTuple):
    """Where to read on in one lane, and how far."""

    lane: int
    epoch: int
    floor: int
    ceiling: int
    most: int


class Failure(NamedTuple):
    """One event that was not acknowledged."""

    lane: int
    epoch: int
    place: int
    attempts: int
    """How many there were before this one: it is counted once, however often it is written."""
    delay: float
    error: str


class Burial(NamedTuple):
    """One event that nobody will try again by itself."""

    lane: int
    epoch: int
    place: int
    reason: str
    error_type: str
    error: str
    topic: str = ""
    """Where it was to go; empty where that is not known."""


class Store:
    """The statements of one relay for one sink, on one connection."""

    def __init__(self, connection: Connection, *, schema: str, relay_id: UUID, sink: str, timeout: float) -> None:
        self._connection = connection
        self._schema = schema
        self._relay = relay_id
        self._sink = sink
        self._timeout = timeout

    async def make_lanes(self) -> None:
        """Make what lane rows are missing."""
        await self._fetch("make_lanes", self._sink)

    async def survey(self, lease: float) -> Survey:
        """How many other relays serve this sink, and which lanes are ours."""
        (row,) = await self._fetch("survey", self._sink, lease, self._relay, self._sink, self._sink, self._relay)
        mine = [
            LaneRow(*lane) for lane in zip(row["owned"], row["epochs"], row["rescans"], row["settled"], strict=True)
        ]
        return Survey(row["others"], row["lanes"], {lane.lane: lane for lane in mine})

    async def take_lanes(self, lease: float, most: int, *, urgent: bool) -> list[LaneRow]:
        """Take up to so many lanes that nobody living has, of the urgent ones or of the others."""
        rows = await self._fetch("take_lanes", self._sink, self._sink, urgent, lease, most, self._relay)
        return [LaneRow(*row) for row in rows]

    async def return_lanes(self, lanes: dict[int, int]) -> None:
        """Hand lanes back."""
        await self._fetch("return_lanes", list(lanes), list(lanes.values()), self._sink, self._relay)

    async def fetch(
        self, windows: Sequence[Window], *, batch: int, budget: int, alone: bool = False
    ) -> list[FetchedRow]:
        """Read on, and claim what was read; ``alone`` says that nothing else is in flight beside it."""
        lanes, epochs, floors, ceilings, most = zip(*windows, strict=True)
        rows = await self._fetch(
            "fetch", lanes, epochs, floors, ceilings, most, self._sink, self._relay, self._sink, budget,
            budget, self._relay, self._sink, batch, alone,
        )  # fmt: skip
        return [FetchedRow(self._sink, *row) for row in rows]

    async def fetch_ids(
        self, epochs: dict[int, int], wanted: Sequence[tuple[int, int]], *, batch: int, budget: int
    ) -> list[FetchedRow]:
        """Read these rows, by lane and place, and claim them."""
        lanes, places = zip(*wanted, strict=True)
        rows = await self._fetch(
            "fetch_ids", list(epochs), list(epochs.values()), self._sink, self._relay, lanes, places, self._sink,
            budget, budget, self._relay, self._sink, batch,
        )  # fmt: skip
        return [FetchedRow(self._sink, *row) for row in rows]

    async def settle(
        self, epochs: dict[int, int], sent: Sequence[tuple[int, int, float]], *, batch: int, archive: bool
    ) -> tuple[int, set[int]]:
        """Move acknowledged rows to the archive and end the batch; how many went, and which lanes were still ours."""
        lanes, places, ages = zip(*sent, strict=True) if sent else ((), (), ())
        (row,) = await self._fetch(
            "settle", list(epochs), list(epochs.values()), self._sink, self._relay, lanes, places, ages, self._sink,
            archive, self._relay, self._sink, batch,
        )  # fmt: skip
        return row["settled"], set(row["held"])

    async def make_partition(self) -> None:
        """Make today's partition of the archive."""
        await self._fetch("make_partition")

    async def fail(self, failures: Sequence[Failure]) -> set[int]:
        """Write down what is to be tried again; the places that were."""
        lanes, _, places, attempts, delays, errors = zip(*failures, strict=True)
        epochs = {failure.lane: failure.epoch for failure in failures}
        rows = await self._fetch(
            "fail", list(epochs), list(epochs.values()), self._sink, self._relay, lanes, places, attempts, delays,
            errors, self._sink,
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def bury(self, burials: Sequence[Burial], *, copy: bool = False) -> set[int]:
        """Move what is dead to the dead letters, with a copy to ``<topic>.dlq`` if asked; the places that went."""
        return {place for _, place in await self._died("bury", burials, copy=copy)}

    async def unreserve(self, burials: Sequence[Burial]) -> None:
        """End reservations that have lapsed, of events that are about to be parked."""
        epochs = {burial.lane: burial.epoch for burial in burials}
        lanes, places = zip(*((burial.lane, burial.place) for burial in burials), strict=True)
        await self._fetch(
            "unreserve", list(epochs), list(epochs.values()), self._sink, self._relay, lanes, places, self._sink
        )

    async def park(self, burials: Sequence[Burial], *, copy: bool = False) -> set[tuple[int, int]]:
        """Let what is dead hold its key back, beside its record; lane and place of those that have a key."""
        return await self._died("park", burials, copy=copy)

    async def _died(self, how: str, burials: Sequence[Burial], *, copy: bool) -> set[tuple[int, int]]:
        lanes, _, places, reasons, types, errors, topics = zip(*burials, strict=True)
        epochs = {burial.lane: burial.epoch for burial in burials}
        rows = await self._fetch(
            how, list(epochs), list(epochs.values()), self._sink, self._relay, lanes, places, reasons, types, errors,
            sources(topics, wanted=copy), self._sink, Retention().dead_letter_days,
        )  # fmt: skip
        return {(row["lane"], row["id"]) for row in rows}

    async def routing(self, lane: int, place: int) -> Routing | None:
        """What the topic of one event follows from; nothing where it is gone."""
        rows = await self._fetch("routing", self._sink, lane, place)
        return Routing(self._sink, *rows[0]) if rows else None

    async def unclaim(self, batch: int | None = None) -> None:
        """End a batch of which nothing was published; without a number, all of ours."""
        await self._fetch("unclaim", self._relay, self._sink, batch)

    async def left_claims(self, lanes: Sequence[int]) -> list[LeftClaim]:
        """What was in flight on these lanes when their owners died."""
        return [LeftClaim(*row) for row in await self._fetch("left_claims", self._sink, lanes, self._relay)]

    async def drop_claims(self, lanes: dict[int, int]) -> None:
        """The suspects on these lanes have been dealt with."""
        await self._fetch("drop_claims", list(lanes), list(lanes.values()), self._sink, self._relay, self._relay)

    async def charge_crash(self, lane: int, epoch: int, place: int) -> int:
        """Charge the event that was alone in flight, once a claim; how many crashes it has now, 0 for not charged."""
        rows = await self._fetch(
            "charge_crash", [lane], [epoch], [place], self._sink, self._relay, self._relay, self._sink
        )
        return int(rows[0]["crashes"]) if rows else 0

    async def last_value(self) -> int:
        """Up to where ids have been drawn."""
        ((value,),) = await self._fetch("last_value")
        return int(value)

    async def holders(self) -> list[str]:
        """Who may have drawn an id and not committed yet."""
        return [holder for (holder,) in await self._fetch("holders")]

    async def note_settled(self, lanes: dict[int, int], *, sure: int, noted: int) -> list[int]:
        """Note how far these lanes are empty for good; those where it was worth a write."""
        rows = await self._fetch(
            "note_settled", noted, list(lanes), list(lanes.values()), self._sink, self._relay, sure, self._sink,
            self._sink, self._relay,
        )  # fmt: skip
        return [lane for (lane,) in rows]

    async def strays(self, settled: dict[int, int], *, timeout: float) -> list[tuple[int, int]]:
        """Lanes with a row where none should be, at or below what was noted as settled, and the first one's place."""
        rows = await self._fetch("strays", list(settled), list(settled.values()), self._sink, timeout=timeout)
        return [tuple(row) for row in rows]

    async def sweep(self, stretches: Sequence[Stretch], *, most: int) -> list[tuple[int, int, int, int, str | None]]:
        """Lane, epoch, rescan, place and key of the rows in these stretches."""
        lanes, epochs, lows, highs = zip(*stretches, strict=True)
        rows = await self._fetch("sweep", lanes, epochs, lows, highs, self._sink, self._relay, self._sink, most)
        return [tuple(row) for row in rows]

    async def _fetch(self, name: str, *parameters: Any, timeout: float | None = None) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(
            query(f"relay/{name}", self._schema), *parameters, timeout=min(timeout or self._timeout, self._timeout)
        )
        return rows
