"""Look at events, live, archived and dead. Reads only, within limits of rows and of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from oncommit.db.dsn import translated_loss
from oncommit.db.failures import translate
from oncommit.db.sql import query
from oncommit.errors import NotFound, OncommitError, SchemaError
from oncommit.identifiers import DEFAULT_SCHEMA
from oncommit.ops.event_filter import DEFAULT_LIMIT, Cursor, EventFilter, check_limit, check_text
from oncommit.ops.event_record import EventRecord

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

__all__ = ["Cursor", "EventFilter", "EventRecord", "events_by_aggregate", "list_events", "show_event"]

TIMEOUT: Final = 30.0
# How far back to look for a page of the newest: most often the first stretch has it, and the archive stays unread.
_STRETCHES: Final = (timedelta(minutes=10), timedelta(days=1))
_LAST_PLACE: Final = 2**63 - 1


async def list_events(
    connection: Connection,
    wanted: EventFilter | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    timeout: float = TIMEOUT,
) -> list[EventRecord]:
    """A page of the events that pass the filter, newest first unless it says otherwise.

    Example:
        >>> stuck = await list_events(connection, EventFilter(states=("failed",), types=("order.placed",)))

    Raises:
        OncommitError: It took longer than ``timeout``; narrow the filter.
        SchemaMissing: The database was never migrated.
    """
    wanted = wanted or EventFilter()
    async with _reading(connection, schema, timeout):
        if not wanted.newest_first:
            return await _page(connection, "events/oldest", wanted, wanted.since, schema)
        if not wanted.is_selective:
            ends = [await connection.fetchval(query("events/clock", schema))]
            ends += [moment for moment in (wanted.until, wanted.after and wanted.after.created_at) if moment]
            for stretch in _STRETCHES:
                start = _before(min(ends), stretch)
                if wanted.since and wanted.since >= start:
                    break
                found = await _page(connection, "events/newest", wanted, start, schema)
                if len(found) == wanted.limit:
                    return found
        return await _page(connection, "events/newest", wanted, wanted.since, schema)


async def show_event(
    connection: Connection, event_id: UUID, *, schema: str = DEFAULT_SCHEMA, timeout: float = TIMEOUT
) -> EventRecord:
    """One event, with payload and headers.

    Example:
        >>> (await show_event(connection, event.id)).state
        'sent'

    Raises:
        NotFound: No such event: never committed, expired, or discarded.
    """
    async with _reading(connection, schema, timeout):
        row = await connection.fetchrow(query("events/show", schema), event_id)
    if row is None:
        msg = f"no event {event_id}: its transaction did not commit, or it has expired from the archive"
        raise NotFound(msg)
    return EventRecord.from_row(row)


async def events_by_aggregate(
    connection: Connection,
    aggregate_type: str,
    aggregate_id: str,
    *,
    after: Cursor | None = None,
    limit: int = DEFAULT_LIMIT,
    with_payload: bool = False,
    schema: str = DEFAULT_SCHEMA,
    timeout: float = TIMEOUT,
) -> list[EventRecord]:
    """What happened to one thing, in the order in which it was written: archived, dead, live, and not due yet.

    Example:
        >>> [record.event_type for record in await events_by_aggregate(connection, "order", "42")]
        ['order.placed', 'order.paid']
    """
    check_text("aggregate_type", aggregate_type)
    check_text("aggregate_id", aggregate_id)
    place: tuple[datetime | None, int | None, UUID | None] = (None, None, None)
    if after is not None:
        place = (after.created_at, _LAST_PLACE if after.id is None else after.id, after.event_id)
    values = (with_payload, aggregate_type, aggregate_id, *place, check_limit(limit))
    async with _reading(connection, schema, timeout):
        rows = await connection.fetch(query("events/by_aggregate", schema), *values)
    return [EventRecord.from_row(row) for row in rows]


async def _page(
    connection: Connection, name: str, wanted: EventFilter, start: datetime | None, schema: str
) -> list[EventRecord]:
    after = wanted.after
    values: tuple[Any, ...] = (
        wanted.with_payload,
        list(wanted.states) or None,
        list(wanted.types) or None,
        wanted.aggregate_type,
        wanted.aggregate_id,
        wanted.key,
        wanted.topic,
        wanted.sink,
        wanted.correlation_id,
        wanted.until,
        start,
        after.created_at if after else None,
        (after.id or 0) if after else None,
        after.event_id if after else None,
        wanted.limit,
    )
    return [EventRecord.from_row(row) for row in await connection.fetch(query(name, schema), *values)]


def _before(moment: datetime, stretch: timedelta) -> datetime:
    try:
        return moment - stretch
    except OverflowError:
        return moment


@asynccontextmanager
async def _reading(connection: Connection, schema: str, timeout: float) -> AsyncIterator[None]:
    """A short transaction (a pooler in transaction mode wants one), a time limit, and our errors."""
    inside = connection.is_in_transaction()
    try:
        async with asyncio.timeout(timeout):
            with translated_loss():
                async with connection.transaction() if inside else connection.transaction(readonly=True):
                    yield
    except TimeoutError as error:
        msg = (
            f"looking took longer than {timeout:g} s; narrow it down: a shorter time (--since), "
            "an aggregate with its id, or a correlation id, which have indexes"
        )
        raise OncommitError(msg) from error
    except asyncpg.InsufficientPrivilegeError as error:
        msg = f'{error}; this role needs USAGE on schema "{schema}" and SELECT on its tables'
        raise SchemaError(msg) from error
    except asyncpg.PostgresError as error:
        if ours := translate(error, schema):
            raise ours from error
        raise
