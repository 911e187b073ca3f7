"""What is told of each batch: counters, durations, and a span where OpenTelemetry is running.

Everything is told once a batch, with its events counted by type, so that it costs an event next to nothing. Failure
story: what counts must not decide what is counted. Whatever goes wrong here (a full disk under a log, an exporter's
bug, a label that cannot be) is dropped, said once in the log where that still works, and never becomes a failed
publish.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from oncommit.brokers.base import Outcome
from oncommit.brokers.row import FetchedRow
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishRejected, TopicUnavailable
from oncommit.metrics import (
    ATTEMPTS,
    BATCH_SECONDS,
    CLAIMED,
    DEAD,
    DELAY,
    FAILED,
    PUBLISH_SECONDS,
    PUBLISHED,
    WAKE_SECONDS,
    Metrics,
)

log: Final = logging.getLogger("oncommit.brokers")

Told = Sequence[tuple[FetchedRow, str, Outcome]]
_REASONS: Final = ((BrokerUnavailable, "unavailable"), (TopicUnavailable, "topic"), (PublishRejected, "rejected"))


class Watch:
    """Of one sink."""

    def __init__(self, metrics: Metrics, sink: str, system: str, *, clock: Callable[[], float] = time.time) -> None:
        self.metrics = metrics
        self._clock = clock
        self._complained = False
        self._tracer: Callable[[Told, int, float], None] | None = None
        # Who traces has imported it already: nobody else pays for it.
        if "opentelemetry.trace" in sys.modules:
            self._safely(self._trace, sink, system)

    def claimed(self, events: int) -> None:
        """So many were read."""
        self._safely(self.metrics.add, CLAIMED, events)

    def published(self, told: Told, seconds: float) -> None:
        """A publish of so many seconds has ended with these outcomes."""
        self._safely(self._published, told, seconds)

    def settled(self, seconds: float) -> None:
        """A batch was written down, so long after its publish began."""
        self._safely(self.metrics.observe, BATCH_SECONDS, seconds)

    def woken(self, seconds: float) -> None:
        """What is published now was told of by a wake-up, so long ago."""
        self._safely(self.metrics.observe, WAKE_SECONDS, seconds)

    def died(self, types: Iterable[str]) -> None:
        """Events of these types became dead letters."""
        self._safely(self._died, types)

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────

    def _published(self, told: Told, seconds: float) -> None:
        sent = [row for row, _, outcome in told if outcome is None]
        types = Counter([row.type for row in sent])
        for kind, count in types.items():
            self.metrics.add(PUBLISHED, count, kind)
            self.metrics.observe(PUBLISH_SECONDS, seconds, count, kind)
        if sent:
            self.metrics.add(ATTEMPTS, len(sent), "success")
            now = self._clock()
            # The database's clock against ours: a little below nothing is nothing.
            written = map(datetime.timestamp, [row.created_at for row in sent])
            self.metrics.observe_all(DELAY, [max(now - moment, 0.0) for moment in written])
        if len(sent) != len(told):
            failed = Counter([(row.type, _reason(outcome)) for row, _, outcome in told if outcome is not None])
            for (kind, reason), count in failed.items():
                if reason:
                    self.metrics.add(FAILED, count, kind, reason)
                    self.metrics.add(ATTEMPTS, count, "failure")
        if self._tracer is not None:
            self._tracer(told, len(sent), seconds)

    def _died(self, types: Iterable[str]) -> None:
        for kind, count in Counter(types).items():
            self.metrics.add(DEAD, count, kind)

    def _trace(self, sink: str, system: str) -> None:
        from oncommit.brokers.tracing import batch_tracer

        self._tracer = batch_tracer(sink, system)

    def _safely(self, tell: Callable[..., None], *what: object) -> None:
        try:
            tell(*what)
        except Exception as error:  # noqa: BLE001 - see the failure story
            if not self._complained:
                self._complained = True
                say(logging.WARNING, "what is counted or traced is incomplete, this is said once: %r", error)


def say(level: int, message: str, *what: object, exc_info: bool = False, to: logging.Logger = log) -> None:
    """Log, from where an error of the log itself would cost events: a handler of the application's may raise."""
    try:
        to.log(level, message, *what, exc_info=exc_info)
    except Exception:  # noqa: BLE001 - there is nowhere left to say it
        return


def _reason(outcome: Outcome) -> str:
    """Why not, in one of few words; nothing for what was not tried."""
    if isinstance(outcome, NotAttempted):
        return ""
    return next((word for kind, word in _REASONS if isinstance(outcome, kind)), "failed")
