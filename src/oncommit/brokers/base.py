"""The contract of a broker: what an adapter takes, promises and answers. An adapter only transports.

Failure story. A publish can end in four ways, and the difference decides what becomes of an event: acknowledged;
refused for good; failed, perhaps to succeed later; or with no answer, which counts as failed although the broker may
have taken the message. The last is why delivery is at least once. An adapter never
retries by itself beyond its time limit, never acknowledges what the broker has not stored, and after ``close`` has
nothing in flight.

Order. Messages with the same key stand in a batch in the order in which they have to arrive. An adapter sees to it that
the broker accepts a later one only if it has accepted every earlier one of that key in the batch; it answers
``NotAttempted`` for those it held back. How (one at a time, a pipeline without gaps, a transaction) is its own affair
and stated in its capabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from oncommit.cloudevents import Binding
from oncommit.errors import BrokerError


class Message(msgspec.Struct, frozen=True, gc=False):
    """One event, ready for the wire."""

    message_id: str
    topic: str
    key: str | None
    headers: dict[str, str]
    body: bytes
    content_type: str | None


Outcome: TypeAlias = BrokerError | None
"""Of one message: nothing, which is good news, or why not."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter guarantees, as data: read by the relay, by the conformance suite and by the documentation."""

    name: str
    binding: Binding
    acknowledged_means: str
    """What the broker has done when a publish is acknowledged, in a phrase."""
    ordered_pipelining: bool
    """Several messages of one key can be in flight together, and still none is accepted without those before it."""
    deduplicates: bool
    """The broker drops a second message with the same id, within a window of its own."""
    transactional_batch: bool = False
    """A batch is accepted as a whole or not at all."""
    delayed_delivery: bool = False
    max_message: int | None = None
    """In bytes, headers included; nothing where only the server knows."""


class Broker(Protocol):
    """What every adapter offers."""

    @property
    def capabilities(self) -> Capabilities:
        """What it guarantees; known before it is opened, but for limits that only the server knows."""

    async def open(self) -> None:
        """Connect. Raises ``BrokerUnavailable``; can be tried again."""

    async def close(self) -> None:
        """Give up what is in flight and disconnect. Harmless when not open."""

    async def ping(self) -> None:
        """Ask whether it would take messages now. Raises ``BrokerUnavailable``."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Publish, and wait at most ``timeout`` seconds for the answers; one outcome a message, in the batch's order.

        Raises nothing of the broker's: whatever happens is an outcome. Cancellation gives up what is in flight.
        """
