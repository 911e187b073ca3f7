"""The sender behind the commits of one ``Outbox``: takes what was reserved, has it sent, and never holds a commit up.

Failure story. A commit hands ids over and goes on; nothing here raises into it or makes it wait. At most a few flights
(crew.py) are under way, each with whatever had come by its start, and none lasts longer than the reservations it
carries. A broker that is gone, or a pool that gives nothing, opens a circuit: then nothing is reserved, and the relay
has all the work until a probe succeeds. ``close`` lets flights end and cuts off what does not; what was waiting lapses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from oncommit.brokers.base import Broker
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.registry import make_broker
from oncommit.db import pools
from oncommit.errors import ConfigError
from oncommit.outbox.crew import POOL, Crew, Load, Offer
from oncommit.outbox.home import Home, LoopHome, ThreadHome
from oncommit.outbox.optimistic import Observer, Optimistic, OptimisticStats, Sent

log: Final = logging.getLogger("oncommit.outbox")

_CLOSING: Final = 15.0


class Sender:
    """Sends what an Outbox has reserved."""

    def __init__(
        self,
        pool: Any,
        brokers: Mapping[str, Broker | str],
        schema: str,
        settings: Optimistic,
        observer: Observer | None = None,
    ) -> None:
        self.stats = OptimisticStats()
        self.settings = settings
        self.needs_loop = pools.belongs_to_a_loop(pool)
        """Whether it runs in the application's own event loop, and so serves nobody else."""
        self._pool = pool
        self._brokers = brokers
        self._schema = schema
        self._observer = observer
        self._home: Home = LoopHome() if self.needs_loop else ThreadHome()
        self._circuits = {name: Circuit(settings.circuit, random.uniform) for name in [*brokers, POOL]}
        self._probing = 0.0
        self._closed = False
        self._crew: Crew | None = None

    def is_ready(self, sinks: Iterable[str], count: int, size: int) -> bool:
        """Whether events may be reserved now. Asked before the insert, from any thread; a late answer does no harm."""
        load = self._crew.load if self._crew is not None else Load()
        most = self.settings
        if self._closed or count > most.most or load.events + count > most.waiting or load.bytes + size > most.bytes:
            return False
        now = time.monotonic()
        probes = False
        for name in {POOL, *sinks}:
            circuit = self._circuits.get(name)
            if circuit is None:  # a sink without a broker here
                return False
            if circuit.is_open:
                # One add at a time probes; should it never commit, the next one may after the limit.
                if circuit.wait(now) > 0 or now < self._probing:
                    return False
                probes = True
        if probes:
            self._probing = now + self.settings.limit
        return True

    def unused(self) -> None:
        """What might have been reserved was not, so it probes nothing."""
        self._probing = 0.0

    def offer(self, ids: Sequence[UUID], size: int) -> None:
        """These were reserved, and have committed. Never raises, never waits."""
        offer = Offer(tuple(ids), size, time.monotonic())
        try:
            taken = not self._closed and self._home.call(lambda: self._take(offer))
        except Exception:
            log.exception("%d events cannot be sent from here; the relay sends them", len(ids))
            taken = False
        if not taken:
            self._circuits[POOL].failed(time.monotonic(), "it cannot be used from here")
            for _ in offer.ids:
                self._report(Sent(None, None, "stopped", 0.0))

    async def close(self) -> None:
        """Let what is under way end, within the limit; then let go of broker and connections."""
        self._closed = True
        await self._home.ask(self._end)
        self._home.end()

    def close_blocking(self) -> None:
        """As ``close``, for applications without an event loop."""
        self._closed = True
        self._home.ask_blocking(self._end, 2 * self.settings.limit + _CLOSING)
        self._home.end()

    def _take(self, offer: Offer) -> None:
        if self._crew is None or self._crew.loop is not asyncio.get_running_loop():
            # The first of this loop: or of a child process, which has nothing of its parent's connections.
            self._crew = Crew(
                self._pool,
                self._brokers,
                self._schema,
                self.settings,
                self._circuits,
                self._report,
                self.stats.metrics,
            )
        self._crew.take(offer)

    async def _end(self) -> None:
        if self._crew is not None and self._crew.loop is asyncio.get_running_loop():
            await self._crew.end()
            self._crew = None

    def _report(self, sent: Sent) -> None:
        self.stats.done(sent)
        if self._observer is not None:
            try:
                self._observer(sent)
            except Exception:
                log.exception("the observer of optimistic sends failed")


def sender_for(
    after_commit: Any,
    broker: Broker | str | Mapping[str, Broker | str] | None,
    schema: str,
    sinks: frozenset[str],
    *,
    optimistic: Optimistic | bool,
    on_sent: Observer | None,
) -> Sender | None:
    """What sends behind the commits, where there is a pool and a broker to send with."""
    pooled = after_commit is not None and pools.is_pool(after_commit)
    if broker is None:
        return None
    if not pooled:
        raise ConfigError("a broker needs a pool, an engine or a DSN to send with: Outbox(after_commit=pool, broker=…)")
    brokers = dict(broker) if isinstance(broker, Mapping) else dict.fromkeys(sinks, broker)
    if unknown := brokers.keys() - sinks:
        raise ConfigError(f"broker names {', '.join(sorted(unknown))}, which are no sinks of this Outbox")
    if len(brokers) > 1 and not isinstance(broker, Mapping):
        raise ConfigError("this Outbox has several sinks: give a broker for each, broker={sink: …}")
    for each in brokers.values():
        if isinstance(each, str):
            make_broker(each)  # what is wrong with the URL is said here, not behind a commit
    if optimistic is False:
        return None
    return Sender(after_commit, brokers, schema, Optimistic() if optimistic is True else optimistic, on_sent)
