"""From an event to headers and bytes. On the path of every event that is sent, so it is written to be quick."""

# ruff: noqa: D102 - what Sendable asks for is what Event has, and is described there

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from oncommit import checks, codec
from oncommit.cloudevents.binding import STRUCTURED, Binding, can_travel, encode_plain, encode_value
from oncommit.errors import CloudEventError
from oncommit.message import Body

_encode: Final = msgspec.json.Encoder().encode
_text: Final[Callable[[datetime], str]] = msgspec.to_builtins


class Sendable(Protocol):
    """What is asked of an event to be sent: an ``Event`` has it, and so can a row that a relay has read."""

    @property
    def id(self) -> UUID: ...
    @property
    def type(self) -> str: ...
    @property
    def aggregate_type(self) -> str | None: ...
    @property
    def aggregate_id(self) -> str | None: ...
    @property
    def ordering_key(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def causation_id(self) -> str | None: ...
    @property
    def saga_id(self) -> UUID | None: ...
    @property
    def traceparent(self) -> str | None: ...
    @property
    def tracestate(self) -> str | None: ...
    def body(self) -> Body: ...


class Wire(msgspec.Struct, frozen=True, gc=False):
    """What goes to the broker."""

    headers: dict[str, str]
    """The user's and ours, complete, except for the content type where the protocol has a field for it."""
    body: bytes
    content_type: str | None
    """Nothing where there is no payload. Kafka then sends no value, which is a tombstone."""


def to_binary(event: Sendable, *, source: str, time: datetime | None, binding: Binding) -> Wire:
    """The attributes as headers, the payload as it is."""
    body = event.body()
    attributes = _attributes(event, source, time)
    headers = _plain(event, attributes["id"], binding)
    if binding.percent and not can_travel("".join(attributes.values())):
        attributes = {name: encode_value(value) for name, value in attributes.items()}
    prefix = binding.prefix
    for name, value in attributes.items():
        headers[prefix + name] = value
    if body.data is None:
        return Wire(headers, b"", None)
    for name in binding.content_type:
        headers[name] = body.content_type
    return Wire(headers, body.data, body.content_type)


def to_structured(event: Sendable, *, source: str, time: datetime | None, binding: Binding) -> Wire:
    """Attributes and payload in one JSON document; the plain headers stay headers."""
    body = event.body()
    attributes = _attributes(event, source, time)
    headers = _plain(event, attributes["id"], binding)
    for name in binding.content_type[:1]:
        headers[name] = STRUCTURED
    document: dict[str, Any] = dict(attributes)
    if event.schema_version != 1:
        document["schemaversion"] = event.schema_version
    if body.data is not None:
        document["datacontenttype"] = body.content_type
        if body.is_json:
            document["data"] = msgspec.Raw(body.data)
        else:
            document["data_base64"] = body.data
    return Wire(headers, _encode(document), STRUCTURED)


def _attributes(event: Sendable, source: str, time: datetime | None) -> dict[str, str]:
    """The attributes, each in its canonical string form."""
    attributes = {"specversion": "1.0", "id": str(event.id), "source": source, "type": event.type}
    if time is not None:
        attributes["time"] = _timestamp(time)
    kind, identity = event.aggregate_type, event.aggregate_id
    if kind is not None and identity is not None:
        attributes["subject"] = attributes["aggregateid"] = identity
        attributes["aggregatetype"] = kind
    if (key := event.ordering_key) is not None:
        attributes["partitionkey"] = key
    if event.schema_version != 1:
        attributes["schemaversion"] = str(event.schema_version)
    if event.correlation_id is not None:
        attributes["correlationid"] = event.correlation_id
    if event.causation_id is not None:
        attributes["causationid"] = event.causation_id
    if event.saga_id is not None:
        attributes["sagaid"] = str(event.saga_id)
    if event.traceparent is not None:
        attributes["traceparent"] = event.traceparent
        if event.tracestate is not None:
            attributes["tracestate"] = event.tracestate
    return attributes


def _plain(event: Sendable, message_id: str, binding: Binding) -> dict[str, str]:
    """The headers without a prefix: the user's, and then ours, which therefore cannot be overridden."""
    headers = _users(event.headers, binding) if event.headers else {}
    headers["message_id"] = message_id
    if event.traceparent is not None:
        headers["traceparent"] = event.traceparent
        if event.tracestate is not None:
            headers["tracestate"] = encode_plain(event.tracestate) if binding.percent else event.tracestate
    if (correlation := event.correlation_id) is not None:
        headers["correlation_id"] = encode_plain(correlation) if binding.percent else correlation
    if (causation := event.causation_id) is not None:
        headers["causation_id"] = encode_plain(causation) if binding.percent else causation
    return headers


def _users(headers: Mapping[str, Any], binding: Binding) -> dict[str, str]:
    """The user's headers. Looked at again, because a row that plain SQL wrote has passed no check of ours.

    What cannot be sent is left out: our own names in any spelling, names that no protocol takes, nulls.
    """
    kept: dict[str, str] = {}
    for name, value in headers.items():
        if value is None or not checks.is_users_header(name):
            continue
        text = value if isinstance(value, str) else codec.encode(value).decode()
        kept[name] = encode_plain(text) if binding.percent else text
    return kept


def _timestamp(time: datetime) -> str:
    if time.tzinfo is not UTC:
        if time.utcoffset() is None:
            raise CloudEventError("attribute 'time': has no time zone; give a moment, such as datetime.now(UTC)")
        time = time.astimezone(UTC)
    return _text(time)  # a tenth of what isoformat costs
