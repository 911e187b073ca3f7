"""W6: a connection or session that cannot take an event says why, and what would help; so does what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import asyncpg
import django.db
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncommit import Event, Outbox
from oncommit.errors import (
    ConnectionClosed,
    NotInTransaction,
    TransactionFailed,
    UnsupportedConnection,
)
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.usable import assert_usable
from tests.integration.outbox.writers import (
    AsyncConnectionAsyncpgWriter,
    AsyncpgPoolWriter,
    AsyncpgWriter,
    DjangoWriter,
    PsycopgWriter,
    SqlAlchemyWriter,
    Writer,
)

OUTBOX = Outbox()


# -- The connection cannot take it


def test_a_failed_transaction_says_so(writer: Writer, observer: Observer) -> None:
    writer.begin()
    with pytest.raises(Exception, match="division by zero"):
        writer.run("SELECT 1 / 0")
    if isinstance(writer, DjangoWriter):
        writer.handle.needs_rollback = True  # as leaving an inner atomic block by that error does
    with pytest.raises(TransactionFailed, match="failed"):
        writer.add(OUTBOX, Event("order.placed"))
    writer.rollback()
    writer.begin()
    assert_usable(writer, observer)


def test_a_savepoint_saves_a_failed_transaction(writer: Writer, observer: Observer) -> None:
    writer.begin()
    writer.savepoint()
    with pytest.raises(Exception, match="division by zero"):
        writer.run("SELECT 1 / 0")
    writer.rollback_to()
    assert_usable(writer, observer)


@pytest.mark.parametrize("kind", [AsyncpgWriter, PsycopgWriter, SqlAlchemyWriter, AsyncConnectionAsyncpgWriter])
def test_a_closed_connection(writer_of: Callable[[type[Writer]], Writer], kind: type[Writer]) -> None:
    writer = writer_of(kind)
    writer.begin()
    writer.wait(writer.handle.close())
    with pytest.raises(ConnectionClosed, match="closed"):
        writer.add(OUTBOX, Event("order.placed"))
    writer.savepoints.clear()


def test_a_connection_that_went_back_to_its_pool(writer_of: Callable[[type[Writer]], Writer]) -> None:
    writer = writer_of(AsyncpgPoolWriter)
    assert isinstance(writer, AsyncpgPoolWriter)
    writer.wait(writer.pool.release(writer.connection))
    with pytest.raises(ConnectionClosed, match="back to its pool"):
        writer.add(OUTBOX, Event("order.placed"))


def test_a_closed_session(shop: Database) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    session = Session(engine, close_resets_only=False)
    session.close()
    with pytest.raises(ConnectionClosed, match="closed"):
        OUTBOX.add(session, Event("order.placed"))
    engine.dispose()


async def test_a_closed_async_session(shop: Database) -> None:
    engine = create_async_engine(shop.url("asyncpg"))
    session = AsyncSession(engine, close_resets_only=False)
    await session.close()
    with pytest.raises(ConnectionClosed, match="closed"):
        await OUTBOX.add(session, Event("order.placed"))
    await engine.dispose()


def test_add_after_rollback_inside_the_block(shop: Database) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    with Session(engine) as session, session.begin() as transaction:
        transaction.rollback()
        with pytest.raises(TransactionFailed, match="cannot take an event now"):
            OUTBOX.add(session, Event("order.placed"))
    with engine.connect() as connection, connection.begin() as transaction:
        transaction.rollback()
        with pytest.raises(TransactionFailed):
            OUTBOX.add(connection, Event("order.placed"))
    engine.dispose()


def test_a_session_whose_flush_failed(shop: Database, observer: Observer) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    event_id = sqlalchemy.Column("event_id", sqlalchemy.Uuid, primary_key=True, default=uuid4)
    table = sqlalchemy.Table("orders", sqlalchemy.MetaData(), event_id)
    mapper = sqlalchemy.orm.registry()
    order = type("Order", (), {})
    mapper.map_imperatively(order, table)
    with Session(engine) as session:
        session.add(order())
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError):
            session.flush()
        with pytest.raises(TransactionFailed, match=r"rollback\(\)"):
            OUTBOX.add(session, Event("order.placed"))
        session.rollback()
        OUTBOX.add(session, event := Event("order.placed"))
        session.commit()
    engine.dispose()
    mapper.dispose()
    assert observer.live() == [event.id]


async def test_after_the_block_asyncpg_says_no_transaction(shop: Database) -> None:
    connection = await asyncpg.connect(shop.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await transaction.rollback()
    with pytest.raises(NotInTransaction):
        await OUTBOX.add(connection, Event("order.placed"))
    await connection.close()


def test_a_session_with_several_databases(shop: Database, observer: Observer) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    table = sqlalchemy.Table("orders", sqlalchemy.MetaData())
    with Session(binds={table: engine}) as session:
        with pytest.raises(UnsupportedConnection, match=r"session\.connection\(bind_arguments"):
            OUTBOX.add(session, Event("order.placed"))
        OUTBOX.add(session.connection(bind_arguments={"bind": engine}), event := Event("order.placed"))
        session.commit()
    engine.dispose()
    assert observer.live() == [event.id]


# -- It is no connection at all


def _wrong_things(dsn: str, url: str) -> dict[str, tuple[Callable[[], Any], str]]:
    return {
        "None": (lambda: None, "NoneType is no connection"),
        "text": (lambda: dsn, "a builtins.str is no connection"),
        "class": (lambda: psycopg.Connection, "the class psycopg.Connection"),
        "engine": (lambda: sqlalchemy.create_engine(url), "Open a session or connection from it first"),
        "async engine": (lambda: create_async_engine(url), "Open a session or connection from it first"),
        "sessionmaker": (sessionmaker, "Open a session or connection from it first"),
        "async_sessionmaker": (async_sessionmaker, "Open a session or connection from it first"),
        "psycopg pool": (
            lambda: psycopg_pool.ConnectionPool(dsn, open=False),
            r"A pool has no transaction: use `async with outbox\.transaction",
        ),
        "asyncpg pool": (lambda: asyncpg.create_pool(dsn, min_size=0), "A pool has no transaction"),
        "Django's connections": (lambda: django.db.connections, "is no connection"),
        "another outbox": (Outbox, "is no connection"),
    }


@pytest.mark.parametrize("case", _wrong_things("", "postgresql+psycopg://"))
async def test_a_wrong_object_is_told_what_to_do(case: str) -> None:
    make, message = _wrong_things("postgresql://nowhere", "postgresql+psycopg://nowhere")[case]
    with pytest.raises(UnsupportedConnection, match=message):
        OUTBOX.add(make(), Event("order.placed"))


def test_a_cursor(shop: Database) -> None:
    with (
        psycopg.connect(shop.dsn) as connection,
        connection.cursor() as cursor,
        pytest.raises(UnsupportedConnection, match="Pass the cursor's connection"),
    ):
        OUTBOX.add(cursor, Event("order.placed"))


def test_another_database_than_postgresql() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with (
        Session(engine) as session,
        pytest.raises(UnsupportedConnection, match=r"postgresql\+asyncpg or postgresql\+psycopg"),
    ):
        OUTBOX.add(session, Event("order.placed"))
    engine.dispose()
