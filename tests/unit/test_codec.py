"""Payloads to bytes and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit import codec
from oncommit.codec import Unserialisable, decode, encode, is_json
from tests.unit.strategies import json_values

NAN = float("nan")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 9


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass(slots=True)
class Slotted:
    weight: float


class Point(msgspec.Struct):
    x: float
    y: float


class Customer(pydantic.BaseModel):
    name: str
    score: float = 0.0
    joined: date = date(2026, 1, 31)


class Cart(pydantic.BaseModel):
    customer: Customer
    lines: list[Line]


@dataclass
class Everything:
    line: Line
    point: Point
    customer: Customer
    rest: dict[str, Any] = field(default_factory=dict)


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Number(int):
    pass


class Fraction(float):
    pass


@given(json_values)
def test_json_comes_back_equal(value: Any) -> None:
    encoded = encode(value)
    assert decode(encoded) == value
    assert json.loads(encoded) == value


@given(json_values)
def test_what_is_written_is_valid_for_postgresql(value: Any) -> None:
    encoded = encode(value)
    encoded.decode("utf-8")
    # Strictly JSON: Python's own reader would take NaN.
    json.loads(encoded, parse_constant=pytest.fail)
    assert "\0" not in str(json.loads(encoded))


wild = st.recursive(
    st.none() | st.floats() | st.text(st.characters(), max_size=6) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def flaws(value: Any) -> set[str]:
    """What is wrong with a value, found without our code."""
    if isinstance(value, float):
        return set() if math.isfinite(value) else {"nan"}
    if isinstance(value, str):
        surrogate = any(0xD800 <= ord(character) < 0xE000 for character in value)
        return ({"surrogate"} if surrogate else set()) | ({"nul"} if "\0" in value else set())
    if isinstance(value, list):
        return {flaw for item in value for flaw in flaws(item)}
    if isinstance(value, dict):
        return {flaw for pair in value.items() for item in pair for flaw in flaws(item)}
    return set()


@given(wild)
def test_it_refuses_exactly_nan_nul_and_surrogates(value: Any) -> None:
    if flaws(value):
        with pytest.raises(Unserialisable, match=r"NaN|NUL|surrogate"):
            encode(value)
    else:
        assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (NAN, "payload"),
        ({"a": [1, {"b": (None, math.inf)}]}, "payload.a[1].b[1]"),
        ({"a": None, "b": -math.inf}, "payload.b"),
        (Slotted(NAN), "payload.weight"),
        (Point(1, NAN), "payload.y"),
        ([Customer(name="Ada", score=NAN)], "payload[0].score"),
        (
            Everything(Line("a", Decimal(1)), Point(0, 0), Customer(name="x"), {"deep": [Fraction(NAN)]}),
            "payload.rest.deep[0]",
        ),
        ({"big": 2**70, "a": NAN}, "payload.a"),
    ],
)
def test_nan_is_named_wherever_it_sits(payload: Any, path: str) -> None:
    with pytest.raises(Unserialisable, match="NaN and infinity have no JSON form") as refused:
        encode(payload)
    assert refused.value.path == path


def test_null_beside_bytes_that_look_like_nan_is_fine() -> None:
    # In MessagePack this number holds the bytes of a NaN.
    suspicious = {"none": None, "number": 0xCB7FF8000000}
    assert codec._may_hold_nan(suspicious)
    assert decode(encode(suspicious)) == suspicious


@pytest.mark.parametrize("payload", [{"a": "x\0"}, {"a\0": 1}, ["\0"], "\0", {"a": "\\\0"}, Line("\0", Decimal(1))])
def test_nul_is_refused(payload: Any) -> None:
    with pytest.raises(Unserialisable, match="has a NUL character, which PostgreSQL text cannot hold") as refused:
        encode(payload)
    assert "\0" not in str(refused.value)


@pytest.mark.parametrize("payload", ["\\u0000", "\\\\u0000", "u0000", {"\\u0000": 1}, "\\x00"])
def test_text_that_only_looks_like_nul_is_fine(payload: Any) -> None:
    assert decode(encode(payload)) == payload


@pytest.mark.parametrize("payload", ["\ud800", {"a": ["x\udfff"]}, {"\ud800": 1}])
def test_a_lone_surrogate_is_refused_and_can_be_printed(payload: Any) -> None:
    with pytest.raises(Unserialisable, match="lone surrogate") as refused:
        encode(payload)
    str(refused.value).encode()


def test_what_has_no_json_form_is_named() -> None:
    for payload in ({"a": object()}, {1: {2, object}}, [lambda: 1], {"x": 1j}, {(1, 2): 3}, iter([1]), Line):
        with pytest.raises(Unserialisable, match="has no JSON form"):
            encode(payload)


def test_what_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unserialisable, match="refers to itself or is nested too deeply"):
        encode(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unserialisable, match="nested too deeply"):
        encode(deep)
    while deep:  # taken apart here, lest the interpreter recurses
        deep = deep[0]


def test_a_serialiser_that_fails_is_named() -> None:
    class Broken(pydantic.BaseModel):
        name: str

        @pydantic.field_serializer("name")
        def fail(self, _: str) -> str:
            raise LookupError("no name today")

    with pytest.raises(Unserialisable, match="no name today"):
        encode(Broken(name="x"))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (Line("a", Decimal("1.10")), {"sku": "a", "price": "1.10"}),
        (Point(1, 2.5), {"x": 1.0, "y": 2.5}),
        (Customer(name="Ada"), {"name": "Ada", "score": 0.0, "joined": "2026-01-31"}),
        (
            Cart(customer=Customer(name="Ada"), lines=[Line("a", Decimal("1.10"))]),
            {
                "customer": {"name": "Ada", "score": 0.0, "joined": "2026-01-31"},
                "lines": [{"sku": "a", "price": "1.10"}],
            },
        ),
        (
            Everything(
                Line("a", Decimal(1)), Point(0, 0), Customer(name="x"), {"more": [Point(1, 1), Customer(name="y")]}
            ),
            {
                "line": {"sku": "a", "price": "1"},
                "point": {"x": 0.0, "y": 0.0},
                "customer": {"name": "x", "score": 0.0, "joined": "2026-01-31"},
                "rest": {"more": [{"x": 1.0, "y": 1.0}, {"name": "y", "score": 0.0, "joined": "2026-01-31"}]},
            },
        ),
        (
            {
                "id": UUID(int=7),
                "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
                "for": timedelta(hours=1),
                "colour": Colour.RED,
                "level": Level.HIGH,
                "raw": b"\x00\xff",
                "pair": (1, 2),
                "set": {1},
                1: "a number as key",
            },
            {
                "id": "00000000-0000-0000-0000-000000000007",
                "at": "2026-01-31T12:00:00Z",
                "for": "PT3600S",
                "colour": "red",
                "level": 9,
                "raw": "AP8=",
                "pair": [1, 2],
                "set": [1],
                "1": "a number as key",
            },
        ),
        ([Text("x"), Number(3), Fraction(1.5)], ["x", 3, 1.5]),
        ({Text("x"): 1}, {"x": 1}),
    ],
)
def test_all_kinds_of_payload(payload: Any, expected: Any) -> None:
    assert decode(encode(payload)) == expected


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"\xff", b"[" * 100_000, "\ud800", b"1 1", b"{'a': 1}"])
def test_decoding_what_is_no_json(text: bytes | str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        decode(text)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/vnd.shop.order+json", True),
        ("application/cloudevents+json;x=y", True),
        ("text/plain", False),
        ("application/jsonl", False),
        ("application/avro; schema=json", False),
        ("", False),
    ],
)
def test_what_is_json_by_its_name(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected
