"""The official SDK reads what we send, and we read what it sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given

from oncommit import codec
from oncommit.cloudevents import AMQP, HTTP, KAFKA, NATS, Wire, parse, to_binary, to_structured
from oncommit.cloudevents.binding import Binding
from oncommit.message import Event
from tests.unit.strategies import events

NOON = datetime(2026, 1, 31, 12, 0, 0, 250000, tzinfo=UTC)
Read = Callable[[Wire], BaseCloudEvent]

FULL = Event(
    "order.placed",
    aggregate=("order", "№ 42 – größer"),
    payload={"total": "9.90", "lines": [1, 2.5, None, True, "ß€😀"]},
    headers={"x-tenant": "acme"},
    schema_version=3,
    correlation_id='a "quoted" 100% flow',
    causation_id="cause",
    saga_id=uuid4(),
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tracestate="vendor=1, other=2",
)


def read_http(wire: Wire) -> BaseCloudEvent:
    return http.from_http_event(http.HTTPMessage(wire.headers, wire.body))


def read_kafka(wire: Wire) -> BaseCloudEvent:
    value = {name: text.encode() for name, text in wire.headers.items()}
    return kafka.from_kafka_event(kafka.KafkaMessage(value, None, wire.body))


def read_amqp(wire: Wire) -> BaseCloudEvent:
    properties = {"content-type": wire.content_type} if wire.content_type else {}
    return amqp.from_amqp_event(amqp.AMQPMessage(properties, dict(wire.headers), wire.body))


READERS: list[tuple[Binding, Read]] = [(HTTP, read_http), (KAFKA, read_kafka), (AMQP, read_amqp), (NATS, read_http)]
readers = pytest.mark.parametrize(("binding", "read"), READERS, ids=["http", "kafka", "amqp", "nats"])


def check(found: BaseCloudEvent, event: Event) -> None:
    attributes = found.get_attributes()
    assert found.get_specversion() == "1.0"
    assert found.get_id() == str(event.id)
    assert found.get_type() == event.type
    assert found.get_source() == "/shop"
    assert found.get_time() == NOON
    assert found.get_subject() == event.aggregate_id
    for name, expected in {
        "aggregatetype": event.aggregate_type,
        "aggregateid": event.aggregate_id,
        "partitionkey": event.ordering_key,
        "correlationid": event.correlation_id,
        "causationid": event.causation_id,
        "sagaid": str(event.saga_id) if event.saga_id else None,
        "schemaversion": str(event.schema_version) if event.schema_version != 1 else None,
        "traceparent": event.traceparent,
        "tracestate": event.tracestate,
    }.items():
        given_value = attributes.get(name)
        assert (None if given_value is None else str(given_value)) == expected, name
    body = event.body()
    if body.data is not None:
        assert found.get_datacontenttype() == body.content_type


@readers
def test_the_sdk_reads_binary_mode(binding: Binding, read: Read) -> None:
    found = read(to_binary(FULL, source="/shop", time=NOON, binding=binding))
    check(found, FULL)
    assert found.get_data() == FULL.payload


@readers
def test_the_sdk_reads_structured_mode(binding: Binding, read: Read) -> None:
    found = read(to_structured(FULL, source="/shop", time=NOON, binding=binding))
    check(found, FULL)
    assert found.get_data() == FULL.payload


@readers
def test_the_sdk_reads_bytes(binding: Binding, read: Read) -> None:
    event = Event("blob", payload=bytes(range(256)), content_type="application/avro")
    for send in (to_binary, to_structured):
        found = read(send(event, source="/shop", time=NOON, binding=binding))
        check(found, event)
        assert found.get_data() == event.payload


@given(event=events())
def test_the_sdk_reads_every_event(event: Event) -> None:
    for binding, read in READERS:
        for send in (to_binary, to_structured):
            found = read(send(event, source="/shop", time=NOON, binding=binding))
            check(found, event)
            data = event.body().data
            # The SDK takes empty bytes for no data.
            if data and codec.is_json(event.body().content_type):
                assert found.get_data() == json.loads(data)


def sdk_event(**extra: Any) -> CloudEvent:
    attributes = {
        "id": "not-a-uuid/7",
        "source": "https://example.org/größe",
        "type": "org.example.made",
        "time": NOON,
        "subject": 'a "subject" with 100%',
        "datacontenttype": "application/json",
        "dataschema": "https://example.org/schema",
        "traceparent": FULL.traceparent,
        "partitionkey": "k 1",
        **extra,
    }
    return CloudEvent(attributes, {"total": 1, "text": "ß"})


def write_http(event: CloudEvent, mode: str) -> tuple[Any, bytes, str | None]:
    message = getattr(http, f"to_{mode}_event")(event)
    return message.headers, message.body, None


def write_kafka(event: CloudEvent, mode: str) -> tuple[Any, bytes, str | None]:
    message = getattr(kafka, f"to_{mode}_event")(event)
    return list(message.headers.items()), message.value, None


def write_amqp(event: CloudEvent, mode: str) -> tuple[Any, bytes, str | None]:
    message = getattr(amqp, f"to_{mode}_event")(event)
    return message.application_properties, message.application_data, message.properties["content-type"]


def write_rabbitmq(event: CloudEvent, mode: str) -> tuple[Any, bytes, str | None]:
    message = getattr(rabbitmq, f"to_{mode}_event")(event)
    return message.headers, message.body, message.content_type


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize(
    ("binding", "write"),
    [(HTTP, write_http), (KAFKA, write_kafka), (AMQP, write_amqp), (AMQP, write_rabbitmq)],
    ids=["http", "kafka", "amqp", "rabbitmq"],
)
def test_we_read_what_the_sdk_sends(binding: Binding, write: Callable[..., Any], mode: str) -> None:
    headers, body, content_type = write(sdk_event(schemaversion=2, loud=True), mode)
    received = parse(headers, body, binding, content_type=content_type)
    assert received.message_id == "not-a-uuid/7"
    assert received.source == "https://example.org/größe"
    assert received.time == NOON
    assert received.subject == 'a "subject" with 100%'
    assert received.dataschema == "https://example.org/schema"
    assert received.event.type == "org.example.made"
    assert received.event.payload == {"total": 1, "text": "ß"}
    assert received.event.key == "k 1"
    assert received.event.aggregate is None
    assert received.event.schema_version == 2
    assert received.event.traceparent == FULL.traceparent
    assert {name: value.lower() for name, value in received.extensions.items()} == {"loud": "true"}
