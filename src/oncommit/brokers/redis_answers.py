"""What has become of each message of a batch, and what an answer of Redis says about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis import exceptions

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.redis_wire import NO_STREAM, Chain, Chunk, Encoder, Entry
from oncommit.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)

_UNANSWERED: Final = PublishFailed("Redis gave no answer")
_HELD_BACK: Final = NotAttempted("an earlier event of its key was not acknowledged")

# redis-py takes the code away where it has a class of its own for it. The most special class comes first.
_CODES: Final = (
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)

# Nothing to do with this message, and nothing that its topic could help.
_DOWN: Final = {
    "NOAUTH": "it asks for a login: check user and password",
    "WRONGPASS": "user or password is wrong",
    "LOADING": "it is still reading its data",
    "READONLY": "it is a replica: give the address of the primary",
    "MASTERDOWN": "its primary is away",
    "CLUSTERDOWN": "its cluster is down",
    "TRYAGAIN": "its cluster is moving slots",
    # Not the event's fault, and of ten attempts it would leave none: memory is a matter of hours.
    "OOM": "its memory is full (maxmemory): nothing is taken until there is room",
    "MISCONF": "it cannot write to its disk, and takes nothing",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for",
    "BUSY": "a script has kept it busy for seconds",
}
_TOPIC: Final = {
    "NOPERM": "the Redis user may not write to it",
    "WRONGTYPE": "the key of that name holds something that is no stream",
    NO_STREAM: "there is no such stream, and create=no in the URL: make it with XGROUP CREATE … MKSTREAM",
    "MOVED": "it is on another node; this adapter talks to one server, not to a cluster",
    "ASK": "it is on another node; this adapter talks to one server, not to a cluster",
    "CROSSSLOT": "it is on another node; this adapter talks to one server, not to a cluster",
}
_FORBIDDEN: Final = ("The user executing the script can't", "ACL failure in script")
"""What a script is told instead of NOPERM."""
_TOO_LARGE: Final = ("Elements are too large", "string exceeds maximum allowed size")


class Sending:
    """The messages of one publish, by key, and what has become of them."""

    def __init__(self, batch: Sequence[Message], encoder: Encoder) -> None:
        self.outcomes: list[Outcome] = [_HELD_BACK] * len(batch)
        self.taken: list[int] = []
        self.is_down = False
        """Whether the server said that it takes nothing at all."""
        self._batch = batch
        chains: dict[str | int, Chain] = {}
        ended: set[str] = set()
        for index, message in enumerate(batch):
            if message.key in ended:
                continue
            try:
                entry = encoder.encode(index, message)
            except BrokerError as error:
                self.outcomes[index] = error
                if message.key is not None:
                    ended.add(message.key)
            else:
                chains.setdefault(index if message.key is None else message.key, []).append(entry)
        self.chains = list(chains.values())

    def goes(self, chains: Sequence[Chain]) -> None:
        """In flight from here on: without an answer the first of a key has failed, and the others wait for it."""
        for chain in chains:
            self.outcomes[chain[0].place] = _UNANSWERED

    def answered(self, chunk: Chunk, answer: Any) -> None:
        """The script has ended; or it failed, perhaps half-way, and said why."""
        if isinstance(answer, str):
            for chain in chunk.chains:
                self.one_answered(chain[0], answer)
            return
        refused = {int(number): reason.decode(errors="replace") for number, reason in _pairs(answer)}
        number = 0
        for chain in chunk.chains:
            for place, entry in enumerate(chain, number + 1):
                self.one_answered(entry, refused.get(place))
                if place in refused:
                    break
            number += len(chain)

    def one_answered(self, entry: Entry, answer: object) -> None:
        """This message was taken; or refused, where the answer is text."""
        index = entry.place
        if not isinstance(answer, str):
            self.outcomes[index] = None
            self.taken.append(index)
            return
        outcome = self.outcomes[index] = outcome_of(answer, self._batch[index].topic)
        self.is_down = self.is_down or isinstance(outcome, BrokerUnavailable)

    def took(self, entry: Entry) -> bool:
        """Whether this one was taken."""
        return self.outcomes[entry.place] is None

    def does_not_count(self, reason: BrokerError) -> None:
        """What was taken is not safe enough."""
        for index in self.taken:
            self.outcomes[index] = reason

    def broke(self, reason: BrokerError) -> None:
        """No more answers will come. If it is the broker's fault, that is so for what was not even sent."""
        waiting = (_UNANSWERED, _HELD_BACK) if isinstance(reason, BrokerUnavailable) else (_UNANSWERED,)
        for chain in self.chains:
            first = next((entry.place for entry in chain if self.outcomes[entry.place] is not None), None)
            if first is not None and self.outcomes[first] in waiting:
                self.outcomes[first] = reason


def _pairs(answer: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(answer[::2], answer[1::2], strict=True))


def text_of(error: Exception) -> str:
    """The error as the server wrote it, with its code in front."""
    for kind, code in _CODES:
        if isinstance(error, kind) and not str(error).startswith(code):
            return f"{code} {error}"
    return str(error)


def outcome_of(text: str, topic: str) -> BrokerError:
    """What a refusal means for a message to this topic."""
    code = text.partition(" ")[0]
    if code in _DOWN:
        return BrokerUnavailable(f"Redis takes nothing now: {_DOWN[code]} ({text})")
    if any(part in text for part in _FORBIDDEN):
        code = "NOPERM"
    if code in _TOPIC:
        return TopicUnavailable(f"{topic!r}: {_TOPIC[code]} ({text})")
    if any(part in text for part in _TOO_LARGE):
        return PublishRejected(f"it is too large for Redis: {text}")
    return PublishFailed(f"Redis refused it: {text}")


def refuses_scripts(text: str) -> bool:
    """Whether the script as such was refused, before it began: as a command, or for one of its keys."""
    return text.startswith(("NOPERM", "CROSSSLOT", "MOVED", "ASK")) or "unknown command" in text


def never_takes_scripts(text: str) -> bool:
    """Whether it will be refused again, whatever its keys are."""
    return "unknown command" in text or "'eval'" in text
