"""The event: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit import checks
from oncommit.errors import InvalidEvent, PayloadError
from oncommit.ids import MadeId
from oncommit.message import Body, Event, SupportsEvent, as_event
from tests.unit.strategies import events, sendable

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_only_the_type_is_needed() -> None:
    event = Event("order.placed")
    assert event.type == "order.placed"
    assert isinstance(event.id, MadeId)
    assert (event.payload, event.aggregate, event.key, event.topic, event.not_before) == (None,) * 5
    assert (event.sink, event.priority, event.schema_version, event.headers) == ("main", 5, 1, {})
    assert (event.aggregate_type, event.aggregate_id, event.ordering_key) == (None,) * 3


def test_every_field_can_be_given() -> None:
    event_id, saga_id = uuid4(), uuid4()
    event = Event(
        "order.placed",
        payload={"total": 1},
        aggregate=("order", 42),
        id=event_id,
        key="customer 7",
        topic="shop",
        sink="audit",
        priority=9,
        not_before=NOON,
        headers={"x-tenant": "acme"},
        content_type="application/vnd.shop+json",
        schema_version=2,
        correlation_id="flow",
        causation_id="cause",
        saga_id=saga_id,
        max_attempts=3,
        traceparent=TRACE,
        tracestate="a=1",
    )
    assert (event.id, event.saga_id) == (event_id, saga_id)
    assert (event.aggregate_type, event.aggregate_id, event.ordering_key) == ("order", "42", "customer 7")


@pytest.mark.parametrize(
    ("identity", "text"), [(42, "42"), ("a b", "a b"), (UUID(int=1), str(UUID(int=1))), (-1, "-1")]
)
def test_an_aggregate_orders_by_itself(identity: Any, text: str) -> None:
    event = Event("order.placed", aggregate=("order", identity))
    assert (event.aggregate_id, event.ordering_key) == (text, f"order:{text}")


def test_it_cannot_be_changed() -> None:
    event = Event("order.placed")
    for name in ("type", "payload", "id", "headers", "priority"):
        with pytest.raises(AttributeError):
            setattr(event, name, None)


def test_only_the_type_goes_without_its_name() -> None:
    with pytest.raises(TypeError):
        Event("order.placed", {"total": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Event()  # type: ignore[call-arg]


def test_headers_are_a_copy() -> None:
    mine = {"x-tenant": "acme"}
    event = Event("order.placed", headers=mine)
    mine["message_id"] = "forged"
    assert event.headers == {"x-tenant": "acme"}


@given(events())
def test_copies_are_equal(event: Event) -> None:
    assert copy.copy(event) == event
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert msgspec.structs.replace(event, priority=9).priority == 9


def test_a_copy_with_a_wrong_field_is_refused_too() -> None:
    with pytest.raises(InvalidEvent, match="'priority'"):
        msgspec.structs.replace(Event("order.placed"), priority=10)


# ── What is refused ──────────────────────────────────────────────────────────────────────────────────


class Nowhere(tzinfo):
    """A zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


BAD: list[tuple[str, Any, str]] = [
    ("type", "", "is empty"),
    ("type", "x" * 1000, "1000 characters long; the limit is 255"),
    ("type", "ß" * 200, "400 bytes long; the limit is 255"),
    ("type", "a\0b", r"U\+0000"),
    ("type", "a\nb", r"U\+000A"),
    ("type", "a\x85b", r"U\+0085"),
    ("type", "a\u2028b", r"U\+2028"),
    ("type", "\ud800", r"U\+D800"),
    ("type", None, "must be text, not NoneType"),
    ("type", b"order.placed", "must be text, not bytes"),
    ("aggregate", "order", "must be a pair"),
    ("aggregate", ("order",), "must be a pair"),
    ("aggregate", ["order", 42], "must be a pair"),
    ("aggregate", ("order", 42, 1), "must be a pair"),
    ("aggregate type", ("", 42), "is empty"),
    ("aggregate type", (None, 42), "must be text"),
    ("aggregate type", ("a\0", 42), r"U\+0000"),
    ("aggregate id", ("order", ""), "is empty"),
    ("aggregate id", ("order", None), "must be text, a whole number or a UUID, not NoneType"),
    ("aggregate id", ("order", True), "not bool"),
    ("aggregate id", ("order", 1.5), "not float"),
    ("aggregate id", ("order", "x" * 1025), "the limit is 1024"),
    ("aggregate id", ("order", 2**128), "must be a whole number"),
    ("id", str(UUID(int=1)), "must be a UUID, not str"),
    ("id", None, "must be a UUID, not NoneType"),
    ("key", "", "is empty"),
    ("key", "x" * 1025, "the limit is 1024"),
    ("key", 7, "must be text"),
    ("topic", "", "is empty"),
    ("topic", "a\nb", r"U\+000A"),
    ("topic", "x" * 256, "the limit is 255"),
    ("sink", "", "sink name '' cannot be used"),
    ("sink", "Main", "cannot be used"),
    ("sink", None, "cannot be used"),
    ("sink", 'x"; drop', "cannot be used"),
    ("priority", -1, "must be a whole number from 0 to 9, not -1"),
    ("priority", 10, "from 0 to 9"),
    ("priority", True, "must be a whole number"),
    ("priority", 5.0, "must be a whole number"),
    ("priority", "5", "must be a whole number"),
    ("not_before", datetime(2026, 1, 31), "has no time zone"),  # noqa: DTZ001 - the point
    ("not_before", datetime(2026, 1, 31, tzinfo=Nowhere()), "has no time zone"),
    ("not_before", "2026-01-31T12:00:00Z", "must be a datetime, not str"),
    ("not_before", 1769860800, "must be a datetime, not int"),
    ("schema_version", 0, "from 1"),
    ("schema_version", 2**31, "from 1"),
    ("schema_version", None, "must be a whole number"),
    ("correlation_id", "", "is empty"),
    ("correlation_id", "x" * 513, "the limit is 512"),
    ("correlation_id", UUID(int=1), "must be text, not UUID"),
    ("causation_id", "a\r\nb", r"U\+000D"),
    ("saga_id", "saga", "must be a UUID, not str"),
    ("max_attempts", 0, "from 1"),
    ("max_attempts", True, "must be a whole number"),
    ("content_type", "json", "is no media type"),
    ("content_type", "", "is no media type"),
    ("content_type", "a/b\r\nx: y", "is no media type"),
    ("content_type", 7, "is no media type"),
    ("content_type", "application/json; charset=latin-1", "JSON is UTF-8 here"),
    ("content_type", "a/" + "b" * 300, "is no media type"),
    ("traceparent", "0af7651916cd43dd8448eb211c80319c", "is no W3C trace context"),
    ("traceparent", TRACE.upper(), "is no W3C trace context"),
    ("traceparent", TRACE + "\n", r"U\+000A"),
    ("tracestate", "a\n", r"U\+000A"),
    ("headers", ["x"], "must be a mapping of text to text, not list"),
    ("headers", {"": "x"}, "'' is no header name"),
    ("headers", {"a b": "x"}, "is no header name"),
    ("headers", {"a:b": "x"}, "is no header name"),
    ("headers", {"a\r\nb": "x"}, "is no header name"),
    ("headers", {"größe": "x"}, "is no header name"),
    ("headers", {"x" * 129: "x"}, "is no header name"),
    ("headers", {7: "x"}, "is no header name"),
    ("headers['x-a']", {"x-a": 7}, "must be text, not int"),
    ("headers['x-a']", {"x-a": None}, "must be text, not NoneType"),
    ("headers['x-a']", {"x-a": "a\r\nx-b: c"}, r"U\+000D"),
    ("headers['x-a']", {"x-a": "\ud800"}, r"U\+D800"),
    ("headers", {f"x-{number}": "x" * 1000 for number in range(20)}, "the limit is 16384"),
]
FIELDS = {"aggregate type": "aggregate", "aggregate id": "aggregate", "headers['x-a']": "headers"}


@pytest.mark.parametrize(("field", "value", "problem"), BAD, ids=[f"{bad[0]}-{n}" for n, bad in enumerate(BAD)])
def test_a_bad_field_is_refused_by_its_name(field: str, value: Any, problem: str) -> None:
    fields = {"type": "order.placed", FIELDS.get(field, field): value}
    with pytest.raises(InvalidEvent, match=problem) as refused:
        Event(**fields)
    assert refused.value.field == field
    assert f"field {field!r}" in str(refused.value)
    assert isinstance(refused.value, ValueError)
    str(refused.value).encode()
    if field != "type":
        assert "'order.placed'" in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "name",
    [
        *checks.RESERVED_HEADERS,
        "Message_Id",
        "CONTENT-TYPE",
        "ce-id",
        "CE-Type",
        "ce_id",
        "cloudEvents_id",
        "oncommit-lane",
        "Oncommit_x",
    ],
)
def test_a_header_that_is_ours_is_refused(name: str) -> None:
    with pytest.raises(InvalidEvent, match=r"set by oncommit|keep for themselves") as refused:
        Event("order.placed", headers={name: "forged"})
    assert refused.value.field == "headers"
    assert not checks.is_users_header(name)


@pytest.mark.parametrize("name", ["x-tenant", "X_Tenant", "message-id", "ce", "traceparent2", "a.b~c", "x" * 128])
def test_a_header_that_is_yours_is_taken(name: str) -> None:
    assert Event("order.placed", headers={name: ""}).headers == {name: ""}
    assert checks.is_users_header(name)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x\n", None, 7, b"x-a", "größe"])
def test_what_is_no_header_name(name: Any) -> None:
    assert not checks.is_users_header(name)


@given(st.text(sendable, min_size=1, max_size=60))
def test_any_text_without_controls_will_do(text: str) -> None:
    event = Event(text, aggregate=(text, text), key=text, topic=text, correlation_id=text, headers={"x-a": text})
    assert event.type == text


@given(
    st.text(st.characters(categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=3),
    st.sampled_from(["key", "topic"]),
)
def test_no_text_with_controls_will(text: str, field: str) -> None:
    with pytest.raises(InvalidEvent, match="cannot be sent") as refused:
        Event(
            "order.placed", key=f"a{text}b" if field == "key" else None, topic=f"a{text}b" if field == "topic" else None
        )
    assert refused.value.field == field


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-5))])
def test_a_time_with_a_zone_will_do(zone: tzinfo) -> None:
    assert Event("order.placed", not_before=NOON.astimezone(zone)).not_before == NOON


def test_limits_are_inclusive() -> None:
    Event("x" * 255, aggregate=("x" * 255, "x" * 1024), key="x" * 1024, topic="x" * 255, correlation_id="x" * 512)
    Event("x", aggregate=("x", 2**128 - 1), priority=0, schema_version=2**31 - 1, max_attempts=1, sink="x" * 63)


# ── The payload ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Order:
    id: int
    total: Decimal


def test_an_object_goes_as_json() -> None:
    assert Event("order.placed", payload=Order(1, Decimal("9.90"))).body() == Body(
        b'{"id":1,"total":"9.90"}', "application/json", is_json=True
    )


def test_bytes_go_as_they_are() -> None:
    octets = b'{"not": "looked at\xff'
    assert Event("blob", payload=octets).body() == Body(octets, "application/octet-stream", is_json=False)
    assert Event("blob", payload=bytearray(octets), content_type="application/avro").body() == Body(
        octets, "application/avro", is_json=False
    )
    assert Event("blob", payload=memoryview(octets)).body().data == octets
    assert Event("blob", payload=octets, content_type="application/json").body().is_json is False


def test_no_payload_is_no_data() -> None:
    assert Event("tick").body() == Body(None, "application/json", is_json=True)


@pytest.mark.parametrize("empty", [{}, [], "", 0, False])
def test_an_empty_payload_is_a_payload(empty: Any) -> None:
    assert Event("tick", payload=empty).body().data is not None


def test_an_object_with_a_content_type_that_is_not_json() -> None:
    with pytest.raises(
        PayloadError, match="'application/avro' takes bytes; a dict can only be sent as JSON"
    ) as refused:
        Event("order.placed", payload={"a": 1}, content_type="application/avro").body()
    assert refused.value.field == "payload"


@pytest.mark.parametrize(
    ("payload", "field", "problem"),
    [
        ({"a": {"b": [float("nan")]}}, "payload.a.b[0]", "NaN and infinity"),
        ({"a": "x\0"}, "payload.a", "NUL character"),
        ({"a": "\ud800"}, "payload.a", "lone surrogate"),
        ({"a": object()}, "payload", "has no JSON form"),
    ],
)
def test_a_payload_that_cannot_be_sent_names_event_and_place(payload: Any, field: str, problem: str) -> None:
    event = Event("order.placed", payload=payload)
    with pytest.raises(PayloadError, match=problem) as refused:
        event.body()
    assert refused.value.field == field
    assert str(event.id) in str(refused.value)
    assert "'order.placed'" in str(refused.value)


# ── Objects that become events ───────────────────────────────────────────────────────────────────────


class Shipment:
    def to_event(self) -> Event[Mapping[str, int]]:
        return Event("shipment.sent", payload={"parcel": 1})


class Liar:
    def to_event(self) -> dict[str, str]:
        return {"type": "order.placed"}


def test_an_event_is_its_own_event() -> None:
    event = Event("order.placed")
    assert as_event(event) is event
    assert event.to_event() is event
    assert isinstance(event, SupportsEvent)


def test_an_object_says_how() -> None:
    assert as_event(Shipment()).type == "shipment.sent"
    assert isinstance(Shipment(), SupportsEvent)


@pytest.mark.parametrize("thing", [None, "order.placed", {"type": "order.placed"}, 7, Event, Shipment], ids=repr)
def test_anything_else_is_no_event(thing: object) -> None:
    with pytest.raises(InvalidEvent, match=r"is no Event and has no to_event\(\)"):
        as_event(thing)


def test_an_object_that_becomes_something_else() -> None:
    with pytest.raises(InvalidEvent, match=r"Liar.to_event\(\) gave a dict, not an Event"):
        as_event(Liar())
