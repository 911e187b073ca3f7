"""What is counted, by name: the one list of metrics, and the place in memory where a program keeps their values.

Pure. Whoever shows them (an exposition for Prometheus, a dashboard) reads ``snapshot``. Labels have few values: a type
of event is one, an id or a key never is; and since plain SQL may write any type, only the first so many get a name of
their own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

MOST_VALUES: Final = 200
"""Of one label; what comes after them is counted as ``OTHER``."""
OTHER: Final = "_other"
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DELAYS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


class Definition(msgspec.Struct, frozen=True):
    """One metric. With ``buckets`` it is a histogram, else a counter."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


ATTEMPTS: Final = Definition("outbox_publish_attempts_total", "Events handed to a broker, by its answer.", ("result",))
CLAIMED: Final = Definition("outbox_claimed_events_total", "Events that a relay has read and claimed.")
PUBLISHED: Final = Definition("outbox_published_events_total", "Events that a broker acknowledged.", ("event_type",))
FAILED: Final = Definition(
    "outbox_failed_events_total", "Attempts that a broker did not acknowledge.", ("event_type", "reason")
)
DEAD: Final = Definition("outbox_dlq_total", "Events that became dead letters.", ("event_type",))
PUBLISH_SECONDS: Final = Definition(
    "outbox_publish_duration_seconds", "Of the publish that an event was in.", ("event_type",), SECONDS
)
BATCH_SECONDS: Final = Definition("outbox_batch_duration_seconds", "From a batch's publish to its settle.", (), SECONDS)
DELAY: Final = Definition("outbox_processing_delay_seconds", "From an event's writing to its publish.", (), DELAYS)
WAKE_SECONDS: Final = Definition(
    "relay_wake_up_latency_seconds", "From a wake-up to the publish of what it told of.", (), SECONDS
)

OPTIMISTIC_ATTEMPTS: Final = Definition(
    "outbox_optimistic_send_attempts_total", "Events that were reserved for their writer, and have committed."
)
OPTIMISTIC_SUCCESSES: Final = Definition(
    "outbox_optimistic_send_success_total", "Of these, sent by their writer right after the commit."
)
OPTIMISTIC_FAILURES: Final = Definition(
    "outbox_optimistic_send_failures_total", "Of these, left to the relay.", ("reason",)
)
OPTIMISTIC_SKIPPED: Final = Definition(
    "outbox_optimistic_send_skipped_total", "Events that were left to the relay from the start."
)
OPTIMISTIC_SECONDS: Final = Definition(
    "outbox_optimistic_send_latency_seconds", "From an event's commit to its acknowledgement.", (), SECONDS
)

DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        one.name: one
        for one in (
            ATTEMPTS,
            CLAIMED,
            PUBLISHED,
            FAILED,
            DEAD,
            PUBLISH_SECONDS,
            BATCH_SECONDS,
            DELAY,
            WAKE_SECONDS,
            OPTIMISTIC_ATTEMPTS,
            OPTIMISTIC_SUCCESSES,
            OPTIMISTIC_FAILURES,
            OPTIMISTIC_SKIPPED,
            OPTIMISTIC_SECONDS,
        )
    }
)


class Series(msgspec.Struct):
    """Values under one set of labels."""

    value: float = 0.0
    """Of a counter; of a histogram, the sum of what was observed."""
    counts: list[int] = []
    """Of a histogram: how many fell into each bucket, not cumulated; the last holds what lies above all."""

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)


class Metrics:
    """The values of one program."""

    def __init__(self) -> None:
        self._series: dict[str, dict[tuple[str, ...], Series]] = {name: {} for name in DEFINITIONS}

    def add(self, metric: Definition, value: float = 1, *labels: str) -> None:
        """Count so many more."""
        self._find(metric, labels).value += value

    def observe(self, metric: Definition, value: float, count: int = 1, *labels: str) -> None:
        """So many had this value."""
        series = self._find(metric, labels)
        series.counts[bisect_left(metric.buckets, value)] += count
        series.value += value * count

    def observe_all(self, metric: Definition, values: Iterable[float], *labels: str) -> None:
        """Each of these once: sorted, and each bucket counted by its ends, so that a thousand cost little."""
        ordered = sorted(values)
        series = self._find(metric, labels)
        below = 0
        for place, bound in enumerate(metric.buckets):
            upto = bisect_right(ordered, bound, below)
            series.counts[place] += upto - below
            below = upto
        series.counts[-1] += len(ordered) - below
        series.value += sum(ordered)

    def snapshot(self) -> dict[str, dict[tuple[str, ...], Series]]:
        """All values as they are now, by metric and by the values of its labels in their order."""
        return {
            name: {labels: Series(series.value, list(series.counts)) for labels, series in list(found.items())}
            for name, found in self._series.items()
        }

    def _find(self, metric: Definition, labels: tuple[str, ...]) -> Series:
        known = self._series[metric.name]
        series = known.get(labels)
        if series is None:
            if len(labels) != len(metric.labels):
                raise ValueError(f"{metric.name} has the labels {metric.labels}, not {len(labels)} of them")
            if labels and len(known) >= MOST_VALUES and labels[0] != OTHER:
                return self._find(metric, (OTHER, *labels[1:]))
            series = known[labels] = Series(0.0, [0] * (len(metric.buckets) + 1) if metric.buckets else [])
        return series
