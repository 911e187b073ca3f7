"""U4: a test of an application asks what was added, over the connection it has, inside its own transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest

from oncommit import Event, Outbox, caused_by
from oncommit.errors import SchemaMissing, UnsupportedConnection
from oncommit.testing.outbox import added, assert_added
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import AsyncpgWriter, DjangoWriter, Writer

OUTBOX = Outbox(sinks=["main", "other"])


@dataclass
class Order:
    total: int
    lines: tuple[str, ...]


def test_it_sees_what_the_transaction_wrote_and_nobody_else_does(writer: Writer, observer: Observer) -> None:
    writer.begin()
    event = Event("order.placed", aggregate=("order", 42), payload=Order(5, ("tea",)))
    writer.add(OUTBOX, event)
    (seen,) = writer.wait(added(writer.handle))
    assert (seen.id, seen.type, seen.aggregate, seen.payload) == (
        event.id,
        "order.placed",
        ("order", "42"),
        {"total": 5, "lines": ["tea"]},
    )
    assert added(observer.connection) == []
    writer.rollback()
    writer.begin()
    assert writer.wait(added(writer.handle)) == []


def test_every_field_comes_back(writer: Writer) -> None:
    event = Event(
        "order.placed",
        payload=b"\x00\xff",
        content_type="application/avro",
        aggregate=("order", "42"),
        id=uuid4(),
        key="k",
        topic="t",
        sink="other",
        priority=7,
        not_before=datetime(2999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        headers={"x": "1"},
        schema_version=3,
        correlation_id="c",
        causation_id="d",
        saga_id=uuid4(),
        max_attempts=9,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        tracestate="a=1",
    )
    writer.begin()
    writer.add(OUTBOX, event)
    assert writer.wait(added(writer.handle)) == [event]


def test_in_the_order_of_the_adds_and_delayed_ones_last(writer: Writer) -> None:
    late = Event("late", not_before=datetime.now(UTC) + timedelta(days=1))
    events = [Event(str(number)) for number in range(5)]
    writer.begin()
    writer.add(OUTBOX, late, *events[:3])
    for event in events[3:]:
        writer.add(OUTBOX, event)
    assert [event.id for event in writer.wait(added(writer.handle))] == [event.id for event in [*events, late]]


def test_assert_added(writer: Writer) -> None:
    cause: Event[None] = Event("cart.closed")
    writer.begin()
    with caused_by(cause):
        writer.add(OUTBOX, event := Event("order.placed", aggregate=("order", 42), payload={"total": 5}))
    writer.add(OUTBOX, Event("order.billed"), Event("order.billed"))

    def check(**wanted: Any) -> Any:
        return writer.wait(assert_added(writer.handle, **wanted))

    (found,) = check(type="order.placed", aggregate=("order", 42), payload={"total": 5})
    assert (found.id, found.correlation_id) == (event.id, str(cause.id))
    assert len(check(type="order.billed", payload=None, count=2)) == 2
    assert len(check(type="order.billed", count=None)) == 2
    assert check(type="order.lost", count=0) == []
    assert len(check(count=3)) == 3
    with pytest.raises(AssertionError, match=r"payload\.total: expected 6, found 5"):
        check(type="order.placed", payload={"total": 6})
    with pytest.raises(AssertionError, match=r"expected 1 event with type='order\.billed'; found 2 among 3"):
        check(type="order.billed")
    with pytest.raises(AssertionError, match="found 1 among 3"):
        check(type="order.placed", count=0)
    writer.commit()


@pytest.mark.parametrize(
    "payload", [Order(5, ("tea",)), {"total": 5, "lines": ("tea",)}, msgspec.Raw(b'{"total": 5, "lines": ["tea"]}')]
)
def test_a_payload_is_compared_as_it_was_given(shop: Database, payload: Any) -> None:
    with psycopg.connect(shop.dsn) as connection:
        OUTBOX.add(connection, Event("order.placed", payload=Order(5, ("tea",))))
        assert_added(connection, payload=payload)
        OUTBOX.add(connection, Event("order.packed", payload=b"\x01"))
        assert_added(connection, payload=b"\x01")


@pytest.mark.parametrize("kind", [AsyncpgWriter, DjangoWriter], ids=lambda kind: kind.form)
def test_looking_needs_no_transaction(writer_of: Callable[[type[Writer]], Writer], kind: type[Writer]) -> None:
    writer = writer_of(kind)
    writer.begin()
    writer.add(OUTBOX, event := Event("order.placed"))
    writer.commit()
    assert [seen.id for seen in writer.wait(added(writer.handle))] == [event.id]


def test_what_a_relay_has_sent_is_gone(shop: Database, observer: Observer) -> None:
    with psycopg.connect(shop.dsn) as connection:
        OUTBOX.add(connection, Event("order.placed"))
        connection.commit()
        observer.deliver()
        assert added(connection) == []


def test_errors_are_those_of_add(shop: Database) -> None:
    with pytest.raises(UnsupportedConnection):
        added(None)
    with psycopg.connect(shop.dsn) as connection, pytest.raises(SchemaMissing, match="--schema elsewhere"):
        added(connection, schema="elsewhere")
