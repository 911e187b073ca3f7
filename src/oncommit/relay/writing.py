"""What becomes of a batch after its publish: remembered at once, written down until it is.

Failure story. Outcomes are remembered before anything else is awaited, so that what was acknowledged is not sent again,
and what failed holds its key back. To write them down can fail at any statement, or lose its answer: what is not
written stays in the list, in the order of the batches, and is written first on the next connection. Each statement can
run twice (Z-once), and does nothing to lanes that were lost (Z-fence).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from oncommit.brokers.circuit import Circuit
from oncommit.brokers.dispatcher import Published, Publisher
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch, say
from oncommit.relay.burying import bury_or_park, hold_parked_keys
from oncommit.relay.lanes import Lanes
from oncommit.relay.outcomes import Verdict, judge
from oncommit.relay.settings import RelaySettings
from oncommit.relay.settling import fail, settle
from oncommit.relay.store import Store
from oncommit.retry import RetryPolicy

log: Final = logging.getLogger("oncommit.relay")


class Settled(msgspec.Struct):
    """A batch whose outcomes have to be written down."""

    number: int
    epochs: dict[int, int]
    verdict: Verdict
    begun_at: float
    published_at: float


class Writing:
    """Of one sink."""

    def __init__(
        self,
        lanes: Lanes,
        dispatcher: Publisher,
        circuit: Circuit,
        settings: RelaySettings,
        *,
        policy: Callable[[str], RetryPolicy],
        clock: Callable[[], float],
        watch: Watch,
    ) -> None:
        self.unwritten: list[Settled] = []
        self.sent = 0
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._circuit = circuit
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self.watch = watch
        self._begun = clock()
        self._task: asyncio.Task[None] | None = None
        self._written = asyncio.Event()

    def begins(self) -> None:
        """The publish of a batch begins."""
        self._begun = self._clock()

    def take(self, number: int, published: list[Published]) -> None:
        """Take in what became of a batch: what follows for the order is remembered now, the rest is to be written."""
        now = self._clock()
        verdict = judge(published, self._policy, random.uniform)
        epochs = {row.lane: row.epoch for row, _, _ in published}
        self._remember(verdict, now)
        if verdict.unavailable:
            words = "sink %s: the broker cannot be reached: %s"
            say(logging.WARNING, words, self._lanes.sink, verdict.cause, to=log)
            self._circuit.failed(now, verdict.cause)
        self.unwritten.append(Settled(number, epochs, verdict, self._begun, now))

    async def write_all(self, store: Store) -> None:
        """Write down what is not yet. Each statement can be run again after a lost answer: it finds nothing to do."""
        while self.unwritten:
            await self._write(store, self.unwritten[0])
            self.unwritten.pop(0)
            self._written.set()

    # ── Beside the publishing ────────────────────────────────────────────────────────────────────

    def go_on(self, store: Store) -> None:
        """Write down what there is, beside whatever comes next."""
        self.check()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self.write_all(store))

    def check(self) -> None:
        """Raises what has failed: it must not wait for the next batch, which may be long in coming."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def room(self) -> None:
        """Until no more than one batch waits to be written: with the one that is published, two are in flight."""
        while self._task is not None and len(self.unwritten) > 1:
            self._written.clear()
            written = asyncio.create_task(self._written.wait())
            try:
                await asyncio.wait({self._task, written}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                written.cancel()
            self.check()

    async def done(self) -> None:
        """Until all is written."""
        if self._task is not None:
            await self._task

    async def cancel(self) -> None:
        """Stop writing; what is not written stays in the list."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # ── Remembering ──────────────────────────────────────────────────────────────────────────────

    def _remember(self, verdict: Verdict, now: float) -> None:
        """Let the lanes know: who went, who waits until when, and who has to be read again."""
        waited_for = {number for number, lane in self._lanes.owned.items() if lane.order.blocked}
        for row in [*verdict.sent, *(row for row, _ in verdict.burials)]:
            if row.lane in waited_for and (lane := self._lanes.find(row.lane, row.epoch)):
                lane.order.passed(row)
        hold_parked_keys(self._lanes, verdict, self._settings)
        for row, failure in verdict.failures:
            if lane := self._lanes.find(row.lane, row.epoch):
                lane.order.failed(row, now + failure.delay)
        for topic, rows in verdict.topics.items():
            wait = self._dispatcher.topic_wait(topic)
            for row in rows:
                if lane := self._lanes.find(row.lane, row.epoch):
                    lane.order.failed(row, now + wait)
                    lane.lands([row.place])
        for row in [*verdict.waiting, *verdict.unavailable]:
            self._step_back(row)

    def _step_back(self, row: FetchedRow) -> None:
        """A row that was not tried is read again: behind the head that its key waits for, or from where it stands."""
        if lane := self._lanes.find(row.lane, row.epoch):
            if not lane.order.holds(row.ordering_key, row.place):
                lane.order.rewind(row.place)
            lane.lands([row.place])

    # ── Writing down ─────────────────────────────────────────────────────────────────────────────

    async def _write(self, store: Store, settled: Settled) -> None:
        verdict = settled.verdict
        if verdict.burials:
            await bury_or_park(store, [burial for _, burial in verdict.burials], self._settings)
            self.watch.died(row.type for row, _ in verdict.burials)
        if verdict.failures:
            await fail(store, [failure for _, failure in verdict.failures])
        age = self._clock() - settled.published_at
        sent = [(row.lane, row.place, age) for row in verdict.sent]
        self.sent += await settle(store, settled.epochs, sent, batch=settled.number, archive=self._settings.archive)
        self.watch.settled(self._clock() - settled.begun_at)
        self._land([*verdict.sent, *(row for row, _ in verdict.failures), *(row for row, _ in verdict.burials)])

    def _land(self, rows: Iterable[FetchedRow]) -> None:
        landed: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            landed.setdefault((row.lane, row.epoch), []).append(row.place)
        for (number, epoch), places in landed.items():
            if lane := self._lanes.find(number, epoch):
                lane.lands(places)
