"""One publish to JetStream: what can go as flows does, the rest goes through the window, side by side.

Failure story. Whoever gives it up says so first (``end``), so that nothing more is sent, and only then cancels: the
client swallows a cancellation now and then. What was in flight by then has no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats_flow import NOT_ALLOWED, Flow
from oncommit.brokers.nats_plan import WORTH_IT, plan
from oncommit.brokers.nats_streams import Streams
from oncommit.brokers.nats_window import HELD_BACK, Flight, Window

_CANCEL_AGAIN: Final = 0.1


class Publishing:
    """One call of publish."""

    def __init__(
        self, window: Window, streams: Streams | None, batch: Sequence[Message], *, worth_it: int = WORTH_IT
    ) -> None:
        self._worth_it = worth_it
        self._window = window
        self._streams = streams
        self._batch = batch
        self._outcomes: list[Outcome] = [HELD_BACK] * len(batch)
        self._flights: list[tuple[Flight, Sequence[int]]] = []
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Publish all."""
        if self._streams is None or not self._window.is_connected:
            await self._singly(range(len(self._batch)))
            return
        flows, singly = plan(self._batch, self._streams.stream_of, worth_it=self._worth_it)
        async with asyncio.TaskGroup() as tasks:
            if singly:
                tasks.create_task(self._singly(singly))
            for places in flows:
                tasks.create_task(self._flow(places, self._streams))

    def outcomes(self) -> list[Outcome]:
        """What became of each message, as far as one knows."""
        for flight, places in self._flights:
            self._take_in(flight, places)
        return list(self._outcomes)

    async def end(self, work: asyncio.Task[None]) -> None:
        """Send nothing more, and wait until ``work``, which runs this, has ended."""
        self._over.set()
        for flight, _ in self._flights:
            flight.over.set()
        while not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=_CANCEL_AGAIN)

    async def _flow(self, places: Sequence[int], streams: Streams) -> None:
        flow = Flow(self._window, self._batch, places, self._over)
        left = await flow.fly(self._outcomes)
        if flow.refusal is not None and flow.refusal.err_code == NOT_ALLOWED:
            streams.refused({self._batch[index].topic for index in places})
        if left and not self._over.is_set():
            await self._singly(left)

    async def _singly(self, places: Sequence[int]) -> None:
        flight = Flight([self._batch[index] for index in places])
        self._flights.append((flight, places))
        await self._window.fly(flight)
        self._take_in(flight, places)

    def _take_in(self, flight: Flight, places: Sequence[int]) -> None:
        for index, outcome in zip(places, flight.outcomes, strict=True):
            self._outcomes[index] = outcome
