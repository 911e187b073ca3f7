"""Publish archived events again, as new events that name the old ones.

Failure story. A batch is one statement, which commits by itself: killed or cut off between two, everything up to the
last place is out again and nothing behind it; another replay can go on from there. Cut off in the middle of one, it is
not known whether that one batch is out; what is published twice has two ids, so no inbox drops it. What is being
archived at this very moment may not be part of a range that ends now. Nothing is held in between, so days of the
archive can leave meanwhile; what has left is not published.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec

from oncommit.db.dsn import translated_loss
from oncommit.db.failures import translate
from oncommit.db.sql import query
from oncommit.errors import ConfigError, OncommitError, SchemaError
from oncommit.identifiers import DEFAULT_SCHEMA
from oncommit.ops.replay_filter import BEFORE_ALL, ReplayFilter, ReplayPlace, Window
from oncommit.ops.retention import read_retention

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

__all__ = ["ReplayFilter", "ReplayGroup", "ReplayPlace", "ReplayPlan", "ReplayStep", "plan_replay", "replay_events"]

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_TIMEOUT: Final = 60.0
PLAN_TIMEOUT: Final = 300.0


class ReplayGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one type, topic and sink."""

    event_type: str
    topic: str | None
    """None: the relay resolves it."""
    sink: str
    events: int


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay would publish."""

    events: int
    first: datetime | None
    """When the first of them was archived."""
    last: datetime | None
    end: datetime
    """Nothing that is archived from here on is published, such as what the replay itself adds."""
    groups: list[ReplayGroup]


class ReplayStep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay has come after a batch."""

    events: int
    """Published again so far."""
    place: ReplayPlace
    """Behind which another can go on."""


async def plan_replay(
    connection: Connection, wanted: ReplayFilter, *, schema: str = DEFAULT_SCHEMA, timeout: float = PLAN_TIMEOUT
) -> ReplayPlan:
    """What would be published again; nothing is.

    Example:
        >>> (await plan_replay(connection, ReplayFilter(start=yesterday))).events
        1200

    Raises:
        ConfigError: The range begins before the time for which everything is kept, and ``older`` was not said.
        OncommitError: Counting took longer than ``timeout``.
    """
    end = await _end(connection, wanted, schema)
    async with _asking(schema, timeout):
        rows = await connection.fetch(query("replay/plan", schema), *_values(wanted, _place(wanted), wanted.start, end))
    groups = [ReplayGroup(**{name: row[name] for name in ReplayGroup.__struct_fields__}) for row in rows]
    return ReplayPlan(
        events=sum(group.events for group in groups),
        first=min((row["first"] for row in rows), default=None),
        last=max((row["last"] for row in rows), default=None),
        end=end,
        groups=groups,
    )


async def replay_events(
    connection: Connection, wanted: ReplayFilter, *, schema: str = DEFAULT_SCHEMA, timeout: float = BATCH_TIMEOUT
) -> AsyncGenerator[ReplayStep, None]:
    """Publish again, batch by batch; each step says how far it has come. Stop iterating to stop.

    The connection must not be in a transaction: every batch is one, so that no relay waits for the whole.

    Example:
        >>> async for step in replay_events(connection, ReplayFilter(start=yesterday, types=("order.placed",))):
        ...     print(step.events, step.place)

    Raises:
        ConfigError: The range begins before the time for which everything is kept, and ``older`` was not said; or a
            transaction is open.
        OncommitError: A batch took longer than ``timeout``; whether it is out is not known.
    """
    if connection.is_in_transaction():
        raise ConfigError("a replay commits batch by batch: give it a connection that is not in a transaction")
    end = await _end(connection, wanted, schema)
    place, window, total = _place(wanted), Window(), 0
    while place.archived_at < end:
        until = min(place.archived_at + window.width, end)
        async with _asking(schema, timeout):
            (row,) = await connection.fetch(
                query("replay/publish", schema),
                *_values(wanted, place, place.archived_at, until), BATCH_ROWS, BATCH_BYTES, wanted.to_topic,
            )  # fmt: skip
        full = row["picked"] == BATCH_ROWS or row["published"] < row["picked"]
        window.read(full=full)
        place = ReplayPlace(row["archived_at"], row["id"]) if full else ReplayPlace(until, BEFORE_ALL)
        total += row["published"]
        yield ReplayStep(events=total, place=place)


def _place(wanted: ReplayFilter) -> ReplayPlace:
    start = ReplayPlace(wanted.start, BEFORE_ALL)
    if wanted.after is None or wanted.after.archived_at < wanted.start:
        return start
    return wanted.after


def _values(wanted: ReplayFilter, place: ReplayPlace, start: datetime, end: datetime) -> tuple[Any, ...]:
    kinds = list(wanted.types) or None
    names = (wanted.aggregate_type, wanted.aggregate_id, wanted.topic, wanted.sink)
    return (start, end, kinds, *names, place.archived_at, place.id)


async def _end(connection: Connection, wanted: ReplayFilter, schema: str) -> datetime:
    """Where the range ends: at the latest now, on the database's clock."""
    retention = await read_retention(connection, schema=schema)
    async with _asking(schema, BATCH_TIMEOUT):
        (row,) = await connection.fetch(query("replay/clock", schema), retention.archive_days)
    now, kept_since = row["now"], row["kept_since"]
    if wanted.start < kept_since and not wanted.older:
        raise ConfigError(
            f"the range begins before {kept_since.isoformat()}, and what is older is not kept for certain "
            f"({retention.archive_days} days are agreed on), so a part may be missing; say so (--older), or begin later"
        )
    return min(wanted.end, now) if wanted.end else now  # type: ignore[no-any-return] # a record's fields are anything


@asynccontextmanager
async def _asking(schema: str, timeout: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            with translated_loss():
                yield
    except TimeoutError as error:
        raise OncommitError(f"it took longer than {timeout:g} s; choose a shorter range, or one aggregate") from error
    except asyncpg.InsufficientPrivilegeError as error:
        msg = f'{error}; this role needs SELECT on "{schema}".outbox_archive and INSERT on "{schema}".outbox'
        raise SchemaError(msg) from error
    except asyncpg.PostgresError as error:
        if ours := translate(error, schema):
            raise ours from error
        raise
