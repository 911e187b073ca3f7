"""The exact headers, and who may set which."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest

from oncommit.cloudevents import AMQP, BINDINGS, HTTP, KAFKA, NATS, REDIS, Binding, Wire, to_binary, to_structured
from oncommit.errors import CloudEventError
from oncommit.message import Event

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = UUID("019bf000-0000-7000-8000-000000000001")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def binary(event: Event, binding: Binding, *, time: datetime | None = NOON) -> Wire:
    return to_binary(event, source="/shop", time=time, binding=binding)


def test_a_whole_message_on_kafka() -> None:
    event = Event(
        "order.placed",
        id=ID,
        aggregate=("order", 42),
        payload={"total": "9.90"},
        headers={"x-tenant": "größe 100%"},
        schema_version=2,
        correlation_id="flow 1",
        causation_id="cause",
        saga_id=ID,
        traceparent=TRACE,
        tracestate="a=1,b=2",
    )
    assert binary(event, KAFKA) == Wire(
        {
            "ce_specversion": "1.0",
            "ce_id": str(ID),
            "ce_source": "/shop",
            "ce_type": "order.placed",
            "ce_time": "2026-01-31T12:00:00Z",
            "ce_subject": "42",
            "ce_aggregatetype": "order",
            "ce_aggregateid": "42",
            "ce_partitionkey": "order:42",
            "ce_schemaversion": "2",
            "ce_correlationid": "flow 1",
            "ce_causationid": "cause",
            "ce_sagaid": str(ID),
            "ce_traceparent": TRACE,
            "ce_tracestate": "a=1,b=2",
            "content-type": "application/json",
            "message_id": str(ID),
            "traceparent": TRACE,
            "tracestate": "a=1,b=2",
            "correlation_id": "flow 1",
            "causation_id": "cause",
            "x-tenant": "größe 100%",
        },
        b'{"total":"9.90"}',
        "application/json",
    )


def test_the_least_there_is() -> None:
    assert binary(Event("tick", id=ID), KAFKA, time=None).headers == {
        "ce_specversion": "1.0",
        "ce_id": str(ID),
        "ce_source": "/shop",
        "ce_type": "tick",
        "message_id": str(ID),
    }


@pytest.mark.parametrize(
    ("binding", "name", "content_type"),
    [
        (HTTP, "ce-type", {"content-type"}),
        (KAFKA, "ce_type", {"content-type"}),
        (AMQP, "cloudEvents_type", set()),
        (NATS, "ce-type", {"content-type", "ce-datacontenttype"}),
        (REDIS, "ce-type", {"content-type"}),
    ],
    ids=lambda value: value.name if isinstance(value, Binding) else "",
)
def test_how_each_binding_spells_it(binding: Binding, name: str, content_type: set[str]) -> None:
    wire = binary(Event("tick", payload=1), binding)
    assert wire.headers[name] == "tick"
    assert wire.content_type == "application/json"
    assert {header for header in wire.headers if "content" in header} == content_type


def test_bindings_are_found_by_name() -> None:
    assert (
        [binding.name for binding in BINDINGS.values()] == list(BINDINGS) == ["http", "kafka", "amqp", "nats", "redis"]
    )


# The example of the HTTP binding, 3.1.3.2.
EURO = "Euro € 😀"
ENCODED = "Euro%20%E2%82%AC%20%F0%9F%98%80"


@pytest.mark.parametrize(("binding", "expected"), [(HTTP, ENCODED), (NATS, ENCODED), (KAFKA, EURO), (AMQP, EURO)])
def test_values_are_encoded_where_the_protocol_needs_it(binding: Binding, expected: str) -> None:
    assert binary(Event(EURO), binding).headers[binding.prefix + "type"] == expected


def test_percent_space_and_quote_are_encoded_and_nothing_else_of_ascii() -> None:
    visible = "".join(map(chr, range(0x20, 0x7F)))
    expected = visible.replace("%", "%25").replace(" ", "%20").replace('"', "%22")
    assert binary(Event(visible), HTTP).headers["ce-type"] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello world", "hello world"),
        ("50%", "50%"),
        ("50%25", "50%2525"),
        (" edges ", "%20edges%20"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ('a "b"', 'a "b"'),
    ],
)
def test_plain_headers_stay_readable_where_they_can(value: str, expected: str) -> None:
    wire = binary(Event("tick", headers={"x-note": value}), HTTP)
    assert wire.headers["x-note"] == expected
    assert binary(Event("tick", headers={"x-note": value}), KAFKA).headers["x-note"] == value


def by_sql(headers: Mapping[str, Any], **fields: Any) -> Event:
    """As if plain SQL had written it: headers that passed no check."""
    event = Event("tick", **fields)
    msgspec.structs.force_setattr(event, "headers", headers)
    return event


@pytest.mark.parametrize("send", [to_binary, to_structured])
@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_a_users_header_never_overrides_ours(binding: Binding, send: Any) -> None:
    forged = {
        name: "forged"
        for ours in ("message_id", "traceparent", "tracestate", "correlation_id", "causation_id", "content-type")
        for name in (ours, ours.upper(), ours.title())
    }
    forged |= {prefix + "id": "forged" for prefix in ("ce-", "CE-", "ce_", "cloudEvents:", "cloudEvents_", "oncommit-")}
    event = by_sql({**forged, "x-mine": "stays"}, id=ID, payload=1)
    wire = send(event, source="/shop", time=NOON, binding=binding)
    assert "forged" not in wire.headers.values()
    assert wire.headers["message_id"] == str(ID)
    assert wire.headers["x-mine"] == "stays"


def test_headers_that_plain_sql_wrote_are_made_fit_or_left_out() -> None:
    written = {
        "x-a": 1,
        "x-b": None,
        "x-c": {"d": [True]},
        "x-e": "a\r\nb",
        "": "x",
        "a b": "x",
        "a:b": "x",
        "a\r\nb": "x",
    }
    wire = binary(by_sql(written), HTTP)
    assert {name: value for name, value in wire.headers.items() if not name.startswith(("ce-", "message_id"))} == {
        "x-a": "1",
        "x-c": '{"d":[true]}',
        "x-e": "a%0D%0Ab",
    }


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (NOON, "2026-01-31T12:00:00Z"),
        (NOON.replace(microsecond=1000), "2026-01-31T12:00:00.001000Z"),
        (NOON.astimezone(timezone(timedelta(hours=5, minutes=30))), "2026-01-31T12:00:00Z"),
    ],
)
def test_time_is_in_utc(time: datetime, expected: str) -> None:
    assert binary(Event("tick"), KAFKA, time=time).headers["ce_time"] == expected


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(CloudEventError, match="'time': has no time zone"):
        binary(Event("tick"), KAFKA, time=NOON.replace(tzinfo=None))
