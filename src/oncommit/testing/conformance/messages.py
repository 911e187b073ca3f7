"""Messages as the relay makes them: from events, with the headers of the adapter's binding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from oncommit.brokers.base import Broker, Message
from oncommit.cloudevents import to_binary
from oncommit.message import Event

TYPE: Final = "conformance.tried"
SOURCE: Final = "/conformance"


class Mint:
    """Makes messages for one adapter and one topic."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._binding = broker.capabilities.binding
        self.topic = topic

    def message(
        self,
        payload: Any = None,
        *,
        key: str | None = "k",
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        topic: str | None = None,
    ) -> Message:
        """One message."""
        event: Event[Any] = Event(
            TYPE, payload=payload, key=key, headers=dict(headers or {}), content_type=content_type
        )
        wire = to_binary(event, source=SOURCE, time=datetime.now(UTC), binding=self._binding)
        return Message(str(event.id), topic or self.topic, key, wire.headers, wire.body, wire.content_type)

    def some(self, count: int, *, keys: int = 1, size: int = 20) -> list[Message]:
        """So many, of so many keys in turn, numbered within their key."""
        fill = "." * size
        return [
            self.message({"number": number // keys, "fill": fill}, key=f"key {number % keys}")
            for number in range(count)
        ]

    def of_key(self, key: str, count: int) -> list[Message]:
        """So many of this key."""
        return [self.message({"number": number}, key=key) for number in range(count)]


def ids(messages: Iterable[Message]) -> list[str]:
    """Their ids, in their order."""
    return [message.message_id for message in messages]


def without(messages: Iterable[Message], done: Iterable[Message]) -> list[Message]:
    """Those that are left, in their order."""
    gone = set(ids(done))
    return [message for message in messages if message.message_id not in gone]
