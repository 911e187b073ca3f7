"""One class for each kind of connection that an Outbox takes, all with the same blocking face.

A test says what a transaction does; a writer does it the way its driver's users would. The asyncio drivers run in a
loop of the writer's own, so that one test, one Hypothesis strategy and one thread serve all of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import django
import django.conf
import psycopg
import sqlalchemy
from django.db import OperationalError, connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncommit import Outbox


class Writer:
    """A connection, and what one does with a transaction on it."""

    form = ""
    is_async = False
    hooks = False
    """Whether the session itself tells of its commit."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.savepoints: list[Any] = []
        self.connect()

    @property
    def handle(self) -> Any:
        """What is given to ``add``."""
        raise NotImplementedError

    def connect(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        raise NotImplementedError

    def run(self, sql: str, *values: Any) -> list[Any]:
        """A statement of the application, with ``$1`` parameters; its rows."""
        raise NotImplementedError

    def savepoint(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def rollback_to(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def rollback(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Whatever state it is in."""
        raise NotImplementedError

    def add(self, outbox: Outbox, *events: Any, **options: Any) -> tuple[UUID, ...]:
        added: tuple[UUID, ...] = self.wait(outbox.add(self.handle, *events, **options))
        return added

    def wait(self, outcome: Any) -> Any:
        """What came of it; awaited where that is due."""
        return outcome

    def pid(self) -> int:
        """The process on the server that serves us."""
        return int(self.run("SELECT pg_catalog.pg_backend_pid()")[0][0])

    def reconnect(self) -> None:
        """After a crash."""
        self.close()
        self.savepoints.clear()
        self.connect()


class AsyncWriter(Writer):
    is_async = True

    def __init__(self, dsn: str) -> None:
        self.loop = asyncio.new_event_loop()
        super().__init__(dsn)

    def wait(self, outcome: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(outcome)  # type: ignore[arg-type]

    def end_loop(self) -> None:
        """One more turn, so that transports that were closed are gone before their loop is."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def __del__(self) -> None:
        if not self.loop.is_closed():
            self.loop.close()


def percent(sql: str) -> str:
    return re.sub(r"\$\d+", "%s", sql)


class AsyncpgWriter(AsyncWriter):
    form = "asyncpg"
    connection: Any

    @property
    def handle(self) -> Any:
        return self.connection

    def connect(self) -> None:
        self.connection = self.wait(asyncpg.connect(self.dsn, timeout=10, command_timeout=20))

    def begin(self) -> None:
        self.savepoint()

    def run(self, sql: str, *values: Any) -> list[Any]:
        rows: list[Any] = self.wait(self.connection.fetch(sql, *values))
        return rows

    def savepoint(self) -> None:
        block = self.connection.transaction()
        self.wait(block.start())
        self.savepoints.append(block)

    def release(self) -> None:
        self.wait(self.savepoints.pop().commit())

    def rollback_to(self) -> None:
        self.wait(self.savepoints.pop().rollback())

    def commit(self) -> None:
        while self.savepoints:
            self.release()

    def rollback(self) -> None:
        while self.savepoints:
            self.rollback_to()

    def close(self) -> None:
        self.connection.terminate()
        self.end_loop()


class AsyncpgPoolWriter(AsyncpgWriter):
    form = "asyncpg-pool"
    pool: Any = None

    def connect(self) -> None:
        if self.pool is None:
            self.pool = self.wait(self._pool())
        self.connection = self.wait(self.pool.acquire(timeout=10))

    async def _pool(self) -> Any:
        return await asyncpg.create_pool(self.dsn, min_size=0, max_size=1, timeout=10, command_timeout=20)

    def reconnect(self) -> None:
        # A pool takes a connection that died away from whoever holds it.
        self.pool.terminate()
        self.pool = None
        self.savepoints.clear()
        self.connect()

    def close(self) -> None:
        self.pool.terminate()
        self.end_loop()


class PsycopgWriter(Writer):
    form = "psycopg"
    connection: Any

    @property
    def handle(self) -> Any:
        return self.connection

    def connect(self) -> None:
        self.connection = self.wait(self._connect())

    def _connect(self) -> Any:
        return psycopg.connect(self.dsn, connect_timeout=10)

    def begin(self) -> None:
        """The first statement does."""

    def run(self, sql: str, *values: Any) -> list[Any]:
        cursor = self.wait(self.connection.execute(percent(sql), values))
        rows: list[Any] = self.wait(cursor.fetchall()) if cursor.description else []
        return rows

    def savepoint(self) -> None:
        name = f"s{len(self.savepoints)}"
        self.run(f"SAVEPOINT {name}")
        self.savepoints.append(name)

    def release(self) -> None:
        self.run(f"RELEASE SAVEPOINT {self.savepoints.pop()}")

    def rollback_to(self) -> None:
        self.run(f"ROLLBACK TO SAVEPOINT {self.savepoints.pop()}")

    def commit(self) -> None:
        self.savepoints.clear()
        self.wait(self.connection.commit())

    def rollback(self) -> None:
        self.savepoints.clear()
        self.wait(self.connection.rollback())

    def close(self) -> None:
        self.wait(self.connection.close())


class PsycopgAsyncWriter(PsycopgWriter, AsyncWriter):
    form = "psycopg-async"

    def _connect(self) -> Any:
        return psycopg.AsyncConnection.connect(self.dsn, connect_timeout=10)

    def close(self) -> None:
        super().close()
        self.end_loop()


class SqlAlchemyWriter(Writer):
    """A Connection, its transactions by ``begin`` and ``begin_nested``."""

    form = "sqlalchemy-connection"
    driver = "psycopg"
    engine: Any = None
    session: Any

    @property
    def handle(self) -> Any:
        return self.session

    def connect(self) -> None:
        if self.engine is None:
            self.engine = self._engine()
        self.session = self._open()

    def _url(self) -> str:
        return self.dsn.replace("postgresql://", f"postgresql+{self.driver}://", 1)

    def _engine(self) -> Any:
        return sqlalchemy.create_engine(self._url(), pool_size=1, max_overflow=0, pool_timeout=10)

    def _open(self) -> Any:
        return self.engine.connect()

    def begin(self) -> None:
        """The first statement does."""

    def run(self, sql: str, *values: Any) -> list[Any]:
        connection = self._core()
        statement = sql if self.driver == "asyncpg" else percent(sql)
        result = self.wait(connection.exec_driver_sql(statement, values))
        return list(result.fetchall()) if result.returns_rows else []

    def _core(self) -> Any:
        return self.session

    def savepoint(self) -> None:
        self.savepoints.append(self.wait(self.session.begin_nested()))

    def release(self) -> None:
        self.wait(self.savepoints.pop().commit())

    def rollback_to(self) -> None:
        self.wait(self.savepoints.pop().rollback())

    def commit(self) -> None:
        self.savepoints.clear()
        self.wait(self.session.commit())

    def rollback(self) -> None:
        self.savepoints.clear()
        self.wait(self.session.rollback())

    def reconnect(self) -> None:
        with suppress(sqlalchemy.exc.DBAPIError):  # its death is noticed here at the latest
            self.wait(self.session.close())
        super().reconnect()

    def close(self) -> None:
        self.wait(self.session.close())
        self.wait(self.engine.dispose())


class SessionWriter(SqlAlchemyWriter):
    form = "sqlalchemy-session"
    hooks = True

    def _open(self) -> Any:
        return Session(self.engine)

    def _core(self) -> Any:
        return self.wait(self.session.connection())


class AsyncEngineWriter(SqlAlchemyWriter, AsyncWriter):
    def _engine(self) -> Any:
        return create_async_engine(self._url(), pool_size=1, max_overflow=0, pool_timeout=10)

    def _open(self) -> Any:
        return self.wait(self.engine.connect())

    def savepoint(self) -> None:
        self.savepoints.append(self.wait(self._nested()))

    async def _nested(self) -> Any:
        return await self.session.begin_nested()

    def close(self) -> None:
        super().close()
        self.end_loop()


class AsyncConnectionPsycopgWriter(AsyncEngineWriter):
    form = "sqlalchemy-asyncconnection-psycopg"


class AsyncConnectionAsyncpgWriter(AsyncEngineWriter):
    form = "sqlalchemy-asyncconnection-asyncpg"
    driver = "asyncpg"


class AsyncSessionPsycopgWriter(AsyncEngineWriter):
    form = "sqlalchemy-asyncsession-psycopg"
    hooks = True

    def _open(self) -> Any:
        return AsyncSession(self.engine)

    def _core(self) -> Any:
        return self.wait(self.session.connection())


class AsyncSessionAsyncpgWriter(AsyncSessionPsycopgWriter):
    form = "sqlalchemy-asyncsession-asyncpg"
    driver = "asyncpg"


@cache
def configure_django() -> None:
    """Once a process; databases are named to it as they come."""
    django.conf.settings.configure(DATABASES={}, USE_TZ=True, INSTALLED_APPS=[], LOGGING_CONFIG=None)
    django.setup()


class DjangoWriter(Writer):
    form = "django"
    hooks = True
    alias = ""
    made = 0

    @property
    def handle(self) -> Any:
        return connections[self.alias]

    def connect(self) -> None:
        configure_django()
        if not self.alias:
            DjangoWriter.made += 1
            self.alias = f"writer{DjangoWriter.made}"
            connections.databases[self.alias] = self._settings()
        self.handle.ensure_connection()

    def _settings(self) -> dict[str, Any]:
        parts = urlsplit(self.dsn)
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.strip("/"),
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
            "OPTIONS": {"connect_timeout": 10},
            "ATOMIC_REQUESTS": False,
            "AUTOCOMMIT": True,
            "CONN_MAX_AGE": None,
            "CONN_HEALTH_CHECKS": False,
            "TIME_ZONE": None,
            "TEST": {},
        }

    def begin(self) -> None:
        self.savepoint()

    def run(self, sql: str, *values: Any) -> list[Any]:
        with self.handle.cursor() as cursor:
            cursor.execute(percent(sql), values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def savepoint(self) -> None:
        block = transaction.atomic(using=self.alias)
        block.__enter__()
        self.savepoints.append(block)

    def release(self) -> None:
        self.savepoints.pop().__exit__(None, None, None)

    def rollback_to(self) -> None:
        self._undo()
        if self.handle.needs_rollback:
            # Django keeps the error of a failed ROLLBACK TO SAVEPOINT to itself and later rolls all back in silence.
            msg = "the savepoint could not be rolled back"
            raise OperationalError(msg)

    def commit(self) -> None:
        while self.savepoints:
            self.release()

    def rollback(self) -> None:
        while self.savepoints:
            self._undo()

    def _undo(self) -> None:
        transaction.set_rollback(True, using=self.alias)
        self.release()

    def reconnect(self) -> None:
        self.close()
        self.handle.ensure_connection()

    def close(self) -> None:
        self.rollback()
        self.handle.close()


WRITERS: tuple[type[Writer], ...] = (
    AsyncpgWriter,
    AsyncpgPoolWriter,
    PsycopgWriter,
    PsycopgAsyncWriter,
    SqlAlchemyWriter,
    SessionWriter,
    AsyncConnectionAsyncpgWriter,
    AsyncConnectionPsycopgWriter,
    AsyncSessionAsyncpgWriter,
    AsyncSessionPsycopgWriter,
    DjangoWriter,
)
HOOKED = tuple(kind for kind in WRITERS if kind.hooks)
