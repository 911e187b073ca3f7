"""How things stand: what waits, who serves it, what is in flight, what died. Reads only, in one snapshot.

It costs one pass over the live tables, which are as small as the backlog; the archive is not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import msgspec

from oncommit.db.dsn import translated_loss
from oncommit.db.failures import translate
from oncommit.db.sql import query
from oncommit.errors import OncommitError, SchemaError
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

TIMEOUT: Final = 30.0


class SinkStats(msgspec.Struct, kw_only=True):
    """One sink. Ages in seconds, None where there is nothing to be old."""

    sink: str
    pending: int = 0
    """Committed, and neither sent nor dead: backing off, reserved and in flight included."""
    failed: int = 0
    """Of those: backing off."""
    optimistic: int = 0
    """Of those: reserved by a sender after its commit."""
    in_flight: int = 0
    """Of those: in a batch that a relay has claimed."""
    oldest_pending_age_seconds: float | None = None
    delayed: int = 0
    """Before their time, or due and not moved yet."""
    delayed_due: int = 0
    parked: int = 0
    """Dead heads whose keys wait for an operator."""
    dead_letters: int = 0
    oldest_dead_letter_age_seconds: float | None = None
    lanes: int = 0
    lanes_without_owner: int = 0


class RelayStats(msgspec.Struct, kw_only=True):
    """One relay."""

    relay_id: UUID
    name: str
    version: str
    sinks: list[str]
    """Those whose brokers take events from it now; others are left to other relays meanwhile."""
    started_at: datetime
    heartbeat_age_seconds: float
    """Seconds since it last renewed its lease; beyond the lease, its lanes are anybody's."""
    lanes: dict[str, int] = {}
    """How many of each sink it owns."""
    in_flight: int = 0


class ClaimStats(msgspec.Struct, kw_only=True):
    """One batch in flight."""

    sink: str
    relay_id: UUID
    batch: int
    lanes: int
    rows: int
    left_behind: int
    """Of its rows: on lanes that this relay has lost since."""
    age_seconds: float


class MaintenanceStats(msgspec.Struct, kw_only=True):
    """What one relay looks after for all."""

    leader: str | None = None
    """Name of the relay that leads. None: nobody does, or the leader's row is gone."""
    leader_id: UUID | None = None
    lease_left_seconds: float | None = None
    delayed: int = 0
    """Of all sinks: before their time, or due and not moved yet."""
    next_due_seconds: float | None = None
    """Until the next of them is due; below zero, it is late by so much. None: nothing is delayed."""
    archive_days_ahead: int = -1
    """For so many days after today, without a gap, the archive has partitions; -1: not for today."""
    oldest_archive_day: date | None = None


class Stats(msgspec.Struct, kw_only=True):
    """How things stand."""

    sinks: list[SinkStats]
    relays: list[RelayStats]
    claims: list[ClaimStats]
    other_dead_letters: dict[str, int]
    """Of consumers and sagas, by name: ``consumer billing``."""
    maintenance: MaintenanceStats = msgspec.field(default_factory=MaintenanceStats)


async def read_stats(connection: Connection, *, schema: str = DEFAULT_SCHEMA, timeout: float = TIMEOUT) -> Stats:
    """How things stand now.

    Example:
        >>> (await read_stats(connection)).sinks[0].pending
        0

    Raises:
        SchemaMissing: The database was never migrated.
        OncommitError: It took longer than ``timeout``.
    """
    check_schema(schema)
    found: dict[str, Sequence[Any]] = {}
    try:
        async with asyncio.timeout(timeout):
            with translated_loss():
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    for name in ("live", "delayed", "dead_letters", "lanes", "relays", "claims", "maintenance"):
                        found[name] = await connection.fetch(query(f"stats/{name}", schema))
    except TimeoutError as error:
        raise OncommitError(f"counting took longer than {timeout:g} s; is the database overloaded?") from error
    except asyncpg.InsufficientPrivilegeError as error:
        msg = f'{error}; this role needs USAGE on schema "{schema}" and SELECT on its tables'
        raise SchemaError(msg) from error
    except asyncpg.PostgresError as error:
        if ours := translate(error, schema):
            raise ours from error
        raise
    return compose(found)


def compose(found: dict[str, Sequence[Any]]) -> Stats:
    """The rows of all queries as one picture. Pure."""
    sinks: dict[str, SinkStats] = {}
    others: dict[str, int] = {}
    relays = {
        row["relay_id"]: RelayStats(**{name: row[name] for name in row.keys()})  # noqa: SIM118 - a record is no dict
        for row in found["relays"]
    }
    claims = [
        ClaimStats(left_behind=row["left_rows"], **{name: row[name] for name in _CLAIM}) for row in found["claims"]
    ]

    def sink(name: str) -> SinkStats:
        return sinks.setdefault(name, SinkStats(sink=name))

    for row in found["live"]:
        one = sink(row["sink"])
        one.pending, one.failed, one.optimistic = row["pending"], row["failed"], row["optimistic"]
        one.parked, one.oldest_pending_age_seconds = row["parked"], row["oldest_age"]
    for row in found["delayed"]:
        one = sink(row["sink"])
        one.delayed, one.delayed_due = row["delayed"], row["due"]
    for row in found["dead_letters"]:
        if row["source"] == "outbox":
            one = sink(row["origin"])
            one.dead_letters, one.oldest_dead_letter_age_seconds = row["dead_letters"], row["oldest_age"]
        else:
            others[f"{row['source']} {row['origin']}"] = row["dead_letters"]
    for row in found["lanes"]:
        one = sink(row["sink"])
        one.lanes += row["lanes"]
        if row["relay_id"] is None:
            one.lanes_without_owner += row["lanes"]
        else:
            relays[row["relay_id"]].lanes[row["sink"]] = row["lanes"]
    for claim in claims:
        sink(claim.sink).in_flight += claim.rows
        if claim.relay_id in relays:
            relays[claim.relay_id].in_flight += claim.rows
    return Stats(
        sinks=sorted(sinks.values(), key=lambda one: one.sink),
        relays=list(relays.values()),
        claims=claims,
        other_dead_letters=others,
        maintenance=MaintenanceStats(
            delayed=sum(one.delayed for one in sinks.values()),
            **dict(found["maintenance"][0]),
        ),
    )


_CLAIM: Final = ("sink", "relay_id", "batch", "lanes", "rows", "age_seconds")
