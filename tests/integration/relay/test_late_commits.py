"""The interleaving of the decision on sweeps (docs/adr), exactly, on real transactions; the reader goes by hand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from oncommit.relay.lane import Lane
from oncommit.relay.late import LateCommits
from oncommit.relay.limits import Limits
from oncommit.relay.reader import Reader
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.tools import add, emptied, register


class Hand:
    """Reads and lets everything go at once that may go."""

    def __init__(self, connection: asyncpg.Connection, reader: Reader, lanes: dict[int, Lane]) -> None:
        self.connection = connection
        self.reader = reader
        self.lanes = lanes
        self.sent: list[str] = []

    async def round(self) -> None:
        batch = await self.reader.read(self.lanes, time.monotonic())
        for number, lane in self.lanes.items():
            rows = sorted((row for row in batch.rows if row.lane == number) if batch else (), key=lambda row: row.place)
            for row in lane.order.admit(lane.fresh(rows), time.monotonic()).go:
                self.sent.append(str(row.id))
                await self.connection.execute("DELETE FROM oncommit.outbox WHERE id = $1", row.place)
                lane.order.passed(row)


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def hand(shared: Database) -> AsyncIterator[Hand]:
    await emptied(shared.dsn)
    connection = await asyncpg.connect(shared.dsn)
    store, _ = await register(connection)
    await store.make_lanes()
    taken = await store.take_lanes(10.0, 64, urgent=False)
    lanes = {row.lane: Lane(row.lane, row.epoch, row.rescan, most_blocked=100) for row in taken}
    yield Hand(connection, Reader(store, Limits(rows=5000, budget=10**6, guess=100)), lanes)
    await connection.close()


async def neighbours(connection: Any) -> tuple[str, str]:
    """Two keys that share a lane."""
    rows = await connection.fetch(
        "SELECT array_agg(key ORDER BY key) AS keys FROM (SELECT 'k' || n AS key FROM generate_series(1, 300) n) x"
        " GROUP BY hashtext(key) & 63 HAVING count(*) > 1 LIMIT 1"
    )
    return rows[0]["keys"][0], rows[0]["keys"][1]


async def interleave(hand: Hand, database: Database, how: str = "plain") -> list[str]:
    """K draws, L draws and commits, is fetched; K commits, and its next writer, who waited: the ids of K, in order."""
    one, two = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    try:
        key, other = await neighbours(two)
        await one.execute("BEGIN")
        if how == "savepoint":
            await one.execute("SAVEPOINT inner_one")
        first = await add(one, key)
        if how == "savepoint":
            await one.execute("RELEASE inner_one")
        if how == "prepared before":
            await one.execute("PREPARE TRANSACTION 'late'")
        (passed,) = await add(two, other)
        await hand.round()
        assert hand.sent == [passed]
        if how == "prepared after":
            await one.execute("PREPARE TRANSACTION 'late'")
            await hand.round()
        await one.execute("COMMIT PREPARED 'late'" if how.startswith("prepared") else "COMMIT")
        second = await add(two, key)
        for _ in range(3):
            await hand.round()
        return [*first, *second]
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("how", ["plain", "savepoint", "prepared before", "prepared after"])
async def test_a_late_commit_goes_before_what_was_written_after_it(hand: Hand, shared: Database, how: str) -> None:
    expected = await interleave(hand, shared, how)
    assert hand.sent[1:] == expected


async def test_mutation_without_the_sweep_it_is_lost(
    hand: Hand, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LateCommits.look

    def look(self: LateCommits, last_value: int, holders: Any) -> list[tuple[int, int]]:
        plain(self, last_value, holders)
        return []

    monkeypatch.setattr(LateCommits, "look", look)
    first, second = await interleave(hand, shared)
    assert hand.sent[1:] == [second]
    assert first not in hand.sent


async def test_mutation_without_the_holders_it_is_lost(
    hand: Hand, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LateCommits.look
    monkeypatch.setattr(LateCommits, "look", lambda self, last_value, _holders: plain(self, last_value, []))
    assert hand.sent[1:] != await interleave(hand, shared)


async def test_a_writer_that_idles_for_long_costs_one_region(hand: Hand, shared: Database) -> None:
    idle, busy = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await idle.execute("BEGIN")
    await add(idle, "idle")
    for _ in range(20):
        await add(busy, "busy")
        await hand.round()
    assert len(hand.sent) == 20
    assert len(hand.reader._late._regions) <= 2
    await idle.execute("COMMIT")
    await hand.round()
    assert len(hand.sent) == 21
    await hand.round()
    assert hand.reader._late.is_quiet
    await idle.close()
    await busy.close()


async def test_a_sequence_that_falls_makes_it_start_anew(hand: Hand, shared: Database) -> None:
    """A failover or a restore: what is there now is read, wherever the floors were."""
    await add(hand.connection, "k", 5)
    await hand.round()
    assert len(hand.sent) == 5
    await hand.connection.execute("ALTER SEQUENCE oncommit.outbox_id_seq RESTART WITH 2")
    (again,) = await add(hand.connection, "k")
    await hand.round()
    assert hand.sent[5:] == [again]
    assert UUID(again)
