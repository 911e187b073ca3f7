"""What a checker makes of events. Checked by pyright (strict); nobody runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

from oncommit.message import Body, Event, SupportsEvent, as_event


@dataclass
class Order:
    id: int
    total: str


class Shipment:
    def to_event(self) -> Event[dict[str, int]]:
        return Event("shipment.sent", payload={"parcel": 1})


order = Order(1, "9.90")

# The payload's type is inferred, kept, and can be asked for.
placed = Event("order.placed", aggregate=("order", order.id), payload=order)
assert_type(placed, Event[Order])
assert_type(placed.payload, Order)
assert_type(placed.payload.total, str)
assert_type(Event("order.placed", payload={"id": 1}).payload, dict[str, int])
assert_type(Event("order.placed", payload=b"\x00", content_type="application/avro").payload, bytes)

# Without a payload it is nothing; in an annotation without an argument, anything.
assert_type(Event("clock.struck").payload, None)


def log(event: Event) -> None:
    assert_type(event.payload, Any)


log(placed)

# What is derived.
assert_type(placed.id, UUID)
assert_type(placed.aggregate, tuple[str, str | int | UUID] | None)
assert_type(placed.aggregate_id, str | None)
assert_type(placed.ordering_key, str | None)
assert_type(placed.body(), Body)
assert_type(placed.body().data, bytes | None)

# A domain object that says how to become an event.
supports: SupportsEvent = Shipment()
also: SupportsEvent = placed
assert_type(as_event(Shipment()), Event[Any])
assert_type(Shipment().to_event().payload, dict[str, int])

# What a checker refuses. A comment that is not needed is itself an error in strict mode.
Event()  # pyright: ignore[reportCallIssue]
Event("order.placed", "payload by position")  # pyright: ignore[reportCallIssue]
Event("order.placed", prioritaet=3)  # pyright: ignore[reportCallIssue]
Event("order.placed", priority="high")  # pyright: ignore[reportArgumentType]
Event("order.placed", aggregate="order")  # pyright: ignore[reportArgumentType]
Event("order.placed", headers={"tries": 3})  # pyright: ignore[reportArgumentType]
placed.type = "order.renamed"  # pyright: ignore[reportAttributeAccessIssue]
wants_orders: Callable[[Event[Order]], None] = log
takes_text: Event[str] = placed  # pyright: ignore[reportAssignmentType]
