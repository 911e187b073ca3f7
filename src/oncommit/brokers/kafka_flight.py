"""One call of publish: which of its messages may go, and what is known of those that went. Pure bookkeeping.

Messages of one key go together as long as they go to one topic: there Kafka itself takes none without those before it
(see kafka.py), once the producer has written to their partition (kafka_written.py); until then the first goes alone.
Where a key changes its topic, the next stretch waits until all of the last one is acknowledged. Without ``written``
every message waits for the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.kafka_written import Written
from oncommit.errors import BrokerError, NotAttempted, PublishFailed

HELD_BACK: Final = NotAttempted("an earlier event of its key was not acknowledged")
UNANSWERED: Final = PublishFailed("Kafka gave no answer")


class Flight:
    """The messages of a batch, by their index; of these only ``indexes`` fly."""

    __slots__ = (
        "_behind",
        "_flying",
        "_indexes",
        "_written",
        "_young",
        "batch",
        "errors",
        "open",
        "outcomes",
        "ready",
        "stopped",
    )

    def __init__(
        self, batch: Sequence[Message], indexes: Sequence[int], topics: set[str], written: Written | None
    ) -> None:
        self.batch = batch
        self._indexes = indexes
        self.outcomes: list[Outcome] = [UNANSWERED] * len(batch)
        """Nothing, which is good news, once they are acknowledged."""
        self.errors: dict[int, Any] = {}
        """Of those that were refused: the client's error."""
        self.ready: deque[int] = deque()
        """Those that may go now, in their order."""
        self.open = 0
        """How many are in flight."""
        self._written = written
        self._young = written is not None and not written.everywhere(topics)
        """Some of it may go where the producer has not written yet."""
        self.stopped: set[str] = set()
        """Keys of which nothing more may go."""
        self._behind: dict[str, deque[int]] = {}
        """Of keys that have to wait for the stretch before: the others, in their order."""
        self._flying: dict[str, int] = {}
        """Of these keys: how many of the stretch before are not yet acknowledged."""
        if written is not None and not self._young and len(topics) <= 1:
            self.ready.extend(indexes)  # nothing waits for anything
        else:
            self._divide(indexes)

    @property
    def is_over(self) -> bool:
        """Everything that may go has gone, and is answered."""
        return not self.open and not self.ready

    @property
    def is_good(self) -> bool:
        """Everything is acknowledged."""
        return not self.errors and not self.open and not self.ready and not self._behind

    def landed(self, index: int, error: Any, report: Any) -> None:
        """The client says what became of it. Called for each message, so it does the least it can.

        Without an offset it is not written, whatever the client thinks (see kafka_written.py).
        """
        self.open -= 1
        if error is None and report.offset() is not None:
            self.outcomes[index] = None
            if self._young:
                self._note(index, report.partition())
            if self._behind:
                self._follow(index)
        else:
            self.refused(index, error)

    def refused(self, index: int, error: Any) -> None:
        """It was not taken, perhaps not even handed over: nothing behind it goes."""
        self.errors[index] = error
        if (key := self.batch[index].key) is not None:
            self.stopped.add(key)
            self._behind.pop(key, None)

    def sort_out(self, cause: Callable[[Any, Message], BrokerError | None]) -> tuple[list[Outcome], list[int]]:
        """What is certain, and what remains in doubt, behind which its key is in doubt too.

        ``cause`` says of an error what it tells about the message that got it, if anything.
        """
        outcomes = list(self.outcomes)
        doubtful: list[int] = []
        stopped: dict[str, bool] = {}
        for index in self._indexes:
            message = self.batch[index]
            certain = stopped.get(message.key) if message.key is not None else None
            if certain is None and outcomes[index] is None:
                continue
            if certain is None:
                error = self.errors.get(index)
                told = error if error is None or isinstance(error, BrokerError) else cause(error, message)
                outcomes[index] = told
                certain = told is not None
                if message.key is not None:
                    stopped[message.key] = certain
            elif certain:
                outcomes[index] = HELD_BACK  # also if it was acknowledged, which it should not have been
            if not certain:
                doubtful.append(index)
        return outcomes, doubtful

    def _divide(self, indexes: Iterable[int]) -> None:
        batch, behind, go = self.batch, self._behind, self.ready.append
        topics: dict[str, str] = {}
        for index in indexes:
            message = batch[index]
            key = message.key
            if key is None:
                go(index)
            elif behind and key in behind:
                behind[key].append(index)
            elif key not in topics:
                topics[key] = message.topic
                go(index)
            elif topics[key] == message.topic and self._together(message.topic, key):
                go(index)
            else:
                behind[key] = deque([index])
        if behind:
            for index in self.ready:
                if (key := batch[index].key) in behind:
                    self._flying[key] = self._flying.get(key, 0) + 1

    def _together(self, topic: str, key: str) -> bool:
        """Whether messages of this key may be in flight together."""
        return self._written is not None and (not self._young or self._written.knows(topic, key))

    def _note(self, index: int, partition: int) -> None:
        if self._written is not None:
            self._written.note(self.batch[index].topic, self.batch[index].key, partition)

    def _follow(self, index: int) -> None:
        """If this was the last of a stretch, the next stretch of its key may go."""
        key = self.batch[index].key
        if key is None or key not in self._behind:
            return
        self._flying[key] -= 1
        if self._flying[key]:
            return
        left = self._behind[key]
        topic = self.batch[left[0]].topic
        stretch = [left.popleft()]
        while left and self.batch[left[0]].topic == topic and self._together(topic, key):
            stretch.append(left.popleft())
        self.ready.extend(stretch)
        self._flying[key] = len(stretch)
        if not left:
            del self._behind[key]
