"""One sink's loop: read, order, publish, settle, with reading and settling running beside the publish.

Failure story.

- Killed: batches in flight stay claimed; whoever takes the lanes tries them first, apart (relay/suspects.py).
- Asleep, or cut off from the database, for longer than the lease: it publishes nothing more (L-check); what it settles
  later is refused by the fence. Its successor sends again what was in flight.
- The database's connection breaks: memory of floors is thrown away, rows are read from zero. What was acknowledged and
  not yet settled is settled first, on the new connection, so that a restart of PostgreSQL costs no duplicate where the
  lease has held.
- The broker is gone: the circuit opens, rows stay where they are, no attempt is spent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from oncommit.brokers.base import Broker
from oncommit.errors import BrokerUnavailable
from oncommit.relay.circuit import Circuit
from oncommit.relay.dispatcher import Dispatcher, Published
from oncommit.relay.lane import Lane
from oncommit.relay.lanes import Lanes
from oncommit.relay.lease import Lease
from oncommit.relay.outcomes import Verdict, judge
from oncommit.relay.reader import Batch, Reader
from oncommit.relay.row import FetchedRow
from oncommit.relay.settings import RelaySettings
from oncommit.relay.store import Burial, Store
from oncommit.retry import RetryPolicy
from oncommit.topics import TopicRules

log: Final = logging.getLogger("oncommit.relay")
TEND_EVERY: Final = 1.0


class Settled(msgspec.Struct):
    """A batch whose outcomes have to be written down."""

    number: int
    epochs: dict[int, int]
    verdict: Verdict
    published_at: float


class LeaseLost(Exception):
    """The lease ran out in the middle of something."""


class SinkRelay:
    """Relays one sink."""

    def __init__(
        self,
        sink: str,
        broker: Broker,
        lease: Lease,
        settings: RelaySettings,
        *,
        rules: TopicRules,
        policy: Callable[[str], RetryPolicy] | None = None,
    ) -> None:
        self.sink = sink
        self.lanes = Lanes(sink, settings)
        self.sent = 0
        self._broker = broker
        self._lease = lease
        self._settings = settings
        self._policy = policy or (lambda _type: settings.retry)
        self._circuit = Circuit(settings.circuit, random.uniform)
        self._dispatcher = Dispatcher(
            broker, rules, source=settings.source, backoff=settings.circuit, uniform=random.uniform
        )
        self._unwritten: list[Settled] = []
        self._reader: Reader
        self._tended = -TEND_EVERY
        self._passed = time.monotonic()

    async def run(self, reading: Store, settling: Store, stopping: asyncio.Event, wake: asyncio.Event) -> None:
        """Until told to stop, or until a connection breaks."""
        self._reader = Reader(reading, rows=self._settings.batch_rows, budget=self._settings.batch_bytes)
        self.lanes.forget()
        await self._write_all(settling)
        await settling.unclaim()  # what the last connection claimed and never published
        self.lanes.ground_all()
        following: asyncio.Task[Batch | None] | None = None
        writing: asyncio.Task[None] | None = None
        try:
            while not stopping.is_set():
                if not await self._may_go(stopping):
                    continue
                batch = await following if following else await self._next(reading)
                following = None
                if any(lane.suspects for lane in self.lanes.owned.values()):
                    await self._let_go(batch, settling)
                    if writing:
                        await writing
                    await self._try_suspects(settling)
                    continue
                rows = self._admit(batch) if batch else []
                if batch is None or not rows:
                    await self._let_go(batch, settling)
                    if batch is None:
                        await self._idle(stopping, wake)
                    continue
                following = asyncio.create_task(self._next(reading))
                settled = self._judge(batch.number, await self._publish(rows))
                if writing:
                    await writing
                self._unwritten.append(settled)
                writing = asyncio.create_task(self._write_all(settling))
            # A graceful end: what was read is let go, what was published is written down, the lanes go back.
            await self._let_go(await following if following else None, settling)
            following = None
            if writing:
                await writing
            self.lanes.ground_all()
            await self.lanes.give_all_back(settling)
        finally:
            await _cancelled(following, writing)

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    async def _next(self, store: Store) -> Batch | None:
        now = time.monotonic()
        if now - self._tended >= TEND_EVERY:
            await self.lanes.tend(store)
            self._tended = now
        if now - self._passed >= self._settings.full_pass_every:
            self._passed = now
            for lane in self.lanes.owned.values():
                lane.order.rewind(1)
        return await self._reader.read(self.lanes.owned, now)

    def _admit(self, batch: Batch) -> list[FetchedRow]:
        """Which rows go. Called when the outcomes of the batch before are known (O-outcome)."""
        now = time.monotonic()
        by_lane: dict[int, list[FetchedRow]] = {}
        for row in batch.rows:
            by_lane.setdefault(row.lane, []).append(row)
        go: list[FetchedRow] = []
        for number, rows in by_lane.items():
            lane = self.lanes.find(number, rows[0].epoch)
            if lane is None:
                continue
            rows.sort(key=lambda row: row.place)  # late commits and due heads among the others
            fresh = lane.fresh(rows, batch.read)
            if lane.order.rewinds != batch.rewinds.get(number, -1):
                # Something before these rows came free meanwhile: read them again, behind it.
                if fresh:
                    lane.order.rewind(fresh[0].place)
                continue
            going = lane.order.admit(fresh, now).go
            lane.takes_off(row.place for row in going)
            go += going
        return go

    async def _let_go(self, batch: Batch | None, store: Store) -> None:
        """A batch of which nothing is published: its claim ends, and what was not merely held back is read again."""
        if batch is None:
            return
        for row in batch.rows:
            lane = self.lanes.find(row.lane, row.epoch)
            if lane is None or row.place in lane.in_flight or lane.order.holds(row.ordering_key, row.place):
                continue
            lane.order.rewind(row.place)
        await store.unclaim(batch.number)

    async def _idle(self, stopping: asyncio.Event, wake: asyncio.Event) -> None:
        due = min((lane.order.next_due() for lane in self.lanes.owned.values()), default=float("inf"))
        pause = min(self._settings.poll_busy, max(due - time.monotonic(), 0.001))
        waits = [asyncio.create_task(wake.wait()), asyncio.create_task(stopping.wait())]
        await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        wake.clear()

    # ── Publishing ───────────────────────────────────────────────────────────────────────────────

    async def _may_go(self, stopping: asyncio.Event) -> bool:
        """Whether the broker is there; waits a little where not. Raises ``LeaseLost``."""
        if not self._lease.is_ours:
            raise LeaseLost
        wait = self._circuit.wait(time.monotonic())
        if wait > 0:
            await self._pause(stopping, min(wait, 1.0))
            return False
        if self._circuit.is_open:
            try:
                await self._broker.ping()
            except BrokerUnavailable as error:
                self._circuit.failed(time.monotonic(), str(error))
                return False
            self._circuit.worked()
            log.info("sink %s: the broker is back", self.sink)
        return True

    @staticmethod
    async def _pause(stopping: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stopping.wait()
        except TimeoutError:
            pass

    async def _publish(self, rows: list[FetchedRow]) -> list[Published]:
        """Publish while the lease is ours, and not beyond (L-check)."""
        if not self._lease.is_ours:
            raise LeaseLost
        task = asyncio.create_task(self._dispatcher.publish(rows, timeout=self._settings.publish_timeout))
        try:
            while not task.done():
                left = self._lease.left
                if left <= 0:
                    raise LeaseLost
                await asyncio.wait({task}, timeout=left)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return task.result()

    def _judge(self, number: int, published: list[Published]) -> Settled:
        """Remember what follows from the outcomes for the order; what is to be written comes back."""
        now = time.monotonic()
        verdict = judge(published, self._policy, random.uniform)
        epochs = {row.lane: row.epoch for row, _, _ in published}
        self._remember(verdict, now)
        if verdict.unavailable:
            log.warning("sink %s: the broker cannot be reached: %s", self.sink, verdict.cause)
            self._circuit.failed(now, verdict.cause)
        return Settled(number, epochs, verdict, now)

    def _remember(self, verdict: Verdict, now: float) -> None:
        """Let the lanes know: who went, who waits until when, and who has to be read again."""
        for row in [*verdict.sent, *(row for row, _ in verdict.burials)]:
            if lane := self.lanes.find(row.lane, row.epoch):
                lane.order.passed(row)
        for row, failure in verdict.failures:
            if lane := self.lanes.find(row.lane, row.epoch):
                lane.order.failed(row, now + failure.delay)
        for topic, rows in verdict.topics.items():
            wait = self._dispatcher.topic_wait(topic)
            for row in rows:
                if lane := self.lanes.find(row.lane, row.epoch):
                    lane.order.failed(row, now + wait)
                    lane.lands([row.place], self._reader.reads)
        for row in [*verdict.waiting, *verdict.unavailable]:
            self._step_back(row)

    def _step_back(self, row: FetchedRow) -> None:
        """A row that was not tried is read again: behind the head that its key waits for, or from where it stands."""
        if lane := self.lanes.find(row.lane, row.epoch):
            if not lane.order.holds(row.ordering_key, row.place):
                lane.order.rewind(row.place)
            lane.lands([row.place], self._reader.reads)

    # ── Writing down ─────────────────────────────────────────────────────────────────────────────

    async def _write_all(self, store: Store) -> None:
        """Write down what is not yet. Each statement can be run again after a lost answer: it finds nothing to do."""
        while self._unwritten:
            await self._write(store, self._unwritten[0])
            self._unwritten.pop(0)

    async def _write(self, store: Store, settled: Settled) -> None:
        verdict = settled.verdict
        if verdict.burials:
            keep = self._settings.dead_letter_days * 86400
            await store.bury([burial for _, burial in verdict.burials], keep=keep)
        if verdict.failures:
            await store.fail([failure for _, failure in verdict.failures])
        age = time.monotonic() - settled.published_at
        sent = [(row.lane, row.place, age) for row in verdict.sent]
        count, _ = await store.settle(settled.epochs, sent, batch=settled.number, archive=self._settings.archive)
        self.sent += count
        landed = [*verdict.sent, *(row for row, _ in verdict.failures), *(row for row, _ in verdict.burials)]
        for row in landed:
            if lane := self.lanes.find(row.lane, row.epoch):
                lane.lands([row.place], self._reader.reads)

    # ── Suspects ─────────────────────────────────────────────────────────────────────────────────

    async def _try_suspects(self, store: Store) -> None:
        """Try what was in flight when a lane's owner died, apart from all else of this sink (C-alone).

        The caller has nothing in flight. Half as many at once as before: should they kill us too, our successor finds
        a claim half as large, and at last one of a single event.
        """
        lane = next(lane for lane in self.lanes.owned.values() if lane.suspects)
        lane.suspects.sort(key=lambda claim: claim.first)
        while lane.suspects:
            claim = lane.suspects[0]
            if claim.alone and claim.rows == 1:
                await self._charge(lane, claim.first, store)
            lane.order.floor = claim.first - 1
            while lane.order.floor < claim.last:
                batch = await self._reader.read_suspects(lane, claim.last, max(claim.rows // 2, 1))
                rows = lane.order.admit(lane.fresh(batch.rows, batch.read), time.monotonic()).go
                lane.takes_off(row.place for row in rows)
                published = await self._publish(rows) if rows else []
                self._unwritten.append(self._judge(batch.number, published))
                await self._write_all(store)
                if self._circuit.is_open:  # not the events' fault; go on when the broker is back
                    return
            lane.suspects.pop(0)
        await store.drop_claims({lane.lane: lane.epoch})
        lane.order.forget()

    async def _charge(self, lane: Lane, place: int, store: Store) -> None:
        crashes = await store.charge_crash(lane.lane, lane.epoch, place)
        if crashes >= self._settings.crash_limit:
            reason = f"alone in flight when its relay died, {crashes} times"
            await store.bury(
                [Burial(lane.lane, lane.epoch, place, "crashed", "RelayCrashed", reason)],
                keep=self._settings.dead_letter_days * 86400,
            )
            log.error("sink %s: the event at %d is a dead letter: %s", self.sink, place, reason)


async def _cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel what is still running, and wait until it has ended."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
