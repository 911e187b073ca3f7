"""What plain SQL cannot write, since the constraints say the same as the checks of Event."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from oncommit import checks
from oncommit.testing.servers import Database

TABLES = ["outbox", "outbox_delayed"]
# In bytes. The names of sinks have their limit in oncommit.identifiers.
LIMITS = {
    "event_type": checks.MAX_TYPE,
    "aggregate_type": checks.MAX_TYPE,
    "aggregate_id": checks.MAX_AGGREGATE_ID,
    "key": checks.MAX_KEY,
    "topic": checks.MAX_TOPIC,
    "correlation_id": checks.MAX_CORRELATION,
    "causation_id": checks.MAX_CORRELATION,
    "content_type": checks.MAX_TYPE,
    "sink": 63,
}
REFUSED = {
    "priority": [{"priority": "99"}, {"priority": "-1"}, {"priority": "10"}],
    "aggregate": [{"aggregate_type": "'a'", "aggregate_id": "NULL"}, {"aggregate_type": "NULL", "aggregate_id": "'1'"}],
    "body": [{"payload": "'{}'", "data": "'x'"}],
    "headers": [{"headers": "'[]'"}, {"headers": "'null'"}, {"headers": "'\"a\"'"}],
    "names": [{"event_type": "''"}, {"sink": "''"}],
    "version": [{"schema_version": "0"}],
    "counts": [{"max_attempts": "0"}],
}
REFUSED_LIVE = {
    "counts": [{"attempts": "-1"}, {"crashes": "-1"}],
    "due": [{"available_at": "now()"}, {"state": "'optimistic'"}],
    "birth": [
        {"state": f"'{state}'", "available_at": "now()"}
        for state in ("failed", "dead_letter", "sent", "claimed", "new")
    ],
}
CASES = [
    (table, name, values)
    for table in TABLES
    for refused in (REFUSED, REFUSED_LIVE if table == "outbox" else {})
    for name, cases in refused.items()
    for values in cases
] + [("outbox_delayed", "finite", {"not_before": f"'{moment}'"}) for moment in ("infinity", "-infinity")]


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn)
    yield connected
    await connected.close()


async def insert(connection: asyncpg.Connection, table: str, values: dict[str, str]) -> None:
    row = {"event_type": "'a'"} | ({"not_before": "now()"} if table == "outbox_delayed" else {}) | values
    await connection.execute(f"INSERT INTO oncommit.{table} ({', '.join(row)}) VALUES ({', '.join(row.values())})")


async def test_what_is_refused_and_by_which_constraint(connection: asyncpg.Connection) -> None:
    for table, name, values in CASES:
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await insert(connection, table, values)
        assert refused.value.constraint_name == f"{table}_{name}", values
        assert await connection.fetchval(f"SELECT count(*) FROM oncommit.{table}") == 0


async def test_what_the_type_refuses(connection: asyncpg.Connection) -> None:
    for table in TABLES:
        for values in ({"headers": "'{'"}, {"payload": "'nope'"}, {"event_id": "'x'"}):
            with pytest.raises(asyncpg.DataError):
                await insert(connection, table, values)
        with pytest.raises((asyncpg.GeneratedAlwaysError, asyncpg.PostgresSyntaxError)):
            await insert(connection, table, {"id": "1"})


@pytest.mark.parametrize("table", TABLES)
async def test_lengths_are_those_of_the_checks(connection: asyncpg.Connection, table: str) -> None:
    for column, limit in LIMITS.items():
        other = {"aggregate_type": "aggregate_id", "aggregate_id": "aggregate_type"}.get(column)
        beside = {other: "'a'"} if other else {}
        # Two bytes a character: the limits count bytes, as the index does.
        fits = "ü" * (limit // 2) + "a" * (limit % 2)
        await insert(connection, table, beside | {column: f"'{fits}'"})
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await insert(connection, table, beside | {column: f"'{fits}a'"})
        assert refused.value.constraint_name == f"{table}_lengths", column


async def test_the_longest_event_fits_into_the_archive(connection: asyncpg.Connection) -> None:
    """Incompressible, since an index entry may be compressed; what cannot be archived would be sent for ever."""
    noise = random.Random(7)
    row = {
        column: "'" + "".join(chr(noise.randrange(0x4E00, 0x9FA5)) for _ in range(limit // 3)) + "'"
        for column, limit in LIMITS.items()
    }
    await insert(connection, "outbox", row)
    columns = (
        "id, created_at, event_id, attempts, crashes, schema_version, priority, lane, sink, event_type, "
        "aggregate_type, aggregate_id, key, topic, content_type, correlation_id, causation_id, headers"
    )
    await connection.execute(
        f"INSERT INTO oncommit.outbox_archive (sent_at, {columns}) SELECT now(), {columns} FROM oncommit.outbox"
    )
    longest = await connection.fetchval("SELECT octet_length(aggregate_id) FROM oncommit.outbox_archive")
    assert longest > checks.MAX_AGGREGATE_ID - 3


async def test_what_names_and_orders_a_live_event_cannot_change(connection: asyncpg.Connection) -> None:
    await insert(connection, "outbox", {"key": "'k'"})
    for change in ("event_id = oncommit.make_id()", "sink = 'other'", "priority = 9", "key = NULL",
                   "aggregate_type = 'a', aggregate_id = '1'"):  # fmt: skip
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await connection.execute(f"UPDATE oncommit.outbox SET {change}")
        assert refused.value.constraint_name == "outbox_identity", change
    await connection.execute("UPDATE oncommit.outbox SET topic = 't', key = 'k'")


async def test_made_ids_are_version_7_and_of_now(connection: asyncpg.Connection) -> None:
    begun = time.time()
    made: list[UUID] = [
        row["id"] for row in await connection.fetch("SELECT oncommit.make_id() AS id FROM generate_series(1, 1000)")
    ]
    assert len(set(made)) == 1000
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}
    milliseconds = [one.int >> 80 for one in made]
    assert milliseconds == sorted(milliseconds)
    assert all(begun - 5 < moment / 1000 < time.time() + 5 for moment in milliseconds)
    random_bits = {bit for one in made for bit in range(62) if one.int >> bit & 1}
    assert random_bits == set(range(62))
