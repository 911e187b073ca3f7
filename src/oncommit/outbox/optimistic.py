"""Optimistic send: settings, and what is counted. Pure; the protocol: docs/internals/optimistic-send.md.

The insert itself reserves an event for its writer, where nothing of its lane is live; behind the commit the writer
sends it (sender.py). Whatever goes wrong, the reservation lapses by itself and the relay takes the event.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from oncommit.errors import ConfigError
from oncommit.metrics import (
    OPTIMISTIC_ATTEMPTS,
    OPTIMISTIC_FAILURES,
    OPTIMISTIC_SECONDS,
    OPTIMISTIC_SKIPPED,
    OPTIMISTIC_SUCCESSES,
    Metrics,
)
from oncommit.retry import Backoff
from oncommit.topics import TopicRules

LONGEST: Final = 60.0
LAST: Final = 0.15
"""Of the limit: so much of it is kept for the settle, or what was acknowledged last would be sent again."""

Reason: TypeAlias = Literal[
    "unavailable", "topic", "rejected", "refused", "timeout", "lapsed", "database", "unsettled", "stopped"
]
"""Why an event that was reserved was left to the relay.

``unavailable``: the broker could not be reached. ``topic``: its topic could not. ``rejected``: the broker will never
take it. ``refused``: it did not this time, or an earlier one of its key was not taken. ``timeout``: no answer in time.
``lapsed``: the reservation had run out before it could be sent, in a long transaction for example. ``database``: the
event could not be read again. ``unsettled``: it was acknowledged, but that could not be written down in time; the relay
sends it a second time. ``stopped``: the sender was closed.
"""


class Optimistic(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of optimistic send; times in seconds."""

    limit: float = 2.0
    """For so long after its insert an event is kept from the relay."""
    most: int = 100
    """A call that adds more events than this leaves them to the relay, which is faster with many."""
    waiting: int = 1000
    """Where so many events wait to be sent, further ones are left to the relay."""
    bytes: int = 8 * 1024 * 1024
    """Where payloads of so many bytes wait to be sent, or would with these, they are left to the relay."""
    source: str = "oncommit"
    """The ``source`` of CloudEvents; the same as the relay's."""
    topics: Mapping[str, TopicRules] = {}
    """The rules of each sink; the same as the relay's."""
    archive: bool = True
    """Whether what was sent is archived; the same as the relay's."""
    circuit: Backoff = Backoff(base=0.5, cap=30.0)
    """For how long nothing is reserved after the broker, or the pool, could not be used."""

    @property
    def kept(self) -> float:
        """Seconds before its end in which nothing is published any more."""
        return self.limit * LAST

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LONGEST:
            raise ConfigError(f"limit must be above zero and at most {LONGEST:g} s, not {self.limit!r}")
        if self.most < 1 or self.waiting < 1 or self.bytes < 1:
            raise ConfigError("most, waiting and bytes must be above zero")


class Sent(msgspec.Struct, frozen=True):
    """One event of which the sender is done, as an observer sees it."""

    event_type: str | None
    """Unknown where the event could not be read again."""
    sink: str | None
    failure: Reason | None
    """Nothing: it was acknowledged, and left the outbox."""
    seconds: float
    """From the commit to the acknowledgement, or to giving up."""


Observer: TypeAlias = Callable[[Sent], None]


class OptimisticStats:
    """What became of optimistic sends since the start. Read it at any time, from any thread."""

    def __init__(self) -> None:
        self.successes = 0
        """Events that the broker acknowledged and that were settled by their sender."""
        self.failures: Counter[Reason] = Counter()
        """Events that were reserved and left to the relay; by reason."""
        self.skipped = 0
        """Events that were not reserved: their lane was not empty, a circuit was open, or there were too many."""
        self.metrics = Metrics()
        """The same and what the publishes took, under the names of the metrics."""
        self._lock = threading.Lock()

    @property
    def attempts(self) -> int:
        """Events that were reserved, and have committed."""
        return self.successes + sum(self.failures.values())

    def skip(self, count: int) -> None:
        """So many were added without being reserved."""
        with self._lock:
            self.skipped += count
            self.metrics.add(OPTIMISTIC_SKIPPED, count)

    def done(self, sent: Sent) -> None:
        """The sender is done with one."""
        with self._lock:
            self.metrics.add(OPTIMISTIC_ATTEMPTS)
            if sent.failure is None:
                self.successes += 1
                self.metrics.add(OPTIMISTIC_SUCCESSES)
                self.metrics.observe(OPTIMISTIC_SECONDS, sent.seconds)
            else:
                self.failures[sent.failure] += 1
                self.metrics.add(OPTIMISTIC_FAILURES, 1, sent.failure)
