"""How the reading queries find their rows in a big archive: by index, and without reading what cannot matter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from oncommit.db.sql import query
from oncommit.testing.servers import Database

ROWS = 100_000
# Eight days of an archive, as the relay would have left it: in the order of time.
FILL = """
    INSERT INTO oncommit.outbox_archive (id, created_at, sent_at, archived_at, event_id, attempts, crashes,
        schema_version, priority, lane, sink, event_type, aggregate_type, aggregate_id, content_type, headers,
        correlation_id)
    SELECT n, moment, moment, moment, md5(n::text)::uuid, 1, 0, 1, 5, n % 64, 'main', 'order.placed', 'order',
        (n % 10000)::text, 'application/json', '{}', CASE WHEN n % 1000 = 0 THEN (n / 1000)::text END
    FROM generate_series(1, $1::int) AS n,
        LATERAL (
            SELECT date_trunc('day', now(), 'UTC') + n * interval '8 days' / $1::int - interval '1 us'
        ) AS t(moment)
"""


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn)
    await connected.execute(FILL, ROWS)
    await connected.execute("VACUUM ANALYZE oncommit.outbox_archive")
    yield connected
    await connected.close()


async def plan(connection: asyncpg.Connection, name: str, *values: object) -> str:
    """What was done, with the rows that each node read."""
    explain = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {query(name)}"
    return "\n".join(row[0] for row in await connection.fetch(explain, *values))


def list_values(**wanted: object) -> tuple[object, ...]:
    names = ["with_payload", "states", "types", "aggregate_type", "aggregate_id", "key", "topic", "sink", "correlation",
             "until", "since", "after_time", "after_id", "after_event", "limit"]  # fmt: skip
    return tuple(({"with_payload": False, "limit": 50} | wanted).get(name) for name in names)


def reads_of_the_archive(plan: str) -> list[str]:
    return [line.strip() for line in plan.splitlines() if "Scan" in line and "outbox_archive" in line]


@pytest.mark.timeout(180)
async def test_plans(connection: asyncpg.Connection) -> None:
    known = UUID(await connection.fetchval("SELECT md5('77')"))
    shown = await plan(connection, "events/show", known)
    assert "Seq Scan on outbox_archive" not in shown
    assert len([line for line in reads_of_the_archive(shown) if "event_id_idx" in line]) == 8  # one a day

    history = await plan(connection, "events/by_aggregate", False, "order", "42", None, None, None, 50)
    assert "Seq Scan on outbox_archive" not in history
    assert "aggregate_id_idx" in history

    talk = await plan(connection, "events/newest", *list_values(correlation="42"))
    assert "Seq Scan on outbox_archive" not in talk
    assert "correlation_id_idx" in talk

    # The newest of the last ten minutes: earlier days are ruled out, and of this one only the last blocks are read.
    end = await connection.fetchval("SELECT max(archived_at) FROM oncommit.outbox_archive")
    recent = await plan(connection, "events/newest", *list_values(since=end - timedelta(minutes=10), states=["sent"]))
    heaps = [line for line in reads_of_the_archive(recent) if "Bitmap Index Scan" not in line]
    assert len(heaps) == 1, heaps
    assert "Bitmap Heap Scan" in heaps[0]

    # States that the archive cannot have leave it unread.
    stuck = await plan(connection, "events/newest", *list_values(states=["failed", "dead_letter"]))
    assert reads_of_the_archive(stuck) == []
