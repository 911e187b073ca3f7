"""What a payload and an event cost: msgspec, orjson and the standard library on the payload of our workload.

    python benchmarks/codec.py            a table, in microseconds
    python benchmarks/codec.py --json     the same as a list of objects

Each figure is the best of several rounds, as everything that disturbs a measurement makes it longer. orjson is no
dependency; its lines are left out where it is not installed. The outcome is in docs/adr/0002-codec-and-event.md.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import msgspec
import pydantic

from oncommit import codec
from oncommit.ids import make_id
from oncommit.message import Event

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]  # a measurement may do without

Work: TypeAlias = Callable[[], object]
Encode: TypeAlias = Callable[[Any], bytes]
Line: TypeAlias = tuple[str, str, Work]

# 300 bytes, nested: the payload of the workload.
ORDER: dict[str, Any] = {
    "order_id": "0198c1c9-5f7e-7d3c-9a3e-5c1b2f9d6a10",
    "customer": {"id": 4711, "name": "Ada Lovelace", "email": "ada@example.org"},
    "lines": [
        {"sku": "A-100", "quantity": 2, "price": "19.90"},
        {"sku": "B-200", "quantity": 1, "price": "5.00"},
    ],
    "total": "44.80",
    "currency": "EUR",
    "placed_at": "2026-01-31T12:00:00Z",
    "gift": False,
}


@dataclass
class Position:
    sku: str
    quantity: int
    price: str


@dataclass
class Customer:
    id: int
    name: str
    email: str


@dataclass
class Order:
    order_id: str
    customer: Customer
    lines: list[Position]
    total: str
    currency: str
    placed_at: str
    gift: bool


class PydanticPosition(pydantic.BaseModel):
    sku: str
    quantity: int
    price: str


class PydanticCustomer(pydantic.BaseModel):
    id: int
    name: str
    email: str


class PydanticOrder(pydantic.BaseModel):
    order_id: str
    customer: PydanticCustomer
    lines: list[PydanticPosition]
    total: str
    currency: str
    placed_at: str
    gift: bool


# The fields of an Event, without its checks, in the two forms it could have had.


class StructEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    payload: Any = None
    aggregate: tuple[str, str] | None = None
    id: UUID
    key: str | None = None
    topic: str | None = None
    sink: str = "main"
    priority: int = 5
    not_before: datetime | None = None
    headers: dict[str, str] = {}
    content_type: str | None = None
    schema_version: int = 1
    correlation_id: str | None = None
    causation_id: str | None = None
    saga_id: UUID | None = None
    max_attempts: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataclassEvent:
    type: str
    payload: Any = None
    aggregate: tuple[str, str] | None = None
    id: UUID
    key: str | None = None
    topic: str | None = None
    sink: str = "main"
    priority: int = 5
    not_before: datetime | None = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None
    schema_version: int = 1
    correlation_id: str | None = None
    causation_id: str | None = None
    saga_id: UUID | None = None
    max_attempts: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


def as_dataclass() -> Order:
    lines = [Position(**line) for line in ORDER["lines"]]
    return Order(**{**ORDER, "customer": Customer(**ORDER["customer"]), "lines": lines})


def encoders() -> Iterator[tuple[str, Encode]]:
    yield "msgspec", msgspec.json.Encoder().encode
    yield "oncommit.codec", codec.encode
    if orjson is not None:
        yield "orjson", orjson.dumps
    yield "json", lambda value: json.dumps(value, separators=(",", ":")).encode()


def after(convert: Callable[[], Any], encode: Encode) -> Work:
    """For encoders that take only plain values."""
    return lambda: encode(convert())


def encoding() -> Iterator[Line]:
    order, model = as_dataclass(), PydanticOrder.model_validate(ORDER)
    for name, encode in encoders():
        yield "encode a dict", name, partial(encode, ORDER)
    for name, encode in encoders():
        yield "encode a dict with a null", name, partial(encode, {**ORDER, "note": None})
    for name, encode in encoders():
        if name == "json":
            yield "encode a dataclass", "json, asdict", after(lambda: asdict(order), encode)
        else:
            yield "encode a dataclass", name, partial(encode, order)
    for name, encode in encoders():
        if name == "oncommit.codec":
            yield "encode a pydantic model", name, partial(encode, model)
        else:
            dump = partial(model.model_dump, mode="json")
            yield "encode a pydantic model", f"{name}, model_dump", after(dump, encode)
    yield "encode a pydantic model", "model_dump_json", lambda: model.model_dump_json().encode()


def decoding() -> Iterator[Line]:
    data = codec.encode(ORDER)
    yield "decode", "msgspec", lambda: msgspec.json.decode(data)
    yield "decode", "oncommit.codec", lambda: codec.decode(data)
    if orjson is not None:
        yield "decode", "orjson", lambda: orjson.loads(data)
    yield "decode", "json", lambda: json.loads(data)
    typed = msgspec.json.Decoder(Order)
    yield "decode to a dataclass", "msgspec", lambda: typed.decode(data)


def constructing() -> Iterator[Line]:
    fields: dict[str, Any] = {"type": "order.placed", "aggregate": ("order", "42"), "id": uuid4()}
    yield "construct the fields", "msgspec.Struct", lambda: StructEvent(**fields)
    yield "construct the fields", "frozen dataclass", lambda: DataclassEvent(**fields)
    yield "make an id", "uuid4", uuid4
    yield "make an id", "oncommit, version 7", make_id
    yield "construct an Event", "oncommit", lambda: Event("order.placed", aggregate=("order", 42), payload=ORDER)
    yield "Event and its body", "oncommit", lambda: Event("order.placed", aggregate=("order", 42), payload=ORDER).body()


def best(work: Work, *, rounds: int, seconds: float) -> float:
    """Microseconds a call."""
    timer = timeit.Timer(work)
    calls, took = timer.autorange()
    calls = max(1, int(calls * seconds / took))
    return min(timer.repeat(rounds, calls)) / calls * 1e6


def capabilities() -> dict[str, dict[str, str]]:
    """What each makes of values that payloads do hold."""
    samples: dict[str, Any] = {
        "Decimal": Decimal("9.90"),
        "UUID": UUID(int=7),
        "datetime": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "bytes": b"\x00\xff",
        "set": {1},
        "number as key": {1: 2},
        "2**70": 2**70,
        "NaN": float("nan"),
        "NUL": "\0",
    }
    table: dict[str, dict[str, str]] = {}
    for name, encode in encoders():
        for sample, value in samples.items():
            try:
                written = encode(value).decode()
            except Exception as error:  # noqa: BLE001 - the kind of refusal is the answer
                written = f"refused: {type(error).__name__}"
            table.setdefault(sample, {})[name] = written
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each round")
    options = parser.parse_args()
    figures = [
        {"work": work, "by": by, "microseconds": round(best(run, rounds=options.rounds, seconds=options.seconds), 3)}
        for lines in (encoding(), decoding(), constructing())
        for work, by, run in lines
    ]
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"payload: {len(codec.encode(ORDER))} bytes; microseconds a call, best of {options.rounds}")
    if orjson is None:
        print("orjson is not installed: left out")
    last = ""
    for figure in figures:
        print(f"{figure['work'] if figure['work'] != last else '':28}{figure['by']:24}{figure['microseconds']:8.2f}")
        last = str(figure["work"])
    print("\nwhat each makes of")
    for sample, answers in capabilities().items():
        print(f"  {sample:16}" + "  ".join(f"{name}: {answer}" for name, answer in answers.items()))


if __name__ == "__main__":
    main()
