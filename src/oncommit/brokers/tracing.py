"""A span a batch, over OpenTelemetry's API, for those who have it running.

Each event keeps the trace context that its writer stored: it travels in the message, and what consumes the message goes
on from it. A span of the relay's for each event would cost more than to send it, and tell less than this one, which
links to the traces of the events it carried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from oncommit._version import __version__

MOST_LINKS: Final = 128
_NANO: Final = 1_000_000_000


def batch_tracer(sink: str, system: str) -> Callable[[Sequence[tuple[Any, str, Any]], int, float], None]:
    """Tells of a publish that has ended: rows with topic and outcome, how many were sent, in how many seconds."""
    tracer = trace.get_tracer("oncommit", __version__)
    fixed = {"messaging.system": system, "messaging.operation.type": "send", "oncommit.sink": sink}

    def tell(told: Sequence[tuple[Any, str, Any]], sent: int, seconds: float) -> None:
        end = time.time_ns()
        span = tracer.start_span(
            "outbox publish",
            kind=SpanKind.PRODUCER,
            links=_links(told),
            attributes={**fixed, "messaging.batch.message_count": len(told), "oncommit.sent": sent},
            start_time=end - int(seconds * _NANO),
        )
        if sent != len(told):
            span.set_status(Status(StatusCode.ERROR, f"{len(told) - sent} of {len(told)} were not acknowledged"))
        span.end(end)

    return tell


def _links(told: Sequence[tuple[Any, str, Any]]) -> list[Link]:
    """To the traces of the events, each once, up to a cap."""
    found: dict[str, None] = {}
    for row, _, _ in told:
        if row.traceparent is not None:
            found[row.traceparent] = None
            if len(found) >= MOST_LINKS:
                break
    return [Link(_context(parent)) for parent in found]


def _context(traceparent: str) -> SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")[:4]
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
