"""One call of publish: which of its messages may go, and what is known of those that went. Pure bookkeeping.

Messages of one key go together as long as they go to one topic: there Kafka itself takes none without those before it
(see kafka.py). Where a key changes its topic, the next stretch waits until all of the last one is acknowledged. With
``together=False`` every message waits for the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import BrokerError, NotAttempted, PublishFailed

HELD_BACK: Final = NotAttempted("an earlier event of its key was not acknowledged")
UNANSWERED: Final = PublishFailed("Kafka gave no answer")


class Flight:
    """The messages of a batch, by their index; of these only ``indexes`` fly."""

    def __init__(self, batch: Sequence[Message], indexes: Sequence[int], *, together: bool = True) -> None:
        self.batch = batch
        self._indexes = indexes
        self.outcomes: list[Outcome] = [HELD_BACK] * len(batch)
        """Unanswered once they have gone; nothing, which is good news, once they are acknowledged."""
        self.errors: dict[int, Any] = {}
        """Of those that were refused: the client's error."""
        self.ready: deque[int] = deque()
        """Those that may go now, in their order."""
        self.open = 0
        """How many are in flight."""
        self.good = 0
        """How many are acknowledged."""
        self._together = together
        self._stopped: set[str] = set()
        self._behind: dict[str, deque[int]] = {}
        """Of keys that have to wait for the stretch before: the others, in their order."""
        self._flying: dict[str, int] = {}
        """Of these keys: how many of the stretch before are not yet acknowledged."""
        self._divide(indexes)

    @property
    def is_over(self) -> bool:
        """Everything that may go has gone, and is answered."""
        return not self.open and not self.ready

    @property
    def is_good(self) -> bool:
        """Everything is acknowledged."""
        return not self.errors and not self.open and not self.ready and not self._behind

    def take(self) -> int | None:
        """The next that may go; it counts as in flight, and as failed until something better is known of it."""
        while self.ready:
            index = self.ready.popleft()
            if self._stopped and self.batch[index].key in self._stopped:
                continue
            self.outcomes[index] = UNANSWERED
            self.open += 1
            return index
        return None

    def put_back(self, index: int) -> None:
        """There was no room for it: it goes first when there is."""
        self.open -= 1
        self.outcomes[index] = HELD_BACK
        self.ready.appendleft(index)

    def landed(self, index: int, error: Any, _message: Any = None) -> None:
        """The client says what became of it."""
        self.open -= 1
        if error is None:
            self.outcomes[index] = None
            self.good += 1
        else:
            self.errors[index] = error
            if (key := self.batch[index].key) is not None:
                self._stopped.add(key)
        if self._behind:
            self._follow(self.batch[index].key, good=error is None)

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
        topics: dict[str, str] = {}
        behind, ready = self._behind, self.ready
        for index in indexes:
            key, topic = self.batch[index].key, self.batch[index].topic
            if key is None:
                ready.append(index)
            elif key in behind:
                behind[key].append(index)
            elif key not in topics or (self._together and topics[key] == topic):
                topics[key] = topic
                ready.append(index)
            else:
                behind[key] = deque([index])
        if behind:
            for index in ready:
                if (key := self.batch[index].key) in behind:
                    self._flying[key] = self._flying.get(key, 0) + 1

    def _follow(self, key: str | None, *, good: bool) -> None:
        """If this was the last of a stretch, the next stretch of its key may go."""
        if key is None or key not in self._behind:
            return
        if not good:
            del self._behind[key]
            return
        self._flying[key] -= 1
        if self._flying[key]:
            return
        left = self._behind[key]
        topic = self.batch[left[0]].topic
        stretch = [left.popleft()]
        while self._together and left and self.batch[left[0]].topic == topic:
            stretch.append(left.popleft())
        self.ready.extend(stretch)
        self._flying[key] = len(stretch)
        if not left:
            del self._behind[key]
