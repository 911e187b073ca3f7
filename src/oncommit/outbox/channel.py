"""The sender's way to one broker: opened in the background, one publish at a time, with a circuit.

Failure story. A broker that takes longer to open than a reservation lasts goes on opening for the next; who waits for
it gives up at his deadline. A publish that hangs is cut off at its deadline and opens the circuit; what was sent of it
may arrive later (at least once). Publishes take turns, since an adapter need not stand two at once; those that wait
longer than their reservation holds are the relay's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Final

from oncommit.brokers.base import Broker, Outcome
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.dispatcher import Dispatcher
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishFailed, PublishRejected, TopicUnavailable
from oncommit.metrics import Metrics
from oncommit.outbox.optimistic import Optimistic, Reason
from oncommit.outbox.reservations import boottime
from oncommit.topics import default_rules

log: Final = logging.getLogger("oncommit.outbox")

GRACE: Final = 0.1
"""An adapter that does not keep its time limit is cut off so many seconds after it."""

Answer = tuple[FetchedRow, Reason | None]


class Channel:
    """One sink's broker, as the sender uses it."""

    def __init__(self, sink: str, broker: Broker, circuit: Circuit, settings: Optimistic, metrics: Metrics) -> None:
        self._sink = sink
        self._broker = broker
        self._circuit = circuit
        rules = settings.topics.get(sink) or default_rules(broker.capabilities.name)
        self._dispatcher = Dispatcher(
            broker,
            rules,
            source=settings.source,
            backoff=settings.circuit,
            uniform=random.uniform,
            watch=Watch(metrics, sink, broker.capabilities.name),
        )
        self._patience = settings.limit / 4
        self._turn = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None

    async def publish(self, rows: Sequence[FetchedRow], deadline: float) -> list[Answer]:
        """Publish these rows, which stand in the order of their keys, before the deadline; why not, for each."""
        try:
            async with asyncio.timeout(deadline - boottime()):
                await self._turn.acquire()
        except TimeoutError:
            return [(row, "lapsed") for row in rows]
        try:
            return await self._publish(rows, deadline)
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Give up what is in flight, and disconnect."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._broker.close()

    async def _publish(self, rows: Sequence[FetchedRow], deadline: float) -> list[Answer]:
        given = left = deadline - boottime()
        if left <= 0:
            return [(row, "lapsed") for row in rows]
        try:
            await self._opened(left)
            left = deadline - boottime()
            async with asyncio.timeout(left + GRACE):
                outcomes = [(row, outcome) for row, _, outcome in await self._dispatcher.publish(rows, timeout=left)]
        except BrokerUnavailable as error:
            outcomes = [(row, error) for row in rows]
        except TimeoutError:
            outcomes = [(row, PublishFailed("no answer in time")) for row in rows]
        except Exception as error:
            log.exception("the broker of sink %s cannot be used", self._sink)
            outcomes = [(row, BrokerUnavailable(f"it cannot be used: {error!r}")) for row in rows]
        late = boottime() >= deadline
        # Silence says something about the broker only where it had time to answer.
        self._note([outcome for _, outcome in outcomes], silent=late and given > self._patience)
        return [(row, reason_of(outcome, late=late)) for row, outcome in outcomes]

    async def _opened(self, timeout: float) -> None:
        """Connected, or connecting further behind our back. After a failure it is asked whether it answers."""
        if self._opening is None or (self._opening.done() and self._circuit.is_open):
            self._opening = asyncio.create_task(self._open(), name="oncommit sender opens")
            # Heard also where nobody waits for it any more.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        if not self._opening.done():
            await asyncio.wait({self._opening}, timeout=timeout)
        if not self._opening.done():
            raise BrokerUnavailable("the broker could not be opened in time")
        self._opening.result()

    async def _open(self) -> None:
        await self._broker.open()
        if self._circuit.is_open:
            await self._broker.ping()

    def _note(self, outcomes: Sequence[Outcome], *, silent: bool) -> None:
        """Close the circuit when the broker answers, open it when it does not."""
        now = time.monotonic()
        gone = next((outcome for outcome in outcomes if isinstance(outcome, BrokerUnavailable)), None)
        if gone is not None or (silent and any(outcome is not None for outcome in outcomes)):
            if self._circuit.wait(now) <= 0:
                self._circuit.failed(now, str(gone or "no answer in time"))
        else:
            self._circuit.worked()


def reason_of(outcome: Outcome, *, late: bool) -> Reason | None:
    """Why an event was not acknowledged; nothing where it was."""
    match outcome:
        case None:
            return None
        case BrokerUnavailable():
            return "unavailable"
        case TopicUnavailable():
            return "topic"
        case PublishRejected():
            return "rejected"
        case NotAttempted():
            return "refused"
        case _:
            return "timeout" if late else "refused"
