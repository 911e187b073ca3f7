"""Where an event comes from: correlation, cause and trace, carried along without the user passing anything.

What handles an event (a consumer, a saga) opens ``caused_by`` around it; whatever is added inside belongs to the same
correlation and names its cause. The trace context comes from OpenTelemetry where the application has it running.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from oncommit.message import Event


class Origin(msgspec.Struct, frozen=True):
    """What new events inherit."""

    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


NOWHERE: Final = Origin()
# W3C asks for at least so much to be carried; a longer one is left out rather than let it refuse the user's event.
_MAX_STATE: Final = 512
_current: Final[ContextVar[Origin]] = ContextVar("oncommit_origin", default=NOWHERE)


def origin() -> Origin:
    """What an event that is added now inherits."""
    here = _current.get()
    traceparent, tracestate = _active_span()
    if traceparent is None:
        return here
    return Origin(here.correlation_id, here.causation_id, traceparent, tracestate)


@contextmanager
def caused_by(event: Event[Any]) -> Iterator[Origin]:
    """Events added inside belong to this event's correlation and name it as their cause."""
    inherited = Origin(
        correlation_id=event.correlation_id or str(event.id),
        causation_id=str(event.id),
        traceparent=event.traceparent,
        tracestate=event.tracestate,
    )
    with _within(inherited):
        yield inherited


@contextmanager
def correlated(correlation_id: str, *, causation_id: str | None = None) -> Iterator[Origin]:
    """Events added inside belong to this correlation: a request's id, a business conversation."""
    here = _current.get()
    inherited = Origin(correlation_id, causation_id, here.traceparent, here.tracestate)
    with _within(inherited):
        yield inherited


@contextmanager
def _within(inherited: Origin) -> Iterator[None]:
    token = _current.set(inherited)
    try:
        yield
    finally:
        _current.reset(token)


def _active_span() -> tuple[str | None, str | None]:
    """The W3C context of the current span. Never imports OpenTelemetry: who traces has imported it already."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None, None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None, None
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    tracestate = context.trace_state.to_header()
    return traceparent, tracestate if 0 < len(tracestate) <= _MAX_STATE else None
