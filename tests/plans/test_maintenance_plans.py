"""What the maintenance reads where much waits: entries of an index, not the table."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from oncommit.db.sql import query
from oncommit.testing.servers import Database

WAITING = 200_000
FILL = """
    INSERT INTO oncommit.outbox_delayed (event_type, key, not_before, payload)
    SELECT 't', (n % 1000)::text, now() + n * interval '1 s', '{"n": 1}' FROM generate_series(1, $1::int) AS n
"""


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn, statement_cache_size=0)
    await connected.execute(FILL, WAITING)
    yield connected
    await connected.close()


async def plan(connection: asyncpg.Connection, name: str, *values: object) -> str:
    explain = f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) {query(name)}"
    return "\n".join(row[0] for row in await connection.fetch(explain, *values))


def pages(plan: str) -> int:
    """What the whole statement read, hit or not."""
    buffers = next(line for line in plan.splitlines() if "Buffers: shared" in line)
    return sum(int(count) for count in re.findall(r"(?:hit|read)=(\d+)", buffers))


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_look_at_what_waits_reads_one_entry(connection: asyncpg.Connection, *, analyzed: bool) -> None:
    if analyzed:
        await connection.execute("VACUUM ANALYZE oncommit.outbox_delayed")
    look = await plan(connection, "maintenance/next_due", None, [])
    assert "Index" in look
    assert "outbox_delayed_due" in look
    assert "Sort" not in look
    assert pages(look) < 10, look


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_move_reads_what_it_moves(connection: asyncpg.Connection, *, analyzed: bool) -> None:
    await connection.execute("UPDATE oncommit.outbox_delayed SET not_before = not_before - interval '10 h'")
    if analyzed:
        await connection.execute("VACUUM ANALYZE oncommit.outbox_delayed")
    transaction = connection.transaction()
    await transaction.start()
    move = await plan(connection, "maintenance/move_due", None, [], 100, 8_000_000)
    await transaction.rollback()
    assert "Seq Scan on outbox_delayed" not in move
    assert "Index Scan using outbox_delayed_due" in move
    # The first look meets what the UPDATE above has left dead; what is moved is found by index and written.
    assert pages(move) < 10_000, move
    assert re.search(r"Delete on outbox_delayed d.*rows=100", move) or "actual rows=100" in move


async def test_expiry_reads_what_is_over(any_database: Database) -> None:
    connection = await asyncpg.connect(any_database.dsn, statement_cache_size=0)
    await connection.execute(
        "INSERT INTO oncommit.dead_letter (source, origin, message_id, reason, died_at, expires_at, error_trace)"
        " SELECT 'outbox', 'main', n::text, 'exhausted', t, t + interval '14 days', repeat(md5(n::text), 20)"
        " FROM generate_series(1, 20000) n, LATERAL (SELECT now() - interval '15 days' + n * interval '1 minute') s(t)"
    )
    await connection.execute("VACUUM ANALYZE oncommit.dead_letter")
    total = await connection.fetchval("SELECT pg_relation_size('oncommit.dead_letter') / 8192")
    soon = await plan(connection, "maintenance/expiring_dead_letters", 14, 2)
    assert "dead_letter_died_at" in soon
    assert pages(soon) < total / 3, soon
    async with connection.transaction():
        over = await plan(connection, "maintenance/expire_dead_letters", 14, 100)
    assert "Index Scan using dead_letter_died_at" in over
    assert "Seq Scan on dead_letter" not in over
    await connection.close()


async def test_a_batch_of_a_replay_reads_its_window(any_database: Database) -> None:
    connection = await asyncpg.connect(any_database.dsn, statement_cache_size=0)
    await connection.execute(
        "INSERT INTO oncommit.outbox_archive (id, created_at, sent_at, archived_at, event_id, attempts, crashes,"
        " schema_version, priority, lane, sink, event_type, content_type, headers, payload)"
        " SELECT n, m, m, m, gen_random_uuid(), 0, 0, 1, 5, 0, 'main', 't', 'application/json', '{}',"
        " json_build_object('x', repeat('y', 300)) FROM generate_series(1, 100000) n,"
        " LATERAL (SELECT date_trunc('day', now(), 'UTC') + n * interval '10 ms') t(m)"
    )
    await connection.execute("VACUUM ANALYZE oncommit.outbox_archive")
    start = await connection.fetchval("SELECT date_trunc('day', now(), 'UTC') + interval '500 s'")
    batch = await plan(
        connection, "replay/publish", start, start + timedelta(seconds=1), None, None, None, None, None, start, -1,
        1000, 8_000_000, None,
    )  # fmt: skip
    scans = [line for line in batch.splitlines() if "Scan on outbox_archive" in line]
    assert not any("Seq Scan" in line for line in scans), batch
    assert len([line for line in scans if "Heap" in line]) == 1, batch  # the other days are ruled out
    total = await connection.fetchval("SELECT pg_relation_size('oncommit.outbox_archive_' || to_char($1 AT TIME ZONE"
                                      " 'UTC', 'YYYYMMDD')) / 8192", start)  # fmt: skip
    heap = batch[batch.index("Bitmap Heap Scan") :]
    assert pages(heap) < total / 10, batch
    await connection.close()


async def test_what_was_moved_is_not_read_again_while_vacuum_is_held_back(
    any_database: Database, connection: asyncpg.Connection
) -> None:
    """Somebody's old transaction: without a place to begin, each look would wade through all that was moved."""
    holding = await asyncpg.connect(any_database.dsn)
    transaction = holding.transaction(isolation="repeatable_read")
    await transaction.start()
    await holding.fetchval("SELECT count(*) FROM oncommit.setting")
    last = await connection.fetchval(
        "WITH gone AS (DELETE FROM oncommit.outbox_delayed WHERE not_before < now() + interval '50000 s'"
        " RETURNING not_before) SELECT max(not_before) FROM gone"
    )
    assert pages(await plan(connection, "maintenance/next_due", None, [])) > 500
    assert pages(await plan(connection, "maintenance/next_due", last, [])) < 10
    await transaction.rollback()
    await holding.close()
