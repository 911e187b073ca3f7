"""asyncpg: ``Connection``, and what a pool hands out."""

from __future__ import annotations

from typing import Any, TypeVar

from asyncpg import InterfaceError

from oncommit.db.calls import Call, Rows, Work, run_async
from oncommit.db.failures import translate
from oncommit.errors import ConnectionClosed, NotInTransaction

T = TypeVar("T")


def check(connection: Any) -> None:
    """A pool takes its connection back at the end of the block, or when it dies."""
    try:
        closed = connection.is_closed()
    except InterfaceError as error:
        msg = "the asyncpg connection has gone back to its pool: add the event inside `async with pool.acquire() as …:`"
        raise ConnectionClosed(msg) from error
    if closed:
        msg = "the asyncpg connection is closed"
        raise ConnectionClosed(msg)
    if not connection.is_in_transaction():
        msg = "no transaction is open: add the event inside `async with connection.transaction():`"
        raise NotInTransaction(msg)


async def run(connection: Any, work: Work[T], schema: str) -> T:
    """Do the work on this connection."""

    async def execute(call: Call) -> Rows:
        rows: Rows = ()
        try:
            if call.returns:
                rows = await connection.fetch(call.sql, *call.parameters)
            else:
                await connection.execute(call.sql, *call.parameters)
        except Exception as error:
            if known := translate(error, schema):
                raise known from error
            raise
        return rows

    return await run_async(work, execute)
