"""asyncpg: connections of a pool, a transaction block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from oncommit.testing.bench.loads import Adds, AsyncTransaction
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import INSERT_ORDER, UPDATE_ACCOUNT, Order


@asynccontextmanager
async def writers(place: Place, count: int) -> AsyncIterator[Sequence[AsyncTransaction]]:
    """One pooled connection a writer."""
    async with (
        asyncpg.create_pool(
            place.dsn, min_size=count, max_size=count, server_settings={"search_path": place.schema}
        ) as pool,
        AsyncExitStack() as held,
    ):
        yield [partial(_transaction, await held.enter_async_context(pool.acquire())) for _ in range(count)]


async def _transaction(connection: Any, order: Order, adds: Adds | None) -> None:
    async with connection.transaction():
        await connection.execute(INSERT_ORDER, order.account, order.cents, order.note)
        await connection.execute(UPDATE_ACCOUNT, order.account, order.cents)
        if adds is not None:
            await adds.add(connection, order.event())
