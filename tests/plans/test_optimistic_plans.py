"""What the look of a reservation costs an insert, and the sender's statements: by index, whatever lies dead around.

An old snapshot keeps vacuum from what was sent. Its index entries are still there, and an insert that began to look at
zero would wade through all of them; so it begins at ``settled_to``, and where that is far behind it does not look.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.db.sql import query
from oncommit.testing.servers import AnyServer, Databases

SENT = 40_000
FILL = """
    INSERT INTO oncommit.outbox (event_id, lane, event_type, key)
    SELECT lpad(to_hex(n), 32, '0')::uuid, oncommit.lane_of(5::smallint, 'k', NULL, NULL, NULL), 'order.placed', 'k'
    FROM generate_series(1, $1::int) AS n
"""
LANE = "(SELECT oncommit.lane_of(5::smallint, 'k', NULL, NULL, NULL))"


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Any:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def connection(shared: Any) -> AsyncIterator[asyncpg.Connection]:
    """All of one lane was sent, and an old snapshot still sees it."""
    old, connected = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await connected.execute("SET synchronous_commit = on; TRUNCATE oncommit.outbox RESTART IDENTITY")
    await connected.execute(FILL, SENT)
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM oncommit.outbox LIMIT 1")
    await connected.execute("DELETE FROM oncommit.outbox")
    await connected.execute(
        f"INSERT INTO oncommit.outbox_lane (sink, lane) VALUES ('main', {LANE}) ON CONFLICT (sink, lane) DO NOTHING"
    )
    yield connected
    await connected.close()
    await old.close()


def values(key: str = "k") -> list[Any]:
    return [uuid4(), "main", 5, "order.placed", None, None, key, None, "application/json", None, None, None, 1, None,
            "{}", "{}", None]  # fmt: skip


async def explained(connection: asyncpg.Connection, name: str, *parameters: Any) -> tuple[int, str]:
    """Pages that it touched, and its plan. What it wrote is taken back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {query(name)}", *parameters)
    finally:
        await transaction.rollback()
    text = "\n".join(row[0] for row in rows)
    first = re.search(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?", text)
    assert first, text
    return sum(int(found or 0) for found in first.groups()), text


async def settle_to(connection: asyncpg.Connection, value: int) -> None:
    await connection.execute("UPDATE oncommit.outbox_lane SET settled_to = $1", value)


async def test_the_look_begins_at_settled_to(connection: asyncpg.Connection) -> None:
    await settle_to(connection, SENT)
    pages, text = await explained(connection, "optimistic/reserve_one", *values(), 2.0)
    assert "Seq Scan on outbox o" not in text
    assert "outbox_scan" in text
    assert pages < 60, text
    many = [[value] * 20 for value in values("k")]
    many[0] = [uuid4() for _ in range(20)]
    pages, text = await explained(connection, "optimistic/reserve_many", *many, 2.0)
    assert "Seq Scan on outbox o" not in text
    assert pages < 20 * 40, text


async def test_from_zero_it_would_wade_through_all_that_was_sent(connection: asyncpg.Connection) -> None:
    await settle_to(connection, 0)
    pages, text = await explained(connection, "optimistic/reserve_one", *values(), 2.0)
    assert pages > 300, text


async def test_too_far_behind_it_does_not_look(connection: asyncpg.Connection) -> None:
    await settle_to(connection, 0)
    await connection.execute("SELECT setval('oncommit.outbox_id_seq', 60000)")
    pages, text = await explained(connection, "optimistic/reserve_one", *values(), 2.0)
    assert pages < 60, text


async def test_the_sender_finds_its_rows_by_index(connection: asyncpg.Connection) -> None:
    await settle_to(connection, SENT)
    ids: list[UUID] = []
    for _ in range(3):
        row = values(f"k{len(ids)}")
        await connection.fetch(query("optimistic/reserve_one"), *row, 60.0)
        ids.append(row[0])
    places = await connection.fetch("SELECT sink, lane, id FROM oncommit.outbox ORDER BY id")
    sinks, lanes, rows = ([place[column] for place in places] for column in ("sink", "lane", "id"))
    for name, parameters in (
        ("read", [ids]),
        ("hand_back", [sinks, lanes, rows]),
        ("settle", [sinks, lanes, rows, [0.0] * 3, True]),
    ):
        pages, text = await explained(connection, f"optimistic/{name}", *parameters)
        assert "Seq Scan on outbox " not in text, text
        assert pages < 150, text
