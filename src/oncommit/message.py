"""The event: what a transaction has to say to the outside world."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import msgspec

from oncommit import checks, codec
from oncommit.errors import InvalidEvent, PayloadError
from oncommit.identifiers import DEFAULT_SINK
from oncommit.ids import make_id

if TYPE_CHECKING:
    # So that a checker needs no annotation where there is no payload to infer it from, and takes a bare `Event` as
    # `Event[Any]`. At run time this would cost a dependency until Python 3.13 is the oldest.
    from typing_extensions import TypeVar as TypeVarWithDefault

    P = TypeVarWithDefault("P", default=Any)
else:
    P = TypeVar("P")

DEFAULT_PRIORITY: Final = 5
_BYTES: Final = (bytes, bytearray, memoryview)
DEFAULT_MAX_PAYLOAD: Final = 8 * 1024 * 1024


class _Head(msgspec.Struct, frozen=True):
    """Holds the one field that may be given without its name."""

    type: str


class Event(_Head, Generic[P], frozen=True, kw_only=True):
    """Something that happened, to be delivered if and only if the transaction commits.

    Only the type is needed::

        Event("order.placed", aggregate=("order", order.id), payload=order)

    It is checked on construction and cannot be changed afterwards. A wrong field raises ``InvalidEvent``, which names
    it.
    """

    payload: P = None  # type: ignore[assignment]  # P is then None, which a default cannot say
    """Sent as JSON: a dict, dataclass, pydantic model, msgspec struct. Sent as they are: bytes, with a content type."""

    aggregate: tuple[str, str | int | UUID] | None = None
    """Type and id of the thing it happened to; also the ordering key unless ``key`` says otherwise."""

    id: UUID = msgspec.field(default_factory=make_id)
    """Made where not given. Adding the same id twice adds it once."""

    key: str | None = None
    """Events of one key arrive in the order in which they were written. Default: the aggregate; neither: no order."""

    topic: str | None = None
    """Where to. Default: the relay's template, ``events.{type}``."""

    sink: str = DEFAULT_SINK
    """Which of the configured brokers."""

    priority: int = DEFAULT_PRIORITY
    """0 to 9. Above 5 it overtakes any backlog; order then holds among the urgent events of a key."""

    not_before: datetime | None = None
    """With a time zone. It does not go before, and does not hold back its key meanwhile."""

    headers: Mapping[str, str] = {}
    """Yours, beside ours; names that oncommit sets itself are refused."""

    content_type: str | None = None
    """Default: JSON for objects, octets for bytes."""

    schema_version: int = 1
    """Of the payload; consumers upgrade older ones."""

    correlation_id: str | None = None
    """The business conversation it belongs to. Default: that of the event being handled."""

    causation_id: str | None = None
    """What caused it. Default: the event being handled."""

    saga_id: UUID | None = None
    """The saga it belongs to."""

    max_attempts: int | None = None
    """How often to try before it is a dead letter. Default: the relay's setting."""

    traceparent: str | None = None
    """W3C trace context. Default: the current OpenTelemetry span, where there is one."""

    tracestate: str | None = None
    """W3C trace state, vendor data beside ``traceparent``."""

    def __post_init__(self) -> None:
        checks.check_event(self)

    @property
    def aggregate_type(self) -> str | None:
        """The aggregate's type, where there is an aggregate."""
        return self.aggregate[0] if self.aggregate else None

    @property
    def aggregate_id(self) -> str | None:
        """The aggregate's id as text, where there is an aggregate."""
        return str(self.aggregate[1]) if self.aggregate else None

    @property
    def ordering_key(self) -> str | None:
        """What its order hangs on: the key, else the aggregate, else nothing."""
        if self.key is not None or not self.aggregate:
            return self.key
        return f"{self.aggregate[0]}:{self.aggregate[1]}"

    def to_event(self) -> Event[P]:
        """An event is its own event; see ``SupportsEvent``."""
        return self

    def body(self) -> Body:
        """The payload as bytes with its content type. Raises ``PayloadError``."""
        payload, content_type = self.payload, self.content_type
        if isinstance(payload, _BYTES):
            return Body(bytes(payload), content_type or codec.OCTETS, is_json=False)
        if payload is None:
            return Body(None, content_type or codec.JSON, is_json=True)
        if content_type is not None and not codec.is_json(content_type):
            problem = f"content type {content_type!r} takes bytes; a {type(payload).__name__} can only be sent as JSON"
            raise PayloadError("payload", problem, event=checks.describe(self))
        try:
            return Body(codec.encode(payload), content_type or codec.JSON, is_json=True)
        except codec.Unserialisable as error:
            raise PayloadError(error.path, error.problem, event=checks.describe(self)) from error


class Body(msgspec.Struct, frozen=True, gc=False):
    """What goes over the wire, and what it is."""

    data: bytes | None
    content_type: str
    is_json: bool


@runtime_checkable
class SupportsEvent(Protocol):
    """A domain object that says how to become an event; accepted wherever an ``Event`` is."""

    def to_event(self) -> Event[Any]:
        """The event that tells of this object."""


def as_event(thing: object) -> Event[Any]:
    """The event that this is or says it becomes. Raises ``InvalidEvent`` for anything else."""
    if isinstance(thing, Event):
        return thing
    if isinstance(thing, type) or not isinstance(thing, SupportsEvent):
        problem = f"a {type(thing).__name__} is no Event and has no to_event()"
        raise InvalidEvent("event", problem)
    event = thing.to_event()
    if not isinstance(event, Event):
        problem = f"{type(thing).__name__}.to_event() gave a {type(event).__name__}, not an Event"
        raise InvalidEvent("event", problem)
    return event
