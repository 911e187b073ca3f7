"""From events to the values of their rows. Pure: what is wrong with an event is found here, before any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit import checks, codec, telemetry
from oncommit.errors import DuplicateEvent, InvalidEvent, PayloadError, UnknownSink
from oncommit.identifiers import DEFAULT_SINK
from oncommit.message import DEFAULT_PRIORITY, Event, as_event

# In the order of the parameters of outbox/add_*.sql; add_timed.sql has not_before behind them.
COLUMNS: Final = (
    "event_id", "sink", "priority", "event_type", "aggregate_type", "aggregate_id", "key", "topic", "content_type",
    "correlation_id", "causation_id", "saga_id", "schema_version", "max_attempts", "headers", "payload", "data",
)  # fmt: skip

# What add_plain.sql leaves to the table's defaults, with those; the other columns are its parameters.
DEFAULTS: Final = {
    "sink": DEFAULT_SINK, "priority": DEFAULT_PRIORITY, "content_type": codec.JSON, "saga_id": None,
    "schema_version": 1, "max_attempts": None, "data": None,
}  # fmt: skip
PLAIN: Final = itemgetter(*[index for index, name in enumerate(COLUMNS) if name not in DEFAULTS])
UNUSUAL: Final = itemgetter(*[index for index, name in enumerate(COLUMNS) if name in DEFAULTS])
USUAL: Final = tuple(DEFAULTS[name] for name in COLUMNS if name in DEFAULTS)

# Where rows of one call may differ and still share the rest: the first parameters of add_alike.sql. `data` is not among
# them, so they are JSON.
OWN: Final = tuple(COLUMNS.index(name) for name in ("event_id", "aggregate_id", "payload"))
SHARED: Final = tuple(index for index, name in enumerate(COLUMNS) if index not in OWN and name != "data")
DATA: Final = COLUMNS.index("data")
PAYLOAD: Final = COLUMNS.index("payload")

RowValues = tuple[Any, ...]


class Limits(msgspec.Struct, frozen=True):
    """What an Outbox accepts."""

    sinks: frozenset[str]
    max_payload: int


class Prepared(msgspec.Struct, frozen=True):
    """Events of one call, checked and turned into rows."""

    events: tuple[Event[Any], ...]
    rows: Sequence[RowValues]
    times: Sequence[datetime | None]


def prepare(things: Iterable[object], limits: Limits) -> Prepared:
    """Check the events of one call and make their rows; the first that is wrong raises, and nothing was written."""
    events = tuple([as_event(thing) for thing in things])
    origin = telemetry.origin()
    rows = [_row(event, limits, origin) for event in events]
    # By their integers: a UUID is hashed and compared in Python.
    if len({event.id.int for event in events}) != len(events):
        raise _duplicate(events)
    return Prepared(
        events=events,
        rows=rows,
        times=[event.not_before for event in events],
    )


def _row(event: Event[Any], limits: Limits, origin: telemetry.Origin) -> RowValues:
    if event.sink not in limits.sinks:
        declared = ", ".join(sorted(limits.sinks))
        problem = f"{event.sink!r} is not declared; this Outbox knows {declared}: add it with Outbox(sinks=…)"
        raise UnknownSink("sink", problem, event=checks.describe(event))
    body = event.body()
    data = body.data
    if data is not None and len(data) > limits.max_payload:
        problem = f"is {len(data)} bytes long; this Outbox allows {limits.max_payload} (Outbox(max_payload=…))"
        raise PayloadError("payload", problem, event=checks.describe(event))
    aggregate = event.aggregate
    return (
        event.id,
        event.sink,
        event.priority,
        event.type,
        aggregate[0] if aggregate else None,
        str(aggregate[1]) if aggregate else None,
        event.key,
        event.topic,
        body.content_type,
        event.correlation_id or origin.correlation_id,
        event.causation_id or origin.causation_id,
        event.saga_id,
        event.schema_version,
        event.max_attempts,
        _headers(event, origin),
        data.decode() if body.is_json and data is not None else None,
        data if not body.is_json else None,
    )


def _headers(event: Event[Any], origin: telemetry.Origin) -> str:
    """The user's headers and the trace context, as one JSON object."""
    traceparent = event.traceparent or origin.traceparent
    if not event.headers and traceparent is None:
        return "{}"
    headers = dict(event.headers)
    if traceparent is not None:
        headers["traceparent"] = traceparent
        tracestate = event.tracestate if event.traceparent else origin.tracestate
        if tracestate:
            headers["tracestate"] = tracestate
    return codec.encode(headers).decode()


def _duplicate(events: Sequence[Event[Any]]) -> InvalidEvent:
    seen: set[UUID] = set()
    for event in events:
        if event.id in seen:
            break
        seen.add(event.id)
    return DuplicateEvent("id", "stands twice in one call", event=checks.describe(event))
