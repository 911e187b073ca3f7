"""SQLAlchemy 2: ``Session``, ``AsyncSession``, ``Connection``, ``AsyncConnection``, over asyncpg and psycopg.

Everything runs through the sync face: the async classes lend it to us inside their greenlet (``run_sync``), which is
one switch for the whole piece of work.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, ResourceClosedError, UnboundExecutionError

from oncommit.db import calls
from oncommit.db.calls import Call, Rows, Work
from oncommit.db.drivers.sqlalchemy_hooks import awaits, on_commit, tells, unscoped
from oncommit.db.failures import translate
from oncommit.db.sql import percent_style
from oncommit.errors import ConnectionClosed, NotInTransaction, TransactionFailed, UnsupportedConnection

T = TypeVar("T")

__all__ = ["awaits", "connection_of", "on_commit", "run", "run_async", "tells"]

_STYLES: Final = {"asyncpg": False, "psycopg": True, "psycopg_async": True}


def connection_of(handle: Any) -> Connection:
    """The connection behind a session or a connection, inside a transaction that it may have to begin first."""
    if isinstance(handle, Connection):
        if handle.closed:
            msg = "the SQLAlchemy connection is closed"
            raise ConnectionClosed(msg)
        if handle.in_transaction() and not handle.get_transaction().is_active:  # type: ignore[union-attr]  # just asked
            msg = "the SQLAlchemy transaction was rolled back or failed; leave its block, then begin another"
            raise TransactionFailed(msg)
        connection = handle
    else:
        connection = _of_session(handle)
    if connection.dialect.driver not in _STYLES:
        msg = f"SQLAlchemy over {connection.dialect.driver!r}: use postgresql+asyncpg or postgresql+psycopg"
        raise UnsupportedConnection(msg)
    if _in_autocommit(connection):
        msg = (
            "this SQLAlchemy connection is in AUTOCOMMIT, so there is no transaction to commit the event with: "
            "use an engine without isolation_level='AUTOCOMMIT'"
        )
        raise NotInTransaction(msg)
    return connection


def _of_session(session: Any) -> Connection:
    try:
        connection: Connection = session.connection()
    except PendingRollbackError as error:
        msg = "the session's transaction failed before this add; call rollback(), then try again"
        raise TransactionFailed(msg) from error
    except UnboundExecutionError as error:
        msg = "the session has several databases: pass session.connection(bind_arguments=…) of the right one"
        raise UnsupportedConnection(msg) from error
    except ResourceClosedError as error:
        msg = "the session's transaction is over; begin another"
        raise TransactionFailed(msg) from error
    except InvalidRequestError as error:
        if "permanently closed" in str(error):
            msg = "the session is closed for good"
            raise ConnectionClosed(msg) from error
        msg = f"the session cannot take an event now: {error}"
        raise TransactionFailed(msg) from error
    return connection


def _in_autocommit(connection: Connection) -> bool:
    """Asks the driver's connection, which both our dialects let us do without a trip to the server."""
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def run(handle: Any, work: Work[T], schema: str) -> T:
    """Do the work on a ``Session`` or ``Connection``."""
    connection = connection_of(handle)
    percent = _STYLES[connection.dialect.driver]

    def execute(call: Call) -> Rows:
        sql = percent_style(call.sql) if percent else call.sql
        try:
            result = connection.exec_driver_sql(sql, tuple(call.parameters))
            rows: Rows = result.fetchall() if call.returns else ()
        except InvalidRequestError as error:  # SQLAlchemy's own refusal; nothing was sent
            msg = f"the SQLAlchemy transaction cannot take an event now: {error}"
            raise TransactionFailed(msg) from error
        except Exception as error:
            if known := translate(error, schema):
                raise known from error
            raise
        return rows

    return calls.run(work, execute)


async def run_async(handle: Any, work: Work[T], schema: str) -> T:
    """Do the work on an ``AsyncSession`` or ``AsyncConnection``."""
    handle = unscoped(handle)
    if getattr(handle, "closed", False) is True:
        msg = "the SQLAlchemy connection is closed"
        raise ConnectionClosed(msg)
    result: T = await handle.run_sync(run, work, schema)
    return result
