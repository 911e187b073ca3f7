"""Whichever statement writes the row, it and its lane are the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit import Event
from oncommit.outbox import Outbox
from oncommit.testing.servers import Database

Write = Callable[[asyncpg.Connection, list[Event]], Awaitable[None]]

GIVEN = UUID("01a1f0a8-e500-75cf-a61e-3e3e043a6c80")
EVENTS = [
    Event("plain"),
    Event("with a key", key="k"),
    Event("of an aggregate", aggregate=("account", 7)),
    Event("of an aggregate, with a key", aggregate=("account", 7), key="k"),
    Event("urgent", aggregate=("account", 7), priority=9),
    Event("urgent and alone", priority=6),
    Event("as usual", aggregate=("account", 7), priority=5),
]
LANES = """
    SELECT
        o.event_type, o.lane,
        oncommit.lane_of(o.priority, o.key, o.aggregate_type, o.aggregate_id, o.event_id) AS computed
    FROM oncommit.outbox AS o ORDER BY o.id
"""
WRITTEN = """
    SELECT (to_jsonb(o) - '{id,created_at,event_id}'::text[]
            - CASE WHEN o.key IS NULL AND o.aggregate_id IS NULL THEN 'lane' ELSE '' END)::text AS written
    FROM oncommit.outbox AS o WHERE o.event_type = 'a'
"""
BY_HAND = """
    INSERT INTO oncommit.outbox (event_type, event_id, aggregate_type, aggregate_id, key, priority)
    VALUES ($1, $2, $3, $4, $5, $6)
"""


async def by_hand(connection: asyncpg.Connection, events: list[Event]) -> None:
    for event in events:
        kind, identity = event.aggregate_type, event.aggregate_id
        await connection.execute(BY_HAND, event.type, event.id, kind, identity, event.key, event.priority)


async def one_by_one(connection: asyncpg.Connection, events: list[Event]) -> None:
    for event in events:
        await Outbox().add(connection, event)


async def together(connection: asyncpg.Connection, events: list[Event]) -> None:
    await Outbox().add(connection, *events)


async def among_a_known_one(connection: asyncpg.Connection, events: list[Event]) -> None:
    await Outbox().add(connection, *events, Event("known", id=GIVEN))


WRITERS = [by_hand, one_by_one, together, among_a_known_one]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
async def test_every_way_of_writing_gives_the_same_lane(any_database: Database, write: Write) -> None:
    connection = await asyncpg.connect(any_database.dsn)
    try:
        async with connection.transaction():
            # Anew each time: an event that was added before takes the way of known ones.
            await write(connection, [_again(event) for event in EVENTS])
        rows = await connection.fetch(LANES)
        assert {row["event_type"] for row in rows} >= {event.type for event in EVENTS}
        for row in rows:
            assert row["lane"] == row["computed"], row["event_type"]
            assert (row["lane"] >= 64) == row["event_type"].startswith("urgent"), row["event_type"]
        lane = {row["event_type"]: row["lane"] for row in rows}
        assert lane["with a key"] == lane["of an aggregate, with a key"]
        assert lane["of an aggregate"] == lane["as usual"]
    finally:
        await connection.close()


async def test_every_statement_writes_the_same_row(any_database: Database) -> None:
    """One event as any other, one with all fields, some that are alike, some that are not, one that is known."""
    plain = {"aggregate": ("account", 7), "payload": {"a": 1}, "headers": {"x": "y"}, "correlation_id": "c"}
    full = plain | {
        "causation_id": "d",
        "topic": "t",
        "key": "k",
        "priority": 6,
        "schema_version": 3,
        "max_attempts": 2,
    }
    connection = await asyncpg.connect(any_database.dsn)
    try:
        for fields in (plain, full, {}):
            calls = [
                [Event("a", **fields)],
                [Event("a", **fields), Event("a", **fields)],
                [Event("a", **fields), Event("other", payload=b"bytes")],
                [Event("a", **fields, id=uuid4())],
                [Event("a", **fields, not_before=datetime(2026, 1, 1, tzinfo=UTC))],
            ]
            async with connection.transaction():
                for events in calls:
                    await Outbox().add(connection, *events)
            rows = await connection.fetch(WRITTEN)
            assert len(rows) == 6
            assert len({row["written"] for row in rows}) == 1
            await connection.execute("TRUNCATE oncommit.outbox")
    finally:
        await connection.close()


async def test_a_lane_cannot_be_changed(any_database: Database) -> None:
    connection = await asyncpg.connect(any_database.dsn)
    try:
        await connection.execute("INSERT INTO oncommit.outbox (event_type) VALUES ('a')")
        with pytest.raises(asyncpg.GeneratedAlwaysError, match="follows from priority and key"):
            await connection.execute("UPDATE oncommit.outbox SET lane = 99")
    finally:
        await connection.close()


def _again(event: Event) -> Event:
    return Event(event.type, aggregate=event.aggregate, key=event.key, priority=event.priority)
