"""What flies in one event loop: events of committed transactions are read again, published, settled.

Failure story, by when the process dies or is paused; nobody has to repair anything:

- before the publish: the reservation lapses, the relay sends.
- between the publish and the settle: the same, and the event arrives twice (once a crash, at most what was in flight).
- paused beyond the reservation: what was about to be published comes late, as a duplicate of what the relay has sent
  meanwhile. Nothing that comes after it in its key was sent by us before, since each waits for the acknowledgement of
  the one before it. The settle finds its fence closed and changes nothing.

The reservation counts from the insert on the database's clock: what is left of it comes with the row, and runs from
before the question was sent (O-sending). A flight ends with it, whatever hangs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit.brokers.base import Broker
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.registry import make_broker
from oncommit.brokers.row import FetchedRow
from oncommit.db import pools
from oncommit.metrics import Metrics
from oncommit.outbox.channel import Channel
from oncommit.outbox.optimistic import Optimistic, Reason, Sent
from oncommit.outbox.reservations import Reservations, Reserved, boottime

log: Final = logging.getLogger("oncommit.outbox")

FLIGHTS: Final = pools.MOST
POOL: Final = ""
"""The name of the pool's circuit, beside those of the sinks."""


class Offer(msgspec.Struct, frozen=True):
    """What one transaction has reserved."""

    ids: tuple[UUID, ...]
    size: int
    """Of the payloads, in bytes, about."""
    committed: float


class Load(msgspec.Struct):
    """What a sender has to do, kept for whoever asks whether more can be taken."""

    events: int = 0
    bytes: int = 0

    def add(self, offer: Offer, times: int = 1) -> None:
        """So much more, or less."""
        self.events += times * len(offer.ids)
        self.bytes += times * offer.size


class Crew:
    """Flies for one sender in one loop. Everything here is called in that loop."""

    def __init__(
        self,
        pool: Any,
        brokers: Mapping[str, Broker | str],
        schema: str,
        settings: Optimistic,
        circuits: Mapping[str, Circuit],
        report: Callable[[Sent], None],
        metrics: Metrics,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.load = Load()
        """What waits for a flight, or flies."""
        self._settings = settings
        self._circuits = circuits
        self._report = report
        self._runner = pools.runner_for(pool)
        self._reservations = Reservations(self._runner, schema, archive=settings.archive)
        self._channels = {
            sink: Channel(
                sink, make_broker(broker) if isinstance(broker, str) else broker, circuits[sink], settings, metrics
            )
            for sink, broker in brokers.items()
        }
        self._offers: deque[Offer] = deque()
        self._flights: set[asyncio.Task[None]] = set()

    def take(self, offer: Offer) -> None:
        """Send these as soon as a flight is free."""
        self._offers.append(offer)
        self.load.add(offer)
        self._take_off()

    async def end(self) -> None:
        """Let the flights end, or cut them off at the limit; disconnect."""
        deadline = boottime() + self._settings.limit
        while (self._offers or self._flights) and (left := deadline - boottime()) > 0:
            self._take_off()
            await asyncio.wait(self._flights, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for flight in list(self._flights):
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        for offer in self._offers:
            self._gave_up(offer.ids, "stopped", offer.committed)
        self._offers.clear()
        self.load = Load()
        for channel in self._channels.values():
            await channel.close()
        await self._runner.close()

    def _take_off(self) -> None:
        """Start a flight with all that waits, where one is free."""
        if not self._offers or len(self._flights) >= FLIGHTS:
            return
        offers, self._offers = list(self._offers), deque()
        # Kept: a task that nobody holds may vanish in the middle.
        flight = self.loop.create_task(self._fly(offers), name="oncommit sender")
        self._flights.add(flight)
        flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if not flight.cancelled() and (error := flight.exception()) is not None:
            log.error("a flight of the sender failed; the relay sends its events", exc_info=error)
        self._take_off()

    async def _fly(self, offers: Sequence[Offer]) -> None:
        aboard = {event: offer.committed for offer in offers for event in offer.ids}
        try:
            await self._deliver(aboard)
        except asyncio.CancelledError:
            for event, committed in aboard.items():
                self._gave_up([event], "stopped", committed)
            raise
        finally:
            for offer in offers:
                self.load.add(offer, -1)

    async def _deliver(self, committed: dict[UUID, float]) -> None:
        """Read, publish and settle. Who is done with is taken off the list."""
        reserved = await self._read(committed)
        if reserved is None:
            return
        for event in committed.keys() - {row.id for row in [*reserved.rows, *reserved.lapsed]}:
            del committed[event]  # gone with a savepoint, or the relay's for so long that it has taken it
        for row in reserved.lapsed:
            self._done(row, "lapsed", committed)
        sinks: dict[str, list[FetchedRow]] = {}
        for row in reserved.rows:
            sinks.setdefault(row.sink, []).append(row)
        await asyncio.gather(*(self._send(sink, rows, reserved.deadline, committed) for sink, rows in sinks.items()))

    async def _read(self, committed: dict[UUID, float]) -> Reserved | None:
        """What is reserved still; a failure is the pool's, and opens its circuit."""
        circuit = self._circuits[POOL]
        try:
            reserved = await self._reservations.read(
                list(committed), kept=self._settings.kept, timeout=self._settings.limit
            )
        except Exception as error:  # noqa: BLE001 - pools and drivers of others, each with errors of its own
            log.warning("committed events cannot be read to be sent at once, the relay sends them: %r", error)
            circuit.failed(time.monotonic(), repr(error))
            for event in list(committed):
                self._gave_up([event], "database", committed.pop(event))
            return None
        if not reserved.rows:  # else the settle has the last word
            circuit.worked()
        return reserved

    async def _send(self, sink: str, rows: Sequence[FetchedRow], deadline: float, committed: dict[UUID, float]) -> None:
        """Publish and write down what came of it, for the rows of one sink."""
        answers = await self._channels[sink].publish(rows, deadline - self._settings.kept)
        answered = time.monotonic()
        sent = [row for row, reason in answers if reason is None]
        failed = [(row, reason) for row, reason in answers if reason is not None]
        settled = await self._settle(sent, answered, deadline)
        for row in sent:
            self._done(row, None if row.id in settled else "unsettled", committed, answered)
        # Before anybody hears of it: a relay that is woken by the word shall find them.
        await self._hand_back([row for row, reason in failed if reason != "lapsed"], deadline)
        for row, reason in failed:
            self._done(row, reason, committed, answered)

    async def _settle(self, rows: Sequence[FetchedRow], answered: float, deadline: float) -> set[UUID]:
        """Have acknowledged events leave; those that did. The others arrive twice."""
        left = deadline - boottime()
        if not rows or left <= 0:
            return set()
        try:
            age = time.monotonic() - answered
            settled = await self._reservations.settle(rows, [age] * len(rows), timeout=left)
        except Exception as error:  # noqa: BLE001 - as in _read
            # Not again and again: where a right is missing, each event would be delivered twice.
            log.warning("%d events were sent, but not settled; the relay sends them again: %r", len(rows), error)
            self._circuits[POOL].failed(time.monotonic(), repr(error))
            return set()
        self._circuits[POOL].worked()
        return settled

    async def _hand_back(self, rows: Sequence[FetchedRow], deadline: float) -> None:
        left = deadline - boottime()
        if not rows or left <= 0:
            return
        try:
            await self._reservations.hand_back(rows, timeout=left)
        except Exception as error:  # noqa: BLE001 - as in _read
            log.info("%d reservations are left to lapse: %r", len(rows), error)

    def _done(
        self, row: FetchedRow, failure: Reason | None, committed: dict[UUID, float], at: float | None = None
    ) -> None:
        seconds = (time.monotonic() if at is None else at) - committed.pop(row.id)
        self._report(Sent(row.type, row.sink, failure, seconds))

    def _gave_up(self, events: Sequence[UUID], reason: Reason, committed: float) -> None:
        seconds = time.monotonic() - committed
        for _ in events:
            self._report(Sent(None, None, reason, seconds))
