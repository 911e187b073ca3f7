"""Django on psycopg 3: ``django.db.connection`` or one of ``django.db.connections``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import transaction

from oncommit.db import calls
from oncommit.db.calls import Call, Rows, Work
from oncommit.db.failures import translate
from oncommit.db.sql import percent_style
from oncommit.errors import ConnectionClosed, NotInTransaction, TransactionFailed, UnsupportedConnection

T = TypeVar("T")


def check(connection: Any) -> None:
    """An atomic block, or a connection whose autocommit was turned off by hand."""
    if connection.vendor != "postgresql":
        msg = f"Django's {connection.alias!r} is a {connection.vendor} database; oncommit needs PostgreSQL"
        raise UnsupportedConnection(msg)
    if connection.closed_in_transaction:
        msg = f"Django's connection {connection.alias!r} was closed inside its transaction"
        raise ConnectionClosed(msg)
    if connection.needs_rollback:
        msg = "the transaction failed before this add; leave its atomic block, then try again"
        raise TransactionFailed(msg)
    if not connection.in_atomic_block and connection.get_autocommit():
        msg = "no transaction is open: add the event inside `with transaction.atomic():`"
        raise NotInTransaction(msg)


def on_commit(connection: Any, callback: Callable[[], Any]) -> None:
    """Django's own hook: dropped with a transaction or atomic block that is rolled back; a failing one stops no other.

    Django does not count savepoints made by hand (``transaction.savepoint()``): what they roll back is still told of.
    """
    transaction.on_commit(callback, using=connection.alias, robust=True)


def run(connection: Any, work: Work[T], schema: str) -> T:
    """Do the work on this connection."""

    def execute(call: Call) -> Rows:
        try:
            with connection.cursor() as cursor:
                cursor.execute(percent_style(call.sql), list(call.parameters))
                rows: Rows = cursor.fetchall() if call.returns else ()
        except Exception as error:
            if known := translate(error, schema):
                raise known from error
            raise
        return rows

    return calls.run(work, execute)
