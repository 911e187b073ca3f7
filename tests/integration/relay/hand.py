"""A relay's reader that goes by hand, statement by statement, on real transactions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from oncommit.relay.lane import Lane
from oncommit.relay.limits import Limits
from oncommit.relay.reader import Reader
from oncommit.relay.store import Store
from tests.integration.relay.tools import emptied, register

Deed = Callable[[], Awaitable[Any]]


class Hand:
    """Reads and lets everything go at once that may go."""

    def __init__(self, connection: asyncpg.Connection, store: Store, lanes: dict[int, Lane]) -> None:
        self.connection = connection
        self.store = store
        self.lanes = lanes
        self.reader = Reader(store, Limits(rows=5000, budget=10**6, guess=100))
        self.sent: list[str] = []

    async def round(self) -> None:
        batch = await self.reader.read(self.lanes, time.monotonic())
        for number, lane in self.lanes.items():
            rows = sorted((row for row in batch.rows if row.lane == number) if batch else (), key=lambda row: row.place)
            if batch and rows and lane.order.rewinds != batch.rewinds[number]:  # O-rewind
                lane.order.rewind(rows[0].place)
                continue
            for row in lane.order.admit(lane.fresh(rows), time.monotonic()).go:
                self.sent.append(str(row.id))
                await self.connection.execute("DELETE FROM oncommit.outbox WHERE id = $1", row.place)
                lane.order.passed(row)

    def once(self, deed: Deed, *, before: str = "", after: str = "") -> None:
        """Do this before, or after, the next time that the reader comes to this statement."""
        name = before or after
        plain: Any = getattr(self.store, name)

        async def beside(*args: Any, **named: Any) -> Any:
            setattr(self.store, name, plain)
            if before:
                await deed()
            result = await plain(*args, **named)
            if after:
                await deed()
            return result

        setattr(self.store, name, beside)


@asynccontextmanager
async def at_hand(dsn: str) -> AsyncIterator[Hand]:
    """With the 64 normal lanes of an empty outbox."""
    await emptied(dsn)
    connection = await asyncpg.connect(dsn)
    store, _ = await register(connection)
    await store.make_lanes()
    taken = await store.take_lanes(10.0, 64, urgent=False)
    lanes = {row.lane: Lane(row.lane, row.epoch, row.rescan, most_blocked=100) for row in taken}
    yield Hand(connection, store, lanes)
    await connection.close()


async def neighbours(connection: Any) -> tuple[str, str]:
    """Two keys that share a lane."""
    rows = await connection.fetch(
        "SELECT array_agg(key ORDER BY key) AS keys FROM (SELECT 'k' || n AS key FROM generate_series(1, 300) n) x"
        " GROUP BY hashtext(key) & 63 HAVING count(*) > 1 LIMIT 1"
    )
    return rows[0]["keys"][0], rows[0]["keys"][1]
