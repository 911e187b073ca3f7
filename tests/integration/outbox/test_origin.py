"""E4: correlation, cause and trace reach the row without the user passing anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oncommit import Event, Outbox, caused_by, correlated
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import Writer

OUTBOX = Outbox()
ROW = "SELECT correlation_id, causation_id, headers::text FROM oncommit.outbox ORDER BY id"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def written(
    writer: Writer, observer: Observer, *events: Event[Any]
) -> list[tuple[str | None, str | None, dict[str, str]]]:
    writer.begin()
    writer.add(OUTBOX, *events)
    writer.commit()
    return [(correlation, cause, json.loads(headers)) for correlation, cause, headers in observer.rows(ROW)]


def test_what_an_event_caused_names_it(writer: Writer, observer: Observer) -> None:
    cause: Event[None] = Event("order.placed")
    with caused_by(cause):
        rows = written(writer, observer, Event("order.billed"), Event("order.other", correlation_id="mine"))
    assert rows == [(str(cause.id), str(cause.id), {}), ("mine", str(cause.id), {})]


def test_a_chain_keeps_its_first_correlation(writer: Writer, observer: Observer) -> None:
    handled: Event[None] = Event("order.billed", correlation_id="conversation", traceparent=PARENT, tracestate="a=1")
    with caused_by(handled):
        ((correlation, cause, headers),) = written(writer, observer, Event("order.shipped"))
    assert (correlation, cause) == ("conversation", str(handled.id))
    assert headers == {"traceparent": PARENT, "tracestate": "a=1"}


def test_outside_nothing_is_inherited(writer: Writer, observer: Observer) -> None:
    with correlated("request 7"):
        pass
    assert written(writer, observer, Event("order.placed")) == [(None, None, {})]


def test_the_current_span_is_in_the_headers(writer: Writer, observer: Observer) -> None:
    tracer = TracerProvider().get_tracer("test")
    as_opentelemetry_has_it: dict[str, str] = {}
    with tracer.start_as_current_span("checkout"):
        TraceContextTextMapPropagator().inject(as_opentelemetry_has_it)
        rows = written(
            writer, observer, Event("order.placed", headers={"mine": "kept"}), Event("own", traceparent=PARENT)
        )
    assert rows[0] == (None, None, {"mine": "kept"} | as_opentelemetry_has_it)
    assert rows[1] == (None, None, {"traceparent": PARENT})


def test_trace_state_and_a_parent_from_elsewhere(writer: Writer, observer: Observer) -> None:
    context = SpanContext(0xA, 0xB, is_remote=True, trace_flags=TraceFlags(0), trace_state=TraceState([("v", "x")]))
    with trace.use_span(NonRecordingSpan(context)):
        ((_, _, headers),) = written(writer, observer, Event("order.placed"))
    assert headers == {"traceparent": f"00-{0xA:032x}-{0xB:016x}-00", "tracestate": "v=x"}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_an_asyncio_add_takes_the_origin_of_its_call(writer: Writer, observer: Observer, inside: bool) -> None:
    """Not of where it is awaited: what is called inside belongs inside."""
    cause: Event[None] = Event("order.placed")
    writer.begin()
    with caused_by(cause):
        outcome = OUTBOX.add(writer.handle, Event("order.billed"))
        if inside:
            writer.wait(outcome)
    if not inside:
        writer.wait(outcome)
    writer.commit()
    assert observer.rows(ROW)[0][:2] == (str(cause.id), str(cause.id))
