"""Where a producer has written already. Pure.

Why that matters: a broker that has nothing yet of a producer in a partition takes whatever number the first batch has.
If the very first batch fails for a moment (a topic made just now, a leader that moves) while the second is already in
flight, the second is taken, and the first, tried again, passes for a duplicate: librdkafka reports it as written,
without an offset, and it is nowhere. So an acknowledgement without an offset is none (kafka_flight.py), and where
nothing is known to be written, the first message of a key goes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MOST_KEYS: Final = 10_000


class Written:
    """What one producer has written, by topic and partition."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """How many partitions a topic has, as far as was asked."""
        self._partitions: dict[str, set[int]] = {}
        self._everywhere: set[str] = set()
        self._keys: set[tuple[str, str]] = set()

    def learn(self, counts: Mapping[str, int]) -> None:
        """How many partitions topics have. Some may be new, and nothing is written there."""
        self.counts = dict(counts)
        self._everywhere = {topic for topic in self._partitions if self._is_full(topic)}

    def everywhere(self, topics: Iterable[str]) -> bool:
        """Whether it has written to every partition of all of these."""
        return self._everywhere.issuperset(topics)

    def knows(self, topic: str, key: str) -> bool:
        """Whether it has written to the partition of this key."""
        return topic in self._everywhere or (topic, key) in self._keys

    def note(self, topic: str, key: str | None, partition: int) -> None:
        """It has written there."""
        if topic in self._everywhere:
            return
        self._partitions.setdefault(topic, set()).add(partition)
        if self._is_full(topic):
            self._everywhere.add(topic)
        elif key is not None:
            if len(self._keys) >= MOST_KEYS:
                self._keys.clear()
            self._keys.add((topic, key))

    def _is_full(self, topic: str) -> bool:
        return 0 < self.counts.get(topic, 0) <= len(self._partitions.get(topic, ()))
