"""Reading events in every situation they can be in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from oncommit.db.migrate import migrate
from oncommit.errors import ConfigError, DatabaseUnreachable, NotFound, OncommitError, SchemaError, SchemaMissing
from oncommit.ops.events import Cursor, EventFilter, EventRecord, events_by_aggregate, list_events, show_event
from oncommit.testing.servers import Database
from tests.integration.ops.world import (
    CLAIMED,
    DEAD,
    DELAYED,
    FAILED,
    FILL,
    LAPSED,
    PARKED,
    PENDING,
    RESERVED,
    SENT,
    URGENT,
)

ORDER_42 = [SENT, DEAD, CLAIMED, FAILED, LAPSED, RESERVED, PARKED, PENDING, DELAYED]


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn)
    try:
        # One statement at a time, so that each has a time of its own.
        for statement in FILL.strip().split(";\n"):
            await connected.execute(statement)
        yield connected
    finally:
        await connected.close()


def ids(records: list[EventRecord]) -> list[Any]:
    return [record.event_id for record in records]


async def test_every_state_is_told(connection: asyncpg.Connection) -> None:
    states = {record.event_id: record.state for record in await list_events(connection)}
    assert states == {
        SENT: "sent",
        DEAD: "dead_letter",
        CLAIMED: "claimed",
        FAILED: "failed",
        LAPSED: "pending",
        RESERVED: "optimistic",
        PARKED: "dead_letter",
        PENDING: "pending",
        URGENT: "pending",
        DELAYED: "pending",
    }


async def test_what_a_record_tells(connection: asyncpg.Connection) -> None:
    sent, dead, claimed, failed, parked, pending, urgent, delayed = [
        await show_event(connection, one) for one in (SENT, DEAD, CLAIMED, FAILED, PARKED, PENDING, URGENT, DELAYED)
    ]
    assert (sent.sent_at is not None, sent.archived_at is not None, sent.lane) == (True, True, 7)
    assert (sent.payload, sent.headers, sent.data) == ({"n": 1}, {"a": "b"}, None)
    assert (dead.failed_at is not None, dead.attempts, dead.last_error) == (True, 10, "too often")
    assert (claimed.claimed_by, claimed.claimed_at is not None) == ("relay-a", True)
    assert (failed.claimed_by, failed.attempts, failed.payload) == (None, 3, b"\x00\xff")
    assert failed.last_error is not None
    assert "no answer" in failed.last_error
    assert parked.failed_at is not None
    assert (pending.key, pending.aggregate, pending.sink) == ("order:42", "order/42", "audit")
    assert urgent.lane is not None
    assert (urgent.lane >= 64, urgent.key, urgent.aggregate) == (True, "house", None)
    assert (delayed.id, delayed.lane) == (None, None)
    assert delayed.available_at is not None
    assert delayed.available_at > datetime.now(UTC)


async def test_by_aggregate_is_in_write_order_across_all_places(connection: asyncpg.Connection) -> None:
    assert ids(await events_by_aggregate(connection, "order", "42")) == ORDER_42
    assert await events_by_aggregate(connection, "order", "43") == []
    assert await events_by_aggregate(connection, "orde", "42") == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"states": ("sent",)}, [SENT]),
        ({"states": ("dead_letter", "failed")}, [PARKED, FAILED, DEAD]),
        ({"types": ("order.placed",)}, [PENDING, SENT]),
        ({"types": ("alarm", "order.paid")}, [URGENT, DEAD]),
        ({"aggregate_type": "order", "states": ("claimed",)}, [CLAIMED]),
        ({"aggregate_type": "order", "aggregate_id": "43"}, []),
        ({"key": "house"}, [URGENT]),
        ({"key": "order:42", "limit": 2}, [DELAYED, PENDING]),
        ({"topic": "paid"}, [DEAD]),
        ({"sink": "audit"}, [PENDING]),
        ({"correlation_id": "talk-1"}, [CLAIMED, SENT]),
        ({"newest_first": False, "limit": 2}, [SENT, DEAD]),
    ],
    ids=str,
)
async def test_filters(connection: asyncpg.Connection, wanted: dict[str, Any], found: list[Any]) -> None:
    assert ids(await list_events(connection, EventFilter(**wanted))) == found


async def test_since_and_until(connection: asyncpg.Connection) -> None:
    now = datetime.now(UTC)
    since, until = now - timedelta(minutes=45), now - timedelta(minutes=7)
    for newest_first in (True, False):
        found = await list_events(connection, EventFilter(since=since, until=until, newest_first=newest_first))
        assert ids(found) == ([PARKED, RESERVED, LAPSED] if newest_first else [LAPSED, RESERVED, PARKED])


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_join_without_gap_or_repeat(connection: asyncpg.Connection, newest_first: bool) -> None:
    # Of one statement: the same time, so the id decides.
    await connection.execute("INSERT INTO oncommit.outbox (event_type) SELECT 'bulk' FROM generate_series(1, 7)")
    whole = await list_events(connection, EventFilter(limit=1000, newest_first=newest_first))
    assert len(whole) == 17
    pages: list[EventRecord] = []
    after = None
    while page := await list_events(connection, EventFilter(limit=3, newest_first=newest_first, after=after)):
        pages += page
        after = Cursor.parse(str(page[-1].cursor))
    assert ids(pages) == ids(whole)


async def test_pages_of_an_aggregate(connection: asyncpg.Connection) -> None:
    seen: list[EventRecord] = []
    after = None
    while page := await events_by_aggregate(connection, "order", "42", limit=2, after=after):
        seen += page
        after = page[-1].cursor
    assert ids(seen) == ORDER_42


async def test_an_event_that_is_sent_between_two_pages_keeps_its_place(connection: asyncpg.Connection) -> None:
    first = await list_events(connection, EventFilter(limit=3))
    last = first[-1]
    await connection.execute("DELETE FROM oncommit.outbox WHERE event_id = $1", last.event_id)
    rest = await list_events(connection, EventFilter(after=last.cursor))
    assert len(first) + len(rest) == 10
    assert not set(ids(first)) & set(ids(rest))


async def test_payload_only_when_asked(connection: asyncpg.Connection) -> None:
    (without,) = await list_events(connection, EventFilter(states=("sent",)))
    (with_it,) = await list_events(connection, EventFilter(states=("sent",), with_payload=True))
    assert (without.payload, without.headers) == (None, None)
    assert (with_it.payload, with_it.headers) == ({"n": 1}, {"a": "b"})


async def test_a_json_codec_of_the_caller_changes_nothing(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    for record in (
        await show_event(connection, SENT),
        (await list_events(connection, EventFilter(states=("sent",), with_payload=True)))[0],
        (await events_by_aggregate(connection, "order", "42", with_payload=True))[0],
    ):
        assert (record.payload, record.headers) == ({"n": 1}, {"a": "b"})


async def test_inside_a_transaction_of_the_caller(connection: asyncpg.Connection) -> None:
    async with connection.transaction(isolation="repeatable_read"):
        with pytest.raises(NotFound):
            await show_event(connection, uuid4())
        await connection.execute("INSERT INTO oncommit.outbox (event_type) VALUES ('mine')")
        assert len(await list_events(connection, EventFilter(types=("mine",)))) == 1


async def test_unknown(connection: asyncpg.Connection) -> None:
    with pytest.raises(NotFound, match="did not commit, or it has expired"):
        await show_event(connection, uuid4())


@pytest.mark.parametrize(
    "wanted",
    [{"limit": 0}, {"limit": 1001}, {"states": ("sending",)}, {"since": datetime(2026, 1, 1)}, {"until": datetime.max},  # noqa: DTZ001, DTZ901
     {"key": "a\0"}, {"types": ("\udcff",)}],
    ids=str,
)  # fmt: skip
def test_filters_that_cannot_be(wanted: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EventFilter(**wanted)


@pytest.mark.parametrize("text", ["", "1.2", "a.b.c", "1.2.3.4", f"{'9' * 40}.1.{uuid4().hex}", "1.1.zz"])
def test_cursors_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is no cursor"):
        Cursor.parse(text)


async def test_it_gives_up_in_time(connection: asyncpg.Connection, any_database: Database) -> None:
    other = await asyncpg.connect(any_database.dsn)
    await other.execute("BEGIN")
    await other.execute("LOCK TABLE oncommit.outbox")
    try:
        with pytest.raises(OncommitError, match=r"longer than 0.2 s; narrow it down"):
            await list_events(connection, timeout=0.2)
    finally:
        await other.close()
    assert len(await list_events(connection)) == 10  # the connection is still good


async def test_no_tables(connection: asyncpg.Connection) -> None:
    with pytest.raises(SchemaMissing, match="oncommit migrate --schema elsewhere"):
        await list_events(connection, schema="elsewhere")


async def test_another_schema(connection: asyncpg.Connection) -> None:
    await migrate(connection, "order")
    await connection.execute("INSERT INTO \"order\".outbox (event_type) VALUES ('there')")
    assert [record.event_type for record in await list_events(connection, schema="order")] == ["there"]


async def test_no_rights(connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE ROLE nobody_here")
    try:
        await connection.execute("SET ROLE nobody_here")
        with pytest.raises(SchemaError, match="USAGE on schema"):
            await list_events(connection)
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute("DROP ROLE nobody_here")


async def test_a_connection_that_breaks(connection: asyncpg.Connection, any_database: Database) -> None:
    killer = await asyncpg.connect(any_database.dsn)
    await killer.execute("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())
    await killer.close()
    with pytest.raises(DatabaseUnreachable):
        await list_events(connection)
    with pytest.raises(DatabaseUnreachable):
        await list_events(connection)
