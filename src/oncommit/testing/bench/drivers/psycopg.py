"""psycopg 3: connections of a pool; the first statement begins the transaction, `commit` ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from oncommit.db.sql import percent_style
from oncommit.testing.bench.loads import Adds, AsyncTransaction, Transaction
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import INSERT_ORDER, Order

_INSERT: Final = percent_style(INSERT_ORDER)
_UPDATE: Final = "UPDATE bench_account SET balance = balance + %s, changed_at = now() WHERE id = %s"


def conninfo(place: Place) -> str:
    """The place as libpq reads it, with its schema on the path."""
    return make_conninfo(place.dsn, options=f"-c search_path={place.schema}")


@contextmanager
def writers(place: Place, count: int) -> Iterator[Sequence[Transaction]]:
    """One pooled connection a writer."""
    with ConnectionPool(conninfo(place), min_size=count, max_size=count) as pool, ExitStack() as held:
        yield [partial(_transaction, held.enter_context(pool.connection())) for _ in range(count)]


def _transaction(connection: Any, order: Order, adds: Adds | None) -> None:
    connection.execute(_INSERT, (order.account, order.cents, order.note))
    connection.execute(_UPDATE, (order.cents, order.account))
    if adds is not None:
        adds.add(connection, order.event())
    connection.commit()


@asynccontextmanager
async def writers_async(place: Place, count: int) -> AsyncIterator[Sequence[AsyncTransaction]]:
    """One pooled connection a writer."""
    async with (
        AsyncConnectionPool(conninfo(place), min_size=count, max_size=count, open=False) as pool,
        AsyncExitStack() as held,
    ):
        yield [partial(_transaction_async, await held.enter_async_context(pool.connection())) for _ in range(count)]


async def _transaction_async(connection: Any, order: Order, adds: Adds | None) -> None:
    await connection.execute(_INSERT, (order.account, order.cents, order.note))
    await connection.execute(_UPDATE, (order.cents, order.account))
    if adds is not None:
        await adds.add(connection, order.event())
    await connection.commit()
