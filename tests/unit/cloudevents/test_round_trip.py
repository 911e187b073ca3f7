"""What was sent is what arrives: every event, over every binding, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit import codec
from oncommit.cloudevents import BINDINGS, Binding, Received, Wire, from_structured, parse, to_binary, to_structured
from oncommit.message import Event
from tests.unit.strategies import events

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
Send = Callable[..., Wire]

all_bindings = st.sampled_from(list(BINDINGS.values()))
both_modes = st.sampled_from([to_binary, to_structured])
moments = st.none() | st.datetimes(timezones=st.just(UTC))


def over(event: Event, binding: Binding, send: Send, *, time: datetime | None = NOON) -> Received:
    wire = send(event, source="/shop", time=time, binding=binding)
    return parse(wire.headers, wire.body, binding, content_type=None if binding.content_type else wire.content_type)


def seen(event: Event) -> dict[str, Any]:
    """An event as it can be compared: derived values instead of spellings, bytes that are JSON as what they say."""
    body = event.body()
    payload = event.payload
    if body.data is not None and codec.is_json(body.content_type):
        payload = codec.decode(body.data)
    return {
        "id": event.id,
        "type": event.type,
        "aggregate": (event.aggregate_type, event.aggregate_id),
        "key": event.ordering_key,
        "payload": payload,
        "content_type": body.content_type if body.data is not None else None,
        "headers": dict(event.headers),
        "schema_version": event.schema_version,
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "saga_id": event.saga_id,
        "trace": (event.traceparent, event.tracestate),
    }


@given(event=events(), binding=all_bindings, send=both_modes, time=moments)
def test_every_event_arrives_as_it_was(event: Event, binding: Binding, send: Send, time: datetime | None) -> None:
    received = over(event, binding, send, time=time)
    assert seen(received.event) == seen(event)
    assert received.message_id == str(event.id)
    assert received.source == "/shop"
    assert received.time == time
    assert received.subject == event.aggregate_id
    assert received.data == event.body().data
    assert received.extensions == {}
    assert received.ignored == ()


@given(event=events(), binding=all_bindings)
def test_headers_can_travel(event: Event, binding: Binding) -> None:
    wire = to_binary(event, source="/shop/größe", time=NOON, binding=binding)
    for name, value in wire.headers.items():
        assert name.isascii()
        assert isinstance(value, str)
        value.encode()
        if binding.percent:
            assert value.isascii()
            assert value.isprintable() or value == ""
            assert value == value.strip()


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_bytes_arrive_byte_for_byte(binding: Binding) -> None:
    payload = bytes(range(256))
    for send in (to_binary, to_structured):
        received = over(Event("blob", payload=payload, content_type="application/protobuf"), binding, send)
        assert received.event.payload == payload
        assert received.event.content_type == "application/protobuf"


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_json_goes_through_as_it_was_written(binding: Binding) -> None:
    # Numbers that Python would read as something else, a key twice, spaces: nobody decodes them on the way.
    written = b'{"big": 12345678901234567890123, "exact": 1.10, "twice": 1, "twice": 2 }'

    class Row(Event[Any], frozen=True):
        def body(self) -> Any:
            from oncommit.message import Body

            return Body(written, codec.JSON, is_json=True)

    row = Row("raw")
    assert to_binary(row, source="/shop", time=NOON, binding=binding).body == written
    structured = to_structured(row, source="/shop", time=NOON, binding=binding)
    assert b'"data":' + written + b"}" in structured.body
    assert parse(structured.headers, structured.body, binding, content_type=structured.content_type).data == written


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_no_payload_is_no_data(binding: Binding) -> None:
    binary = to_binary(Event("tick"), source="/shop", time=NOON, binding=binding)
    assert (binary.body, binary.content_type) == (b"", None)
    assert not any("content" in name for name in binary.headers)
    structured = to_structured(Event("tick"), source="/shop", time=NOON, binding=binding)
    assert b"data" not in structured.body
    for send in (to_binary, to_structured):
        received = over(Event("tick"), binding, send)
        assert (received.event.payload, received.data, received.content_type) == (None, None, None)


def test_empty_bytes_are_data() -> None:
    for send in (to_binary, to_structured):
        assert over(Event("blob", payload=b""), BINDINGS["kafka"], send).event.payload == b""


def test_the_mode_is_not_guessed_where_it_was_named() -> None:
    wire = to_structured(Event("tick", payload=1), source="/shop", time=NOON, binding=BINDINGS["amqp"])
    assert from_structured(wire.headers, wire.body, BINDINGS["amqp"]).event.payload == 1


def test_what_only_concerns_delivery_stays_at_home() -> None:
    event = Event("tick", topic="there", sink="audit", priority=9, max_attempts=3, not_before=NOON)
    for send in (to_binary, to_structured):
        wire = send(event, source="/shop", time=NOON, binding=BINDINGS["http"])
        everything = (str(wire.headers) + wire.body.decode()).lower()
        for word in ("there", "audit", "priority", "attempts", "before"):
            assert word not in everything
