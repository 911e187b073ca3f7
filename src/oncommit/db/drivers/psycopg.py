"""psycopg 3: ``Connection`` and ``AsyncConnection``.

A cursor of our own, with plain tuples and ``%s``: the connection's factories of rows and cursors are the application's
business (a ``RawCursor`` would not know our parameters).
"""

from __future__ import annotations

from typing import Any, TypeVar

from psycopg import AsyncCursor, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from oncommit.db import calls
from oncommit.db.calls import Call, Rows, Work
from oncommit.db.failures import translate
from oncommit.db.sql import percent_style
from oncommit.errors import ConnectionClosed, NotInTransaction, TransactionFailed

T = TypeVar("T")


def check(connection: Any) -> None:
    """Without autocommit the first statement begins a transaction, so an idle connection is fine then."""
    if connection.closed:
        msg = "the psycopg connection is closed"
        raise ConnectionClosed(msg)
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        msg = "the transaction failed before this add; roll it back, then try again"
        raise TransactionFailed(msg)
    if connection.autocommit and status != TransactionStatus.INTRANS:
        msg = "this psycopg connection is in autocommit: add the event inside `with connection.transaction():`"
        raise NotInTransaction(msg)


def run(connection: Any, work: Work[T], schema: str) -> T:
    """Do the work on a ``Connection``."""

    def execute(call: Call) -> Rows:
        try:
            with Cursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(percent_style(call.sql), call.parameters)
                rows: Rows = cursor.fetchall() if call.returns else ()
        except Exception as error:
            if known := translate(error, schema):
                raise known from error
            raise
        return rows

    return calls.run(work, execute)


async def run_async(connection: Any, work: Work[T], schema: str) -> T:
    """Do the work on an ``AsyncConnection``."""

    async def execute(call: Call) -> Rows:
        try:
            async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(percent_style(call.sql), call.parameters)
                rows: Rows = await cursor.fetchall() if call.returns else ()
        except Exception as error:
            if known := translate(error, schema):
                raise known from error
            raise
        return rows

    return await calls.run_async(work, execute)
