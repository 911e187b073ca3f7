"""What did my code add? For tests of applications, over the connection or session that they use anyway.

    place_order(session, order)
    assert_added(session, type="order.placed", aggregate=("order", order.id), payload={"total": 42})

Reads inside the caller's transaction, so a test that rolls everything back sees its events too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload
from uuid import UUID

from oncommit import codec
from oncommit.db.calls import Call, Row, Work
from oncommit.db.connection import AsyncHandle, DjangoHandle, SyncHandle, driver_for
from oncommit.db.sql import query
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema
from oncommit.message import Event
from oncommit.testing.differences import Wanted, complaint, matching

if TYPE_CHECKING:
    from oncommit.db.connection import AsyncpgHandle

T = TypeVar("T")

Events = list[Event[Any]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def added(connection: AsyncHandle, *, schema: str = ...) -> Awaitable[Events]: ...
@overload
def added(connection: SyncHandle, *, schema: str = ...) -> Events: ...
@overload
def added(connection: AsyncpgHandle, *, schema: str = ...) -> Awaitable[Events]: ...
@overload
def added(connection: DjangoHandle, *, schema: str = ...) -> Events: ...


def added(connection: Any, *, schema: str = DEFAULT_SCHEMA) -> Any:
    """The events that this transaction sees and no relay has sent yet, in their order; delayed ones come last.

    Awaited where the connection is async. They come back as ``Event`` objects: JSON payloads as plain values, the id of
    the aggregate as text, times in UTC.
    """
    return _run(connection, _added(check_schema(schema)), schema)


@overload
def assert_added(
    connection: AsyncHandle,
    *,
    type: str | None = ...,
    aggregate: tuple[str, str | int | UUID] | None = ...,
    payload: Any = ...,
    key: str | None = ...,
    topic: str | None = ...,
    headers: Mapping[str, str] | None = ...,
    count: int | None = ...,
    schema: str = ...,
) -> Awaitable[Events]: ...
@overload
def assert_added(
    connection: SyncHandle | DjangoHandle,
    *,
    type: str | None = ...,
    aggregate: tuple[str, str | int | UUID] | None = ...,
    payload: Any = ...,
    key: str | None = ...,
    topic: str | None = ...,
    headers: Mapping[str, str] | None = ...,
    count: int | None = ...,
    schema: str = ...,
) -> Events: ...
@overload
def assert_added(
    connection: AsyncpgHandle,
    *,
    type: str | None = ...,
    aggregate: tuple[str, str | int | UUID] | None = ...,
    payload: Any = ...,
    key: str | None = ...,
    topic: str | None = ...,
    headers: Mapping[str, str] | None = ...,
    count: int | None = ...,
    schema: str = ...,
) -> Awaitable[Events]: ...


def assert_added(  # noqa: PLR0913 - one for each thing that an event may be known by
    connection: Any,
    *,
    type: str | None = None,
    aggregate: tuple[str, str | int | UUID] | None = None,
    payload: Any = ...,
    key: str | None = None,
    topic: str | None = None,
    headers: Mapping[str, str] | None = None,
    count: int | None = 1,
    schema: str = DEFAULT_SCHEMA,
) -> Any:
    """Assert that ``count`` events like this were added (``None``: one at least; 0: none), and return them.

    What is not named may be anything. The payload is compared as JSON, so a dataclass or model can be given as it was
    given to the event; ``payload=None`` asks for an event without one. ``headers`` have to be among those of the event.
    A failure shows the events that are there, and where the nearest of them differs.
    """
    wanted = Wanted(
        type=type,
        aggregate=None if aggregate is None else (aggregate[0], str(aggregate[1])),
        payload=payload if payload is ... or isinstance(payload, bytes) else codec.decode(codec.encode(payload)),
        key=key,
        topic=topic,
        headers=dict(headers or {}),
    )
    return _run(connection, _checked(wanted, count, check_schema(schema)), schema)


def _run(connection: Any, work: Work[T], schema: str) -> Any:
    # Reading needs no transaction, so the driver's check for one is left out.
    run: Callable[..., Any] = driver_for(connection).run
    return run(connection, work, schema)


def _added(schema: str) -> Work[Events]:
    rows = yield Call(query("testing/added", schema))
    return [_event(row) for row in rows]


def _checked(wanted: Wanted, count: int | None, schema: str) -> Work[Events]:
    __tracebackhide__ = True
    events = yield from _added(schema)
    found = matching(wanted, events)
    if (not found) if count is None else len(found) != count:
        raise AssertionError(complaint(wanted, count, found, events))
    return found


def _event(row: Row) -> Event[Any]:
    (
        event_id, event_type, payload, data, content_type, aggregate_type, aggregate_id, key, topic, sink, priority,
        headers, schema_version, correlation_id, causation_id, saga_id, max_attempts, not_before,
    ) = row  # fmt: skip
    own = dict(codec.decode(headers))
    return Event(
        event_type,
        id=UUID(event_id),
        payload=_payload(payload, data),
        content_type=content_type,
        aggregate=None if aggregate_type is None else (aggregate_type, aggregate_id),
        key=key,
        topic=topic,
        sink=sink,
        priority=priority,
        traceparent=own.pop("traceparent", None),
        tracestate=own.pop("tracestate", None),
        headers=own,
        schema_version=schema_version,
        correlation_id=correlation_id,
        causation_id=causation_id,
        saga_id=None if saga_id is None else UUID(saga_id),
        max_attempts=max_attempts,
        not_before=None if not_before is None else _EPOCH + timedelta(microseconds=int(not_before)),
    )


def _payload(text: str | None, data: bytes | None) -> Any:
    if data is not None:
        return bytes(data)
    return None if text is None else codec.decode(text)
