"""From headers and bytes to an event. Whatever arrives here may come from anybody.

Sizes are looked at before anything is parsed. What breaks the rules of CloudEvents raises ``CloudEventError``, which
names the attribute. What is merely strange (headers that an ``Event`` would not take, names no attribute can have) is
left out and listed in ``Received.ignored``: a message is not lost for the sake of a header that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from oncommit import checks, codec
from oncommit.cloudevents.binding import STRUCTURED, Binding
from oncommit.cloudevents.document import read_document
from oncommit.cloudevents.headers import Headers, Parts, complain, read_headers
from oncommit.errors import CloudEventError, InvalidEvent
from oncommit.message import Event

DEFAULT_MAX_BODY: Final = 16 * 1024 * 1024
MAX_ID: Final = 1024
MAX_SOURCE: Final = 2048
MAX_DIGITS: Final = 10

_Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]

# How InvalidEvent's fields are called on the wire, where they are called otherwise.
_ATTRIBUTES: Final = {
    "aggregate type": "aggregatetype",
    "aggregate id": "aggregateid",
    "key": "partitionkey",
    "correlation_id": "correlationid",
    "causation_id": "causationid",
    "content_type": "datacontenttype",
    "schema_version": "schemaversion",
}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it arrived, and what CloudEvents says of it beside."""

    event: Event[Any]
    """The payload is decoded if it is JSON, else bytes; no payload is None."""
    message_id: str
    """The id as it was sent. Foreign producers need not use UUIDs; see ``event_id``."""
    source: str
    time: datetime | None
    """In UTC."""
    subject: str | None
    dataschema: str | None
    content_type: str | None
    data: bytes | None
    """The payload's bytes as they came, for typed decoding."""
    extensions: Mapping[str, str]
    """Attributes that neither CloudEvents nor oncommit knows."""
    ignored: tuple[str, ...]
    """Headers and members that were left out."""


def event_id(source: str, message_id: str) -> UUID:
    """The id itself where it is a UUID, else one made of source and id, always the same for the same pair.

    CloudEvents calls an event by the pair: an id alone may be used by two producers.
    """
    try:
        known = UUID(message_id)
    except ValueError:
        known = None
    if known is not None and str(known) == message_id.lower():
        return known
    return uuid5(NAMESPACE_URL, f"{source}\n{message_id}")


def parse(
    headers: Headers,
    body: bytes | None,
    binding: Binding,
    *,
    content_type: str | None = None,
    max_body: int = DEFAULT_MAX_BODY,
) -> Received:
    """Read either mode; the content type says which. Give it where the protocol has a field of its own for it."""
    _check_size(body, max_body)
    parts = read_headers(headers, binding, content_type)
    media = (parts.content_type or "").partition(";")[0].strip().lower()
    if media == STRUCTURED:
        return _structured(parts, body)
    if media.startswith("application/cloudevents"):
        complain("datacontenttype", f"cannot read {media[:80]!r}; send one event as {STRUCTURED}, or in binary mode")
    return _binary(parts, body)


def from_binary(
    headers: Headers,
    body: bytes | None,
    binding: Binding,
    *,
    content_type: str | None = None,
    max_body: int = DEFAULT_MAX_BODY,
) -> Received:
    """Read attributes from headers, whatever the content type."""
    _check_size(body, max_body)
    return _binary(read_headers(headers, binding, content_type), body)


def from_structured(
    headers: Headers, body: bytes | None, binding: Binding, *, max_body: int = DEFAULT_MAX_BODY
) -> Received:
    """Read a JSON document, whatever the content type."""
    _check_size(body, max_body)
    return _structured(read_headers(headers, binding, None), body)


def _check_size(body: bytes | None, limit: int) -> None:
    if body is not None and len(body) > limit:
        complain("data", f"the message is {len(body)} bytes long; the limit is {limit}")


def _binary(parts: Parts, body: bytes | None) -> Received:
    content_type = parts.content_type
    if not body and (content_type is None or codec.is_json(content_type)):
        return _received(parts, None, None)
    return _received(parts, bytes(body or b""), content_type)


def _structured(parts: Parts, body: bytes | None) -> Received:
    # Everything is in the document: attributes in headers would be copies.
    document = read_document(body or b"")
    ignored = [*parts.ignored, *document.ignored]
    found = Parts(document.attributes, parts.known, parts.users, document.content_type, ignored)
    return _received(found, document.data, document.content_type)


def _received(parts: Parts, data: bytes | None, content_type: str | None) -> Received:
    """Attributes and payload, whichever way they came."""
    attributes = dict(parts.attributes)
    version = attributes.pop("specversion", None)
    if version is None:
        complain("specversion", "is missing, so this is no CloudEvent")
    if version != "1.0":
        complain("specversion", f"is {version[:20]!r}; only 1.0 can be read")
    attributes.pop("datacontenttype", None)
    message_id = _required(attributes, "id", MAX_ID)
    source = _required(attributes, "source", MAX_SOURCE)
    return Received(
        message_id=message_id,
        source=source,
        subject=_optional(attributes, "subject", checks.MAX_AGGREGATE_ID),
        dataschema=_optional(attributes, "dataschema", MAX_SOURCE),
        time=_time(attributes.pop("time", None)),
        event=_event(parts, attributes, event_id(source, message_id), data, content_type),
        content_type=content_type,
        data=data,
        extensions=attributes,
        ignored=tuple(parts.ignored),
    )


def _event(
    parts: Parts, attributes: dict[str, str], identity: UUID, data: bytes | None, content_type: str | None
) -> Event[Any]:
    """The event itself; takes out of the attributes what it uses."""
    aggregate = None
    if "aggregatetype" in attributes and "aggregateid" in attributes:
        aggregate = (attributes.pop("aggregatetype"), attributes.pop("aggregateid"))
    key = attributes.pop("partitionkey", None)
    if aggregate is not None and key == f"{aggregate[0]}:{aggregate[1]}":
        key = None  # what it would be anyway
    traceparent, tracestate = _trace(attributes, parts.known)
    try:
        return Event(
            _required(attributes, "type", checks.MAX_TYPE),
            id=identity,
            payload=_payload(data, content_type),
            aggregate=aggregate,
            key=key,
            headers=parts.users,
            content_type=None if content_type in (codec.JSON, codec.OCTETS) else content_type,
            schema_version=_whole_number("schemaversion", attributes.pop("schemaversion", "1")),
            correlation_id=attributes.pop("correlationid", None) or parts.known.get("correlation_id"),
            causation_id=attributes.pop("causationid", None) or parts.known.get("causation_id"),
            saga_id=_uuid("sagaid", attributes.pop("sagaid", None)),
            traceparent=traceparent,
            tracestate=tracestate,
        )
    except InvalidEvent as error:
        name = _ATTRIBUTES.get(error.field, error.field)
        raise CloudEventError(f"attribute {name!r}: {error.problem}") from error


def _payload(data: bytes | None, content_type: str | None) -> Any:
    if data is None or content_type is None or not codec.is_json(content_type):
        return data
    try:
        return codec.decode(data)
    except ValueError as error:
        raise CloudEventError(f"attribute 'data': {error}") from error


def _trace(attributes: dict[str, str], known: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The trace context: of the last hop where it says so in a header of its own, else of the producer.

    One that is malformed is left out, as the W3C asks: a broken trace is no reason to lose an event.
    """
    made = attributes.pop("traceparent", None), attributes.pop("tracestate", None)
    for parent, state in ((known.get("traceparent"), known.get("tracestate")), made):
        if parent is not None and checks.is_traceparent(parent):
            fine = state is not None and checks.problem_of_text(state, checks.MAX_CORRELATION) is None
            return parent, state if fine else None
    return None, None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return msgspec.convert(text, _Moment).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError, ValueError) as error:
        raise CloudEventError(
            f"attribute 'time': {text[:40]!r} is no moment, such as 2026-01-31T12:00:00Z (with its zone)"
        ) from error


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        complain(name, f"must be a whole number, not {text[:40]!r}")
    return int(text)


def _uuid(name: str, text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError as error:
        raise CloudEventError(f"attribute {name!r}: must be a UUID, not {text!r:.50}") from error


def _required(attributes: dict[str, str], name: str, limit: int) -> str:
    value = _optional(attributes, name, limit)
    if value is None:
        complain(name, "is missing")
    return value


def _optional(attributes: dict[str, str], name: str, limit: int) -> str | None:
    value = attributes.pop(name, None)
    if value is not None and (problem := checks.problem_of_text(value, limit)) is not None:
        complain(name, problem)
    return value
