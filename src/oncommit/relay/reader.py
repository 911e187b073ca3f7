"""The next batch: what is due, what committed late, and what comes after the floors.

Failure story. A reader may lose its connection, or be cut off, between any two of its statements. Then it knows
nothing any more (``forget``), and whoever calls it starts from zero; what it has claimed by then is a claim of a batch
that was never published, which its successor takes for suspects and tries first. Rows that were read are not yet
anybody's: whether they go is decided after the outcomes of the batch before (O-outcome).

The order of the statements is the protocol: last value, holders, then sweep and fetch (S-order, S-snapshot), and no
fetch beyond the last value noted before it (S-ceiling). With this, a row is never handed on without the rows of its key
that committed before it was written.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from oncommit.brokers.row import FetchedRow
from oncommit.relay.lane import Lane
from oncommit.relay.late import LateCommits
from oncommit.relay.limits import Limits
from oncommit.relay.store import Store, Stretch, Window

log: Final = logging.getLogger("oncommit.relay")
SWEEP_LIMIT: Final = 1000
NOTE_EVERY: Final = 1000
"""Ids; as in note_settled.sql."""
NOTE_MOST: Final = 100_000
"""Ids at once; likewise."""
STRAYS_LIMIT: Final = 0.5
"""Seconds that a look for strays may take."""


class Batch(msgspec.Struct):
    """Rows that were read and claimed together."""

    number: int
    rows: list[FetchedRow]
    rewinds: dict[int, int]
    """Of each lane, how often it had to be read again when this was read."""
    wanted: list[tuple[int, int]]
    """Rows that were asked for by lane and place."""

    @property
    def is_empty(self) -> bool:
        """Nothing was found."""
        return not self.rows


class Reader:
    """Reads for one sink, on one connection."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._budget = limits.budget
        self._limits = limits
        self._late = LateCommits()
        self._batches = 0
        self._told = -NOTE_EVERY
        """Up to where senders have been told, at least for the lanes that were ours then."""

    def forget(self, lanes: Iterable[Lane]) -> None:
        """After a broken connection: nothing that was noted counts any more (S-forget)."""
        self._late.forget()
        for lane in lanes:
            lane.forget()

    async def read(self, lanes: dict[int, Lane], now: float) -> Batch | None:
        """The next batch; nothing where nothing can be new."""
        noted = self._late.noted
        last_value = await self._store.last_value()
        if self._late.has_fallen(last_value):
            self.forget(lanes.values())
            noted = 0
        for lane in lanes.values():
            if lane.order.floor > last_value:  # what was noted as settled comes from before the sequence fell
                lane.order.rewind(1)
        stretches: list[tuple[int, int]] = []
        if last_value != noted or not self._late.is_quiet:
            stretches = self._late.look(last_value, await self._store.holders())
        batch = self._begin(lanes)
        # Rows that are asked for lie at the floors or below, rows that are read on above them, and both are settled
        # here before anything is awaited: outcomes may move the floors meanwhile, and no row may come twice.
        windows = self._windows(lanes)
        # Also where a lane has no window this time: what it has above its floor must not go before what is below.
        floors = {number: lanes[number].order.floor for number in self._behind(lanes)}
        batch.wanted = [
            (lane.lane, head)
            for lane in lanes.values()
            if not lane.leaving
            for head in lane.order.due_heads(now)
            if head <= floors.get(lane.lane, head) and head not in lane.in_flight
        ]
        if stretches:
            found_late = await self._sweep(lanes, stretches)
            batch.wanted = list(dict.fromkeys(batch.wanted + found_late))
        if batch.wanted:
            epochs = {number: lanes[number].epoch for number, _ in batch.wanted}
            batch.rows = await self._store.fetch_ids(epochs, batch.wanted, batch=batch.number, budget=self._budget)
            self._missing(lanes, batch)
        if windows:
            found = await self._fetch(windows, batch.number)
            self._advance(lanes, windows, found, batch.rewinds)
            batch.rows += found
        if batch.rows and (batch.wanted or any(floor > self._late.sure for floor in floors.values())):
            await self._look_back(lanes, batch.rows)
        self._late.was_read()
        return None if batch.is_empty and not batch.wanted else batch

    def _begin(self, lanes: dict[int, Lane]) -> Batch:
        self._batches += 1
        for lane in lanes.values():
            lane.read_begins()
        return Batch(self._batches, [], {number: lane.order.rewinds for number, lane in lanes.items()}, [])

    async def note_settled(self, lanes: Iterable[Lane]) -> None:
        """Let senders know from where on they have to look whether a lane is empty (O-settled).

        What is `sure` was found by statements that are over, so the snapshot of this one is younger.
        """
        sure, noted = self._late.sure, self._late.noted
        if not noted or (sure - self._told < NOTE_EVERY and noted >= self._told):
            return
        epochs = {lane.lane: lane.epoch for lane in lanes if not lane.leaving}
        if epochs:
            await self._store.note_settled(epochs, sure=sure, noted=noted)
            self._told = min(sure, max(self._told, 0) + NOTE_MOST)

    async def full_pass(self, lanes: dict[int, Lane]) -> None:
        """The last net (S-forget): all lanes from their beginnings, and a look whether something lies before them."""
        self._limits.recovers()
        settled: dict[int, int] = {}
        for number, lane in lanes.items():
            if not lane.suspects:
                lane.forget()
                settled[number] = lane.settled_to
        if not any(settled.values()):
            return
        try:
            for number, place in await self._store.strays(settled, timeout=STRAYS_LIMIT):
                lanes[number].order.rewind(place)
        except TimeoutError:  # much has been sent since some transaction began that is open still; when it has ended
            log.info("no look for events below %d: it would take too long", max(settled.values()))

    async def _fetch(self, windows: list[Window], batch: int, *, alone: bool = False) -> list[FetchedRow]:
        try:
            return await self._store.fetch(windows, batch=batch, budget=self._budget, alone=alone)
        except TimeoutError:
            self._limits.gave_up(max(window.ceiling - window.floor for window in windows))
            raise

    async def _sweep(self, lanes: dict[int, Lane], stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Rows of these stretches that nobody has seen yet, and that need not wait."""
        wanted: list[tuple[int, int]] = []
        asked = [
            Stretch(lane.lane, lane.epoch, low, min(high, lane.order.floor))
            for lane in lanes.values()
            for low, high in stretches
            if lane.order.floor > low
        ]
        if not asked:
            return wanted
        found: dict[int, int] = {}
        for number, _epoch, _rescan, place, key in await self._rows_in(asked):
            if place is None:
                continue
            lane = lanes[number]
            found[number] = found.get(number, 0) + 1
            if lane.is_fresh(place) and not lane.order.holds(key, place):
                wanted.append((number, place))
        for number, count in found.items():
            if count >= SWEEP_LIMIT:  # there may be more than we were shown
                lanes[number].order.rewind(min(low for low, _ in stretches) + 1)
        return wanted

    async def _rows_in(self, asked: list[Stretch]) -> list[tuple[int, int, int, int, str | None]]:
        """What the sweep finds there: in one statement, or in as many as it takes to come to an end in time."""
        rows: list[tuple[int, int, int, int, str | None]] = []
        left = asked
        while left:
            now = [stretch._replace(high=self._limits.reach(stretch.low, stretch.high)) for stretch in left]
            try:
                rows += await self._store.sweep(now, most=SWEEP_LIMIT)
            except TimeoutError:
                self._limits.gave_up(max(stretch.high - stretch.low for stretch in now))
                raise
            left = [
                stretch._replace(low=done.high)
                for stretch, done in zip(left, now, strict=True)
                if done.high < stretch.high
            ]
        return rows

    async def _look_back(self, lanes: dict[int, Lane], rows: list[FetchedRow]) -> None:
        """Whether something of a key lies before what was read of it, and has just been committed (S-whole).

        A transaction that wrote a key twice, with a read between, and commits between this read's look at the holders
        and its statements: they may have seen its second event alone. Then the lane is read again, from the first.
        """
        stretches = self._late.left_since(await self._store.holders())
        if not stretches:
            return
        tops: dict[tuple[int, str], int] = {}
        for row in rows:
            if row.ordering_key is not None and row.ordering_key not in lanes[row.lane].order.blocked:
                name = row.lane, row.ordering_key
                tops[name] = max(tops.get(name, 0), row.place)
        highest = {number: max(top for (lane, _), top in tops.items() if lane == number) for number, _ in tops}
        asked = [
            Stretch(number, lanes[number].epoch, low, min(high, top - 1))
            for number, top in highest.items()
            for low, high in stretches
            if low < top - 1
        ]
        if not asked:
            return
        read = {(row.lane, row.place) for row in rows}
        found: Counter[int] = Counter()
        for number, _epoch, _rescan, place, key in await self._rows_in(asked):
            if place is None:
                continue
            found[number] += 1
            missed = place < tops.get((number, key or ""), 0) and (number, place) not in read
            if found[number] >= SWEEP_LIMIT:  # there may be more than we were shown
                lanes[number].order.rewind(min(low for low, _ in stretches) + 1)
            elif missed and lanes[number].is_fresh(place):
                lanes[number].order.rewind(place)

    def _missing(self, lanes: dict[int, Lane], batch: Batch) -> None:
        """Rows that were asked for and did not come: gone, or beyond the budget. The lane is read again from there."""
        came = {(row.lane, row.place) for row in batch.rows}
        for number, place in batch.wanted:
            if (number, place) not in came:
                lanes[number].order.gone(place)

    def _windows(self, lanes: dict[int, Lane]) -> list[Window]:
        """Where to read on: lanes that are behind what was noted, and can remember more waiting keys."""
        asked = self._limits.ask(self._behind(lanes))
        floors = {number: lanes[number].order.floor for number in asked}
        return [
            Window(
                number, lanes[number].epoch, floors[number], self._limits.reach(floors[number], self._late.noted), most
            )
            for number, most in asked.items()
        ]

    def is_behind(self, lanes: dict[int, Lane]) -> bool:
        """Whether there is more than the last read asked for: not each lane has its turn, or goes all the way."""
        return bool(self._behind(lanes))

    def _behind(self, lanes: dict[int, Lane]) -> list[int]:
        noted = self._late.noted
        return [
            number
            for number, lane in lanes.items()
            if lane.order.floor < noted and not lane.order.is_full and not lane.suspects and not lane.leaving
        ]

    def _advance(
        self, lanes: dict[int, Lane], windows: list[Window], found: list[FetchedRow], rewinds: dict[int, int]
    ) -> None:
        """Move the floors, and let the limits follow the backlog.

        Not the floor of a lane that has to be read again since the read was sent (O-rewind): what an outcome has set
        free meanwhile lies below what was found.
        """
        counts = Counter([row.lane for row in found])
        highest = {row.lane: row.place for row in found}  # they come in the order of their places
        size = sum([row.size for row in found])
        cut = was_cut(found)
        self._limits.found({window.lane: window.most for window in windows}, counts, size, cut=cut)
        for window in windows:
            lane = lanes[window.lane]
            if lane.order.rewinds != rewinds[window.lane]:
                continue
            if cut or counts[window.lane] >= window.most:
                lane.order.floor = highest.get(window.lane, lane.order.floor)
            else:
                lane.order.floor = window.ceiling  # all there was

    async def read_some(self, lane: Lane, last: int, most: int, *, alone: bool) -> Batch:
        """Read on in one lane only, up to ``last``; ``alone`` says that they are suspects (C-alone)."""
        batch = self._begin({lane.lane: lane})
        most = min(most, self._limits.most)
        last = self._limits.reach(lane.order.floor, last)
        window = Window(lane.lane, lane.epoch, lane.order.floor, last, most)
        batch.rows = await self._fetch([window], batch.number, alone=alone)
        size = sum(row.size for row in batch.rows)
        self._limits.learn(size, len(batch.rows))
        read_all = len(batch.rows) < most and not was_cut(batch.rows)
        lane.order.floor = last if read_all else max(row.place for row in batch.rows)
        return batch


def was_cut(rows: Sequence[FetchedRow]) -> bool:
    """Whether there was more, within the limits of the lanes, than what came."""
    return bool(rows) and len(rows) < rows[0].found
