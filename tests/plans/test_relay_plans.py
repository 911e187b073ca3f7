"""How the relay's statements find their rows: a million waiting, a million delayed, and a snapshot held elsewhere.

What is asserted is what a statement touches, in pages: it is the same on every machine. An old transaction somewhere
keeps vacuum from the rows that were sent; their index entries lie below the floors, and nobody may wade through them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.db.sql import query
from oncommit.testing.servers import AnyServer, Databases
from oncommit.testing.servers.sql import run_async

WAITING = 1_000_000
SENT = 300_000
"""Of those that waited; dead to everybody but the old snapshot."""
LANES = list(range(64))
FILL = """
    INSERT INTO oncommit.outbox (event_id, lane, event_type, key, payload)
    SELECT lpad(to_hex(n), 32, '0')::uuid, oncommit.lane_of(5::smallint, k, NULL, NULL, NULL), 'order.placed', k,
           '{"total": 42, "currency": "EUR"}'
    FROM generate_series(1, $1::int) AS n, LATERAL (VALUES ('k' || n % 10000)) AS key (k)
    ORDER BY n
"""
FILL_DELAYED = """
    INSERT INTO oncommit.outbox_delayed (event_id, not_before, event_type, key)
    SELECT lpad(to_hex(n), 32, '0')::uuid, now() + n * interval '1 second', 'order.due', 'k' || n % 10000
    FROM generate_series(1, $1::int) AS n
"""


class Full(NamedTuple):
    """A database with all that, and a relay that owns every lane."""

    dsn: str
    relay: UUID
    epochs: list[int]


async def _fill(dsn: str) -> Full:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET synchronous_commit = off; SET session_replication_role = replica")
        await connection.execute(FILL, WAITING)
        await connection.execute(FILL_DELAYED, WAITING)
        await connection.execute("VACUUM ANALYZE oncommit.outbox, oncommit.outbox_delayed")
        relay = uuid4()
        await connection.execute(
            "INSERT INTO oncommit.outbox_relay (relay_id, name, sinks, version) VALUES ($1, 'r', '{main}', 'x')", relay
        )
        await connection.fetch(query("relay/make_lanes"), "main")
        await connection.execute("UPDATE oncommit.outbox_lane SET owner = $1", relay)
        epochs = await connection.fetch("SELECT epoch FROM oncommit.outbox_lane WHERE lane < 64 ORDER BY lane")
        return Full(dsn, relay, [epoch for (epoch,) in epochs])
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def full(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Full]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield run_async(lambda: _fill(fresh.dsn))


@pytest.fixture
async def relay(full: Full) -> AsyncIterator[Explained]:
    connection = await asyncpg.connect(full.dsn, statement_cache_size=0)
    yield Explained(connection, full)
    await connection.close()


class Plan(NamedTuple):
    text: str
    pages: int

    def uses(self, index: str) -> bool:
        return f"using {index}" in self.text

    @property
    def whole_tables(self) -> set[str]:
        """Read from end to end; the lanes are so few that nothing else would be as fast."""
        return set(re.findall(r"Seq Scan on (\w+)", self.text)) - {"outbox_lane", "outbox_claim"}


class Explained:
    """The relay's statements as they were run, each rolled back."""

    def __init__(self, connection: asyncpg.Connection, full: Full) -> None:
        self.connection = connection
        self._full = full

    async def _explain(self, name: str, *values: Any) -> Plan:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            rows = await self.connection.fetch(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {query(f'relay/{name}')}", *values
            )
        finally:
            await transaction.rollback()
        text = "\n".join(row[0] for row in rows)
        first = re.search(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?", text)
        assert first, text
        return Plan(text, sum(int(found or 0) for found in first.groups()))

    async def fetch(self, floor: int, most: int = 8) -> Plan:
        full, count = self._full, len(LANES)
        return await self._explain(
            "fetch", LANES, full.epochs, [floor] * count, [2**40] * count, [most] * count, "main", full.relay, "main",
            2**23, 2**23, full.relay, "main", 1, False,
        )  # fmt: skip

    async def sweep(self, low: int, high: int) -> Plan:
        full, count = self._full, len(LANES)
        return await self._explain(
            "sweep", LANES, full.epochs, [low] * count, [high] * count, "main", full.relay, "main", 1000
        )

    async def some(self, count: int, above: int) -> tuple[list[int], list[int]]:
        """Lanes and ids of live rows."""
        rows = await self.connection.fetch(
            "SELECT lane, id FROM oncommit.outbox WHERE id > $1 AND id <= $1 + $2", above, count
        )
        return [row["lane"] for row in rows], [row["id"] for row in rows]

    async def fetch_ids(self, lanes: list[int], ids: list[int]) -> Plan:
        full = self._full
        return await self._explain(
            "fetch_ids", LANES, full.epochs, "main", full.relay, lanes, ids, "main", 2**23, 2**23, full.relay, "main", 1
        )

    async def settle(self, lanes: list[int], ids: list[int]) -> Plan:
        full = self._full
        return await self._explain(
            "settle", LANES, full.epochs, "main", full.relay, lanes, ids, [0.0] * len(ids), "main", True, full.relay,
            "main", 1,
        )  # fmt: skip

    async def fail(self, lanes: list[int], ids: list[int]) -> Plan:
        full, one = self._full, [1] * len(ids)
        return await self._explain(
            "fail", LANES, full.epochs, "main", full.relay, lanes, ids, [0] * len(ids), one, ["x"] * len(ids), "main"
        )

    async def bury(self, lanes: list[int], ids: list[int]) -> Plan:
        full, words = self._full, ["x"] * len(ids)
        return await self._explain(
            "bury", LANES, full.epochs, "main", full.relay, lanes, ids, ["permanent"] * len(ids), words, words, words,
            "main", 60,
        )  # fmt: skip


def by_index(plan: Plan) -> None:
    assert plan.uses("outbox_scan"), plan.text
    assert not plan.whole_tables, plan.text
    assert "outbox_delayed" not in plan.text, "a delayed event is nothing to the relay until it is moved"


@pytest.mark.timeout(300)
async def test_fetch_touches_what_it_returns(relay: Explained) -> None:
    few, many = await relay.fetch(0, most=8), await relay.fetch(0, most=64)
    by_index(few)
    by_index(many)
    assert few.pages < 64 * (8 + 16), few.text  # the rows, and a descent and a claim for each lane
    assert many.pages < 64 * (64 + 16), many.text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("statement", ["fetch_ids", "settle", "fail", "bury"])
@pytest.mark.parametrize("count", [10, 1000])
async def test_rows_that_are_named_are_found_one_by_one(relay: Explained, statement: str, count: int) -> None:
    lanes, ids = await relay.some(count, SENT + 1000)
    assert len(ids) == count
    plan = await getattr(relay, statement)(lanes, ids)
    by_index(plan)
    assert plan.pages < 300 + 32 * count, plan.text  # locks of lanes, and for a row: two trees here, three there


@pytest.mark.timeout(300)
async def test_a_sweep_touches_its_stretch(relay: Explained) -> None:
    plan = await relay.sweep(SENT, SENT + 100)
    by_index(plan)
    assert plan.pages < 64 * 5 + 100, plan.text


@pytest.mark.timeout(300)
@pytest.mark.rule("F-floor")
async def test_an_old_snapshot_elsewhere_costs_nothing(relay: Explained, full: Full) -> None:
    """The last one: it takes rows away."""
    fresh = await relay.fetch(SENT)
    old = await asyncpg.connect(full.dsn)
    try:
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM oncommit.outbox_lane")
        await relay.connection.execute("DELETE FROM oncommit.outbox WHERE id <= $1", SENT)
        for _ in range(3):
            plan = await relay.fetch(SENT)
            by_index(plan)
            assert plan.pages <= fresh.pages + 64, plan.text
        lanes, ids = await relay.some(100, SENT)
        for plan in (
            await relay.fetch_ids(lanes, ids), await relay.settle(lanes, ids), await relay.sweep(SENT, SENT + 100)
        ):  # fmt: skip
            by_index(plan)
            assert plan.pages < 300 + 32 * len(ids), plan.text
        # What the floor is for: without it each of these reads would go through all that was sent.
        assert (await relay.fetch(0)).pages > 20 * fresh.pages
    finally:
        await old.close()
