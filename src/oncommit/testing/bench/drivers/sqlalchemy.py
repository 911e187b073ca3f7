"""SQLAlchemy 2: Core statements through its four faces, a fresh session or connection of the pool per transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Literal

import asyncpg
import psycopg
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    create_engine,
    func,
    insert,
    update,
)
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from oncommit.testing.bench.drivers.psycopg import conninfo
from oncommit.testing.bench.loads import Adds, AsyncTransaction, Transaction
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import Order

Face = Literal["session", "connection"]

_METADATA: Final = MetaData()
_ACCOUNT: Final = Table(
    "bench_account",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("balance", BigInteger, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),
)
_ORDER: Final = Table(
    "bench_order",
    _METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("account", Integer, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
)
# Made once, with the primary key not asked back: SQLAlchemy's quickest way to say both.
_INSERT: Final = insert(_ORDER).inline()
_UPDATE: Final = (
    update(_ACCOUNT)
    .where(_ACCOUNT.c.id == bindparam("account"))
    .values(balance=_ACCOUNT.c.balance + bindparam("cents"), changed_at=func.now())
)


@asynccontextmanager
async def writers_async(
    place: Place, count: int, *, dialect: Literal["asyncpg", "psycopg"], face: Face
) -> AsyncIterator[Sequence[AsyncTransaction]]:
    """Writers on AsyncSession or AsyncConnection."""
    connect = _connect_asyncpg if dialect == "asyncpg" else _connect_psycopg_async
    engine = create_async_engine(
        f"postgresql+{dialect}://", async_creator=partial(connect, place), pool_size=count, max_overflow=0
    )
    begin = async_sessionmaker(engine).begin if face == "session" else engine.begin
    try:
        yield [partial(_transaction_async, begin)] * count
    finally:
        await engine.dispose()


async def _transaction_async(begin: Any, order: Order, adds: Adds | None) -> None:
    async with begin() as handle:
        await handle.execute(_INSERT, {"account": order.account, "cents": order.cents, "note": order.note})
        await handle.execute(_UPDATE, {"account": order.account, "cents": order.cents})
        if adds is not None:
            await adds.add(handle, order.event())


@contextmanager
def writers(place: Place, count: int, *, face: Face) -> Iterator[Sequence[Transaction]]:
    """Writers on Session or Connection, over psycopg."""
    engine = create_engine(
        "postgresql+psycopg://", creator=partial(psycopg.connect, conninfo(place)), pool_size=count, max_overflow=0
    )
    begin = sessionmaker(engine).begin if face == "session" else engine.begin
    try:
        yield [partial(_transaction, begin)] * count
    finally:
        engine.dispose()


def _transaction(begin: Any, order: Order, adds: Adds | None) -> None:
    with begin() as handle:
        handle.execute(_INSERT, {"account": order.account, "cents": order.cents, "note": order.note})
        handle.execute(_UPDATE, {"account": order.account, "cents": order.cents})
        if adds is not None:
            adds.add(handle, order.event())


async def _connect_asyncpg(place: Place) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})


async def _connect_psycopg_async(place: Place) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(conninfo(place))
