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

from oncommit.brokers.base import Broker
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.dispatcher import Dispatcher, Published, Publisher
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch
from oncommit.errors import BrokerUnavailable
from oncommit.metrics import Metrics
from oncommit.relay.idle import Idle
from oncommit.relay.lanes import Lanes
from oncommit.relay.lease import Lease
from oncommit.relay.limits import Limits
from oncommit.relay.local import LocalBroker
from oncommit.relay.pace import Pace
from oncommit.relay.priority import by_priority
from oncommit.relay.reader import Batch, Reader
from oncommit.relay.settings import RelaySettings
from oncommit.relay.store import Store
from oncommit.relay.suspects import Suspects
from oncommit.relay.writing import Writing
from oncommit.topics import TopicRules

log: Final = logging.getLogger("oncommit.relay")
TEND_EVERY: Final = 1.0
CHECK_EVERY: Final = 0.5


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
        changed: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch | None = None,
    ) -> None:
        self.sink = sink
        self.lanes = Lanes(sink, settings)
        self._broker = broker
        self._lease = lease
        self._settings = settings
        self._circuit = Circuit(settings.circuit, random.uniform)
        self._watch = watch or Watch(Metrics(), sink, broker.capabilities.name)
        self._dispatcher: Publisher = (
            broker.publisher(archive=settings.archive, watch=self._watch)
            if isinstance(broker, LocalBroker)
            else Dispatcher(
                broker,
                rules,
                source=settings.source,
                backoff=settings.circuit,
                uniform=random.uniform,
                watch=self._watch,
            )
        )
        self.serves = False
        """Whether its broker takes events: running, and its circuit closed."""
        self._changed = changed or asyncio.Event()
        self._term = 0
        self._reader: Reader
        # Kept over connections: one that broke because a read took too long must not be followed by the same again.
        self._limits = Limits(rows=settings.batch_rows, budget=settings.batch_bytes)
        self._tended = -TEND_EVERY
        self._clock = clock
        self.writing = Writing(
            self.lanes,
            self._dispatcher,
            self._circuit,
            settings,
            policy=settings.policy,
            clock=clock,
            watch=self._watch,
        )
        self._suspects = Suspects(
            self.writing, self._circuit, settings, rules=rules, publish=self._publish, clock=clock
        )
        self._passed = clock()
        self._pace = Pace(settings.poll_busy, settings.poll_idle, settings.poll_woken, clock())
        self.is_listening: Callable[[], bool] = lambda: False
        """Whether wake-ups can arrive."""

    async def run(self, reading: Store, settling: Store, stopping: asyncio.Event, wake: asyncio.Event) -> None:
        """Until told to stop, or until a connection breaks."""
        self._reader = Reader(reading, self._limits)
        self._term = self._lease.term
        self._tended = -TEND_EVERY
        idle = Idle(self._pace, self._clock, listening=self.is_listening, wake=wake)
        await self._open()
        await self.writing.write_all(settling)
        await settling.unclaim()  # what the last connection claimed and never published
        self.lanes.forget()
        following: asyncio.Task[Batch | None] | None = None
        try:
            while not stopping.is_set():
                self._serve(serves=not self._circuit.is_open)
                self.writing.check()
                if not await self._may_go(stopping):
                    await self._let_go(await following if following else None, reading)
                    following = None
                    await self._tend(reading)
                    continue
                batch = await following if following else await self._next(reading)
                following = None
                if suspect := next((lane for lane in self.lanes.owned.values() if lane.suspects), None):
                    await self._let_go(batch, reading)
                    await self.writing.done()
                    await self._suspects.try_lane(suspect, self._reader, settling)
                    continue
                rows = self._admit(batch) if batch else []
                if batch is None or not rows:
                    await self._let_go(batch, reading)
                    if batch is None:
                        await self._rest(idle, reading)
                    continue
                following = asyncio.create_task(self._next(reading))
                # Noted down before anything else can fail: what was acknowledged must not be sent again.
                self.writing.take(batch.number, await self._publish(rows))
                self.writing.go_on(settling)
                await self.writing.room()
            # A graceful end: what was read is let go, what was published is written down, the lanes go back.
            await self._let_go(await following if following else None, reading)
            following = None
            await self.writing.done()
            self.lanes.forget()
            await self.lanes.give_all_back(settling)
        finally:
            self._serve(serves=False)
            await self.writing.cancel()
            await _cancelled(following)

    @property
    def sent(self) -> int:
        """Events that were settled as sent."""
        return self.writing.sent

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    async def _next(self, store: Store) -> Batch | None:
        await self._tend(store)
        now = self._clock()
        if now - self._passed >= self._settings.full_pass_every:
            self._passed = now
            await self._reader.full_pass(self.lanes.owned)
        batch = await self._reader.read(self.lanes.owned, now)
        if batch is not None:
            self._watch.claimed(len(batch.rows))
        return batch

    async def _tend(self, store: Store) -> None:
        now = self._clock()
        if now - self._tended >= TEND_EVERY:
            await self.lanes.tend(store, can_serve=not self._circuit.is_open)
            await self._reader.note_settled(self.lanes.owned.values())
            self._tended = now

    def _serve(self, *, serves: bool) -> None:
        if serves != self.serves:
            self.serves = serves
            self._changed.set()

    def _admit(self, batch: Batch) -> list[FetchedRow]:
        """Which rows go. Called when the outcomes of the batch before are known (O-outcome)."""
        now = self._clock()
        by_lane: dict[int, list[FetchedRow]] = {}
        for row in batch.rows:
            by_lane.setdefault(row.lane, []).append(row)
        go: list[FetchedRow] = []
        for number, rows in by_lane.items():
            lane = self.lanes.find(number, rows[0].epoch)
            if lane is None:
                continue
            rows.sort(key=lambda row: row.place)  # late commits and due heads among the others
            fresh = lane.fresh(rows)
            if lane.order.rewinds != batch.rewinds.get(number, -1):
                # Something before these rows came free meanwhile: read them again, behind it.
                if fresh:
                    lane.order.rewind(fresh[0].place)
                continue
            going = lane.order.admit(fresh, now).go
            lane.takes_off(row.place for row in going)
            go += going
        return by_priority(go)

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

    async def _rest(self, idle: Idle, store: Store) -> None:
        """There is nothing to do: wait, and have an eye on the lanes. Unless some have not been asked yet."""
        if self._reader.is_behind(self.lanes.owned):
            return
        due = min((lane.order.next_due() for lane in self.lanes.owned.values()), default=float("inf"))

        async def tend() -> bool:
            self._check_lease()
            seen = self.lanes.seen()
            await self._tend(store)
            return self.lanes.seen() != seen

        await idle.wait(due, tend)

    # ── Publishing ───────────────────────────────────────────────────────────────────────────────

    async def _may_go(self, stopping: asyncio.Event) -> bool:
        """Whether the broker is there; waits a little where not. Raises ``LeaseLost``."""
        self._check_lease()
        wait = self._circuit.wait(self._clock())
        if wait > 0:
            await self._pause(stopping, min(wait, 1.0))
            return False
        if self._circuit.is_open:
            try:
                await self._broker.open()
                await self._broker.ping()
            except BrokerUnavailable as error:
                self._circuit.failed(self._clock(), str(error))
                return False
            self._circuit.worked()
            log.info("sink %s: the broker is back", self.sink)
        return True

    async def _open(self) -> None:
        """Connect to the broker. One that is not there opens the circuit, and the lanes can be left to others."""
        try:
            await self._broker.open()
        except BrokerUnavailable as error:
            log.warning("sink %s: %s", self.sink, error)
            self._circuit.failed(self._clock(), str(error))

    def _check_lease(self) -> None:
        """Whether we may act, and are still who we were when we began."""
        if not self._lease.is_ours or self._lease.term != self._term:
            raise LeaseLost

    @staticmethod
    async def _pause(stopping: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stopping.wait()
        except TimeoutError:
            pass

    async def _publish(self, rows: list[FetchedRow]) -> list[Published]:
        """Publish while the lease is ours, and not beyond (L-check)."""
        self._check_lease()
        self.writing.begins()
        if (told := self._pace.found(self._clock())) is not None:
            self._watch.woken(told)
        task = asyncio.create_task(self._dispatcher.publish(rows, timeout=self._settings.publish_timeout))
        try:
            while not task.done():
                self._check_lease()
                # Not for all that is left: the loop's clock stands still while the machine sleeps, the lease does not.
                await asyncio.wait({task}, timeout=min(self._lease.left, CHECK_EVERY))
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return task.result()


async def _cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel what is still running, and wait until it has ended."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
