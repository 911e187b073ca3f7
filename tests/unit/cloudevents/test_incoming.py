"""What comes from outside: foreign, malformed, hostile."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncommit.cloudevents import (
    AMQP,
    BINDINGS,
    HTTP,
    KAFKA,
    MAX_HEADER_BYTES,
    NATS,
    REDIS,
    STRUCTURED,
    Received,
    event_id,
    from_binary,
    parse,
)
from oncommit.errors import CloudEventError

ID = "019bf000-0000-7000-8000-000000000001"
LEAST = {"specversion": "1.0", "id": ID, "source": "/far", "type": "it.happened"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def binary(changes: dict[str, Any] | None = None, plain: dict[str, Any] | None = None, body: bytes = b"") -> Received:
    """A message on Kafka, with some attributes changed or (None) taken away."""
    attributes = {**LEAST, **(changes or {})}
    headers = {f"ce_{name}": value for name, value in attributes.items() if value is not None}
    return parse({**headers, **(plain or {})}, body, KAFKA)


def structured(changes: dict[str, Any] | None = None, **more: Any) -> Received:
    """The same as one document."""
    document = {**LEAST, **(changes or {})}
    members = {name: value for name, value in document.items() if value is not ...}
    return parse({"content-type": STRUCTURED}, msgspec.json.encode({**members, **more}), KAFKA)


def test_the_least_there_must_be() -> None:
    for received in (binary(), structured()):
        assert received.event.type == "it.happened"
        assert received.event.id == UUID(ID)
        assert (received.message_id, received.source, received.time) == (ID, "/far", None)
        assert received.event.payload is None


@pytest.mark.parametrize("name", LEAST)
def test_what_is_missing_or_empty_is_named(name: str) -> None:
    with pytest.raises(CloudEventError, match=f"attribute '{name}': is missing"):
        binary({name: None})
    with pytest.raises(CloudEventError, match=f"attribute '{name}': is missing"):
        structured({name: None})
    with pytest.raises(CloudEventError, match=f"attribute '{name}': is missing"):
        structured({name: ...})
    with pytest.raises(CloudEventError, match=f"attribute '{name}': is"):
        binary({name: ""})


def test_something_else_altogether_is_no_cloud_event() -> None:
    with pytest.raises(CloudEventError, match="'specversion': is missing, so this is no CloudEvent"):
        parse({"content-type": "application/json"}, b'{"a": 1}', KAFKA)
    with pytest.raises(CloudEventError, match="'specversion'"):
        parse(None, None, KAFKA)


@pytest.mark.parametrize("version", ["0.3", "1.1", "1", "2.0", "1.0 ", "x" * 1000])
def test_another_version_is_refused(version: str) -> None:
    with pytest.raises(CloudEventError, match=r"only 1\.0 can be read"):
        binary({"specversion": version})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"time": "2026-01-31T12:00:00"}, "'time'.*with its zone"),
        ({"time": "2026-01-31"}, "'time'"),
        ({"time": "yesterday"}, "'time'"),
        ({"time": ""}, "'time'"),
        ({"time": "2026-02-30T12:00:00Z"}, "'time'"),
        ({"time": "0001-01-01T00:00:00+23:00"}, "'time'"),
        ({"id": "x" * 1025}, "'id'.*limit is 1024"),
        ({"id": "a\0b"}, r"'id'.*U\+0000"),
        ({"source": "/a\r\nx: y"}, r"'source'.*U\+000D"),
        ({"source": "x" * 2049}, "'source'.*limit is 2048"),
        ({"type": "x" * 256}, "'type'.*limit is 255"),
        ({"type": "a\nb"}, r"'type'.*U\+000A"),
        ({"subject": ""}, "'subject': is empty"),
        ({"subject": "\ud800"}, r"'subject'.*U\+D800"),
        ({"dataschema": ""}, "'dataschema': is empty"),
        ({"schemaversion": "0"}, "'schemaversion'"),
        ({"schemaversion": "two"}, "'schemaversion': must be a whole number"),
        ({"schemaversion": "٣"}, "'schemaversion'"),
        ({"schemaversion": "9" * 5000}, "'schemaversion'"),
        ({"sagaid": "saga"}, "'sagaid': must be a UUID"),
        ({"partitionkey": ""}, "'partitionkey': is empty"),
        ({"correlationid": "a\0"}, "'correlationid'"),
        ({"causationid": "x" * 513}, "'causationid'"),
        ({"aggregatetype": "", "aggregateid": "1"}, "'aggregatetype': is empty"),
        ({"aggregatetype": "a", "aggregateid": "x" * 1025}, "'aggregateid'"),
    ],
)
def test_a_bad_attribute_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CloudEventError, match=complaint) as refused:
        binary(changes)
    assert len(str(refused.value)) < 300, "a hostile value must not fill the log"
    if not complaint.endswith("D800"):  # which no JSON can hold
        with pytest.raises(CloudEventError, match=complaint):
            structured(changes)


@pytest.mark.parametrize("name", ["id", "type", "source", "subject", "time", "tenant"])
def test_attributes_in_bytes_that_are_no_utf8(name: str) -> None:
    with pytest.raises(CloudEventError, match=f"'{name}': is no UTF-8 text"):
        binary({name: b"\xff\xfe"})


def test_plain_headers_in_bytes_that_are_no_utf8_are_left_out() -> None:
    received = binary(plain={"x-binary": b"\xff", "x-text": b"fine"})
    assert received.event.headers == {"x-text": "fine"}
    assert received.ignored == ("x-binary",)


def test_names_in_bytes() -> None:
    received = parse([(f"ce-{name}".encode(), value.encode()) for name, value in LEAST.items()], b"", REDIS)
    assert received.message_id == ID
    received = parse([*((f"ce-{n}", v) for n, v in LEAST.items()), (b"\xff", b"x")], b"", REDIS)
    assert received.ignored == ("b'\\xff'",)


def test_the_same_attribute_twice() -> None:
    twice = [("ce-id", ID), *((f"ce-{name}", value) for name, value in LEAST.items())]
    assert parse(twice, b"", HTTP).message_id == ID
    with pytest.raises(CloudEventError, match="'id': comes twice, with different values"):
        parse([*twice, ("CE-ID", "another")], b"", HTTP)
    with pytest.raises(CloudEventError, match="'type': comes twice"):
        parse([*((f"cloudEvents_{n}", v) for n, v in LEAST.items()), ("cloudEvents:type", "other")], b"", AMQP)


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:", "ce-", "CLOUDEVENTS_"])
def test_amqp_has_several_spellings(prefix: str) -> None:
    assert parse({prefix + name: value for name, value in LEAST.items()}, b"", AMQP).message_id == ID


@pytest.mark.parametrize(
    "time",
    [
        1769860800000,
        datetime(2026, 1, 31, 12, tzinfo=UTC),
        "2026-01-31T12:00:00Z",
        "2026-01-31T13:00:00+01:00",
        "2026-01-31T12:00:00.000000000Z",
        "2026-01-31t12:00:00z",
    ],
)
def test_spellings_of_time(time: Any) -> None:
    assert binary({"time": time}).time == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("time", [10**18, -(10**18), 10**400, True, datetime(2026, 1, 31), 1.5])  # noqa: DTZ001 - the point
def test_native_times_that_are_none(time: Any) -> None:
    with pytest.raises(CloudEventError, match="'time'"):
        binary({"time": time})


# ── Ids ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_foreign_id_makes_the_same_uuid_each_time() -> None:
    one, again = binary({"id": "order/7"}), binary({"id": "order/7"})
    assert one.event.id == again.event.id == uuid5(NAMESPACE_URL, "/far\norder/7")
    assert one.message_id == "order/7"
    assert binary({"id": "order/7", "source": "/near"}).event.id != one.event.id


def test_an_id_that_is_a_uuid_stays() -> None:
    assert binary({"id": ID.upper()}).event.id == UUID(ID)
    assert binary({"id": ID.upper()}).message_id == ID.upper()


@pytest.mark.parametrize("spelling", ["{%s}", "urn:uuid:%s", "%s "])
def test_odd_spellings_of_a_uuid_are_foreign_ids(spelling: str) -> None:
    assert event_id("/far", spelling % ID).version == 5
    assert event_id("/far", ID.replace("-", "")).version == 5


def test_a_message_id_header_does_not_override_the_attribute() -> None:
    received = binary(plain={"message_id": "forged", "Message_Id": "forged"})
    assert received.message_id == ID
    assert received.event.headers == {}
    assert received.ignored == ()


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────────


def test_reserved_and_strange_headers_are_tolerated() -> None:
    plain: dict[str, Any] = {
        "x-fine": "yes",
        "ce-id": "another binding's",
        "oncommit-lane": "7",
        "a b": "no name",
        "": "no name",
        "x" * 129: "too long",
        "x-null": None,
        "x-float": 1.5,
        "x-number": 7,
        "x-bell": "\a",
    }
    received = binary(plain=plain)
    assert received.event.headers == {"x-fine": "yes", "x-number": "7"}
    assert set(received.ignored) == {"ce-id", "oncommit-lane", "a b", "", "x" * 80, "x-null", "x-float", "x-bell"}


def test_too_many_headers_are_refused_before_they_are_read() -> None:
    with pytest.raises(CloudEventError, match=f"'headers': are more than {MAX_HEADER_BYTES} bytes"):
        binary(plain={"x-big": "x" * MAX_HEADER_BYTES})
    with pytest.raises(CloudEventError, match="'headers'"):
        binary(plain={f"x{number}": "" for number in range(20_000)})
    with pytest.raises(CloudEventError, match="'headers'"):
        parse((("", None) for _ in iter(int, 1)), b"", KAFKA)


def test_unknown_attributes_are_extensions() -> None:
    received = binary({"tenant": "acme", "aggregatetype": "order"})
    assert received.extensions == {"tenant": "acme", "aggregatetype": "order"}
    assert received.event.aggregate is None


def test_names_that_no_attribute_can_have_are_left_out() -> None:
    assert binary({"Tenant-Name": "acme", "": "x"}).ignored == ("ce_Tenant-Name"[3:].lower(), "")
    received = structured({"tenantName": "acme", "tenant": "acme"})
    assert received.ignored == ("tenantName",)
    assert received.extensions == {"tenant": "acme"}


def test_plain_correlation_where_there_is_no_attribute() -> None:
    plain = {"correlation_id": "flow", "Causation_Id": "cause"}
    assert binary(plain=plain).event.correlation_id == "flow"
    assert binary(plain=plain).event.causation_id == "cause"
    assert binary({"correlationid": "ours"}, plain=plain).event.correlation_id == "ours"


def test_the_trace_of_the_last_hop_goes_before_that_of_the_producer() -> None:
    hop = TRACE.replace("b7", "c8")
    changes = {"traceparent": TRACE, "tracestate": "made=1"}
    assert binary(changes).event.traceparent == TRACE
    received = binary(changes, plain={"traceparent": hop})
    assert (received.event.traceparent, received.event.tracestate) == (hop, None)
    received = binary(changes, plain={"traceparent": "broken", "tracestate": "x=1"})
    assert (received.event.traceparent, received.event.tracestate) == (TRACE, "made=1")


@pytest.mark.parametrize("broken", ["", "00-x", TRACE.upper(), TRACE + "-more", "\0"])
def test_a_broken_trace_loses_no_event(broken: str) -> None:
    assert binary({"traceparent": broken}).event.traceparent is None
    assert binary({"traceparent": TRACE, "tracestate": "x" * 5000}).event.tracestate is None


# ── Percent-encoding ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("lower%e2%82%ac", "lower€"),
        ("%41%62", "Ab"),
        ('"quoted \\"inside\\""', 'quoted "inside"'),
        ('"quoted%20too"', "quoted too"),
        ("100%", "100%"),
        ("a%zzb", "a%zzb"),
        ("%2541", "%41"),
    ],
)
def test_decoding_of_attributes(value: str, expected: str) -> None:
    headers = {f"ce-{name}": text for name, text in LEAST.items()} | {"ce-type": value}
    for binding in (HTTP, NATS):
        assert parse(headers, b"", binding).event.type == expected
    assert parse(headers, b"", REDIS).event.type == value


@pytest.mark.parametrize("value", ["%C0%A0", "%FF", "%ED%A0%80", "a%E2%82"])
def test_encoded_bytes_that_are_no_utf8(value: str) -> None:
    with pytest.raises(CloudEventError, match="'type': is percent-encoded, but not UTF-8"):
        parse({f"ce-{name}": text for name, text in LEAST.items()} | {"ce-type": value}, b"", HTTP)


def test_foreign_plain_headers_are_not_decoded() -> None:
    headers = {f"ce-{name}": text for name, text in LEAST.items()} | {"x-path": "/a%2Fb"}
    assert parse(headers, b"", HTTP).event.headers == {"x-path": "/a%2Fb"}
    assert parse(headers | {"message_id": ID}, b"", HTTP).event.headers == {"x-path": "/a/b"}
    assert parse(headers | {"message_id": ID, "x-path": "%FF"}, b"", HTTP).event.headers == {"x-path": "%FF"}


# ── Payloads ─────────────────────────────────────────────────────────────────────────────────────────


def test_data_without_a_content_type_is_bytes() -> None:
    received = binary(body=b'{"a": 1}')
    assert (received.event.payload, received.content_type) == (b'{"a": 1}', None)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "a/b+json"]
)
def test_json_by_its_content_type(kind: str) -> None:
    received = binary(plain={"Content-Type": kind}, body=b'{"a": 1}')
    assert received.event.payload == {"a": 1}
    assert received.data == b'{"a": 1}'


def test_a_content_type_with_nothing_behind_it() -> None:
    assert binary(plain={"content-type": "application/json"}).data is None
    assert binary(plain={"content-type": "text/plain"}).data == b""


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"[" * 100_000, b"{'a': 1}", b"NaN", b"1 2", b'"\\ud800"', b"9" * 10_000 + b"x", b"\xef\xbb\xbf1"],
)
def test_json_that_is_none(body: bytes) -> None:
    with pytest.raises(CloudEventError, match="'data': not JSON"):
        binary(plain={"content-type": "application/json"}, body=body)


@pytest.mark.parametrize(
    "kind", ["json", "a/b; c", "a/b\r\nx: y", "application/json; charset=latin-1", "x/" + "y" * 300]
)
def test_a_content_type_that_is_none(kind: str) -> None:
    with pytest.raises(CloudEventError, match=r"'(datacontenttype|data)'"):
        binary(plain={"content-type": kind}, body=b'"\xe9"')


def test_sizes_are_looked_at_first() -> None:
    for read in (parse, from_binary):
        with pytest.raises(CloudEventError, match="'data': the message is 11 bytes long; the limit is 10"):
            read({"content-type": STRUCTURED}, b"not json at all"[:11], KAFKA, max_body=10)
    with pytest.raises(CloudEventError, match="the limit is 16777216"):
        parse({}, bytes(16 * 1024 * 1024 + 1), KAFKA)


# ── Structured mode ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"{" * 100_000, b"null"])
def test_a_document_that_is_none(body: bytes) -> None:
    with pytest.raises(CloudEventError, match="the structured event is no JSON object"):
        parse({"content-type": STRUCTURED}, body, KAFKA)


@pytest.mark.parametrize(
    "kind", ["application/cloudevents-batch+json", "application/cloudevents+avro", "application/cloudevents"]
)
def test_batches_and_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(CloudEventError, match="'datacontenttype': cannot read 'application/cloudevents"):
        parse({"content-type": kind}, b"[]", KAFKA)


def test_the_mode_does_not_hang_on_case_or_parameters() -> None:
    body = msgspec.json.encode(LEAST)
    for kind in (STRUCTURED.upper(), f"{STRUCTURED}; charset=UTF-8", f" {STRUCTURED} ;x=y"):
        assert parse({"Content-Type": kind}, body, HTTP).message_id == ID
        assert parse({}, body, AMQP, content_type=kind).message_id == ID


@pytest.mark.parametrize("name", ["id", "source", "type", "subject", "time", "datacontenttype", "dataschema"])
@pytest.mark.parametrize("value", [7, True])
def test_what_must_be_text(name: str, value: Any) -> None:
    with pytest.raises(CloudEventError, match=f"'{name}': must be text"):
        structured({name: value})


@pytest.mark.parametrize("value", [1.5, [], {}, [1], {"a": 1}])
def test_attributes_are_no_structures(value: Any) -> None:
    with pytest.raises(CloudEventError, match="'tenant': must be text, a whole number or a boolean"):
        structured({"tenant": value})


def test_attributes_of_other_types_become_text() -> None:
    received = structured({"tenant": 7, "loud": True, "unset": None, "schemaversion": 3})
    assert received.extensions == {"tenant": "7", "loud": "true"}
    assert received.event.schema_version == 3


def test_a_number_of_ten_thousand_digits() -> None:
    body = msgspec.json.encode(LEAST)[:-1] + b',"tenant":' + b"9" * 10_000 + b"}"
    with pytest.raises(CloudEventError, match="'tenant'"):
        parse({"content-type": STRUCTURED}, body, KAFKA)


def test_headers_are_copies_in_structured_mode() -> None:
    body = msgspec.json.encode(LEAST)
    received = parse({"content-type": STRUCTURED, "ce_id": "another", "ce_extra": "x", "x-mine": "y"}, body, KAFKA)
    assert received.message_id == ID
    assert received.extensions == {}
    assert received.event.headers == {"x-mine": "y"}


def test_data_in_a_document() -> None:
    assert structured(data={"a": 1}).event.payload == {"a": 1}
    assert structured(data={"a": 1}).content_type == "application/json"
    assert structured(data="<a/>", datacontenttype="application/xml").event.payload == b"<a/>"
    assert structured(data_base64="AAH/").event.payload == b"\x00\x01\xff"
    assert structured(data_base64="eyJhIjoxfQ==", datacontenttype="application/json").event.payload == {"a": 1}
    explicit_null = structured(data=None)
    assert (explicit_null.event.payload, explicit_null.data) == (None, b"null")


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"data": 1, "data_base64": "AA=="}, "'data': comes twice"),
        ({"data_base64": "not base64!"}, "'data_base64'"),
        ({"data_base64": "A"}, "'data_base64'"),
        ({"data_base64": 7}, "'data_base64'"),
        ({"data": {"a": 1}, "datacontenttype": "application/xml"}, "'data': must be text for the content type"),
        ({"data_base64": "/w==", "datacontenttype": "application/json"}, "'data': not JSON"),
    ],
)
def test_bad_data_in_a_document(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CloudEventError, match=complaint):
        structured(**members)


# ── Anything at all ──────────────────────────────────────────────────────────────────────────────────

names = st.sampled_from([f"{p}{n}" for p in ("ce-", "ce_", "cloudEvents:") for n in (*LEAST, "time", "traceparent")])
plain_names = st.sampled_from(["content-type", "message_id", "traceparent", "correlation_id"])
values = st.text(max_size=20) | st.binary(max_size=20) | st.integers() | st.none() | st.floats() | st.datetimes()
bodies = st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(
    headers=st.lists(st.tuples(names | plain_names | st.text(max_size=8) | st.binary(max_size=8), values), max_size=8),
    body=bodies | st.none(),
    binding=st.sampled_from(list(BINDINGS.values())),
    content_type=st.none() | st.sampled_from([STRUCTURED, "application/json", "text/plain"]) | st.text(max_size=20),
)
@example(headers=[], body=None, binding=HTTP, content_type="\ud800")
def test_nothing_but_our_error_comes_out(headers: Any, body: Any, binding: Any, content_type: Any) -> None:
    try:
        parse(headers, body, binding, content_type=content_type)
    except CloudEventError as error:
        str(error).encode()


members = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [*LEAST, "data", "data_base64", "datacontenttype", "time", "schemaversion", "sagaid", "subject"]
        ),
        members,
    )
)
def test_nothing_but_our_error_comes_out_of_a_document(changes: dict[str, Any]) -> None:
    body = json.dumps({**LEAST, **changes}).encode()
    try:
        parse({"content-type": STRUCTURED}, body, KAFKA)
    except CloudEventError as error:
        complaint = str(error)
    else:
        return
    assert complaint.startswith("attribute '")
