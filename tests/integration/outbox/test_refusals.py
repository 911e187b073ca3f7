"""W6: bad input is an error of ours, before the database is touched, and the transaction goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf, nan
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

from oncommit import Event, OncommitError, Outbox
from oncommit.db.failures import translate
from oncommit.errors import (
    ConnectionClosed,
    DuplicateEvent,
    InvalidEvent,
    NotInTransaction,
    PayloadError,
    SchemaMissing,
    SchemaOutdated,
    TransactionFailed,
    UnknownSink,
    UnsupportedConnection,
)
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import (
    AsyncConnectionAsyncpgWriter,
    AsyncpgPoolWriter,
    AsyncpgWriter,
    DjangoWriter,
    PsycopgWriter,
    SessionWriter,
    SqlAlchemyWriter,
    Writer,
)

OUTBOX = Outbox()
INSERT = "INSERT INTO orders VALUES ($1, 'k', 't')"


class Bare:
    """Has no JSON form."""


SAME = uuid4()
BAD_EVENTS: dict[str, tuple[type[OncommitError], str, Callable[[], list[Any]]]] = {
    "unserialisable": (PayloadError, "'a' .*Bare has no JSON form", lambda: [Event("a", payload={"x": Bare()})]),
    "itself": (PayloadError, "'a' .*refers to itself", lambda: [Event("a", payload=_loop())]),
    "NUL": (PayloadError, r"'a' .*payload\.x\[0\].*NUL", lambda: [Event("a", payload={"x": ["\0"]})]),
    "surrogate": (PayloadError, r"'a' .*payload\.x.*surrogate", lambda: [Event("a", payload={"x": "\ud800"})]),
    "20 MB": (PayloadError, "'a' .*20971522 bytes.*8388608", lambda: [Event("a", payload="x" * (20 << 20))]),
    "20 MB of bytes": (PayloadError, "'a' .*20971520 bytes", lambda: [Event("a", payload=bytes(20 << 20))]),
    "NaN": (PayloadError, r"'a' .*payload\.x.*NaN", lambda: [Event("a", payload={"x": nan})]),
    "infinity": (PayloadError, r"'a' .*payload\.x.*infinity", lambda: [Event("a", payload={"x": inf})]),
    "naive": (InvalidEvent, "'a' .*'not_before'.*time zone", lambda: [Event("a", not_before=datetime(2030, 1, 1))]),  # noqa: DTZ001
    "empty type": (InvalidEvent, "'type'.*empty", lambda: [Event("")]),
    "long type": (InvalidEvent, "'type'.*1000 characters long.*255", lambda: [Event("a" * 1000)]),
    "NUL in a key": (InvalidEvent, "'a' .*'key'.*U[+]0000", lambda: [Event("a", key="\0")]),
    "surrogate in an aggregate": (InvalidEvent, "'aggregate id'.*U[+]D800", lambda: [Event("a", aggregate=("o", "\ud800"))]),
    "unknown sink": (UnknownSink, "'a' .*'sink'.*'other' is not declared", lambda: [Event("a", sink="other")]),
    "twice in one call": (DuplicateEvent, f"{SAME}.*'id'.*twice", lambda: [Event("a", id=SAME), Event("b", id=SAME)]),
    "no event": (InvalidEvent, "a dict is no Event", lambda: [{"type": "a"}]),
    "a class": (InvalidEvent, "no Event", lambda: [Event]),
}  # fmt: skip


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def assert_usable(writer: Writer, observer: Observer) -> None:
    """The transaction that is open goes on, and commits what it did before and after."""
    event = Event("order.placed")
    writer.run(INSERT, event.id)
    assert writer.add(OUTBOX, event) == (event.id,)
    writer.commit()
    assert event.id in observer.live()
    assert event.id in observer.orders()


@pytest.mark.parametrize("case", BAD_EVENTS)
def test_a_wrong_event_leaves_the_transaction_alone(writer: Writer, observer: Observer, case: str) -> None:
    expected, message, make = BAD_EVENTS[case]
    writer.begin()
    before = Event("before")
    writer.add(OUTBOX, before)
    with pytest.raises(expected, match=message):
        writer.add(OUTBOX, Event("fine"), *make())
    assert_usable(writer, observer)
    assert observer.value("SELECT array_agg(event_type ORDER BY id) FROM oncommit.outbox") == ["before", "order.placed"]


def test_check_says_the_same_without_a_connection() -> None:
    for expected, message, make in BAD_EVENTS.values():
        with pytest.raises(expected, match=message):
            OUTBOX.check(*make())


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
        with pytest.raises(TransactionFailed, match="cannot take an event now|over"):
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


# -- The tables are not what they should be


@pytest.fixture
def spoilt(own_shop: Database) -> Iterator[Observer]:
    """A database to spoil."""
    with Observer(own_shop.dsn) as observer:
        yield observer


@pytest.fixture(
    params=[AsyncpgWriter, PsycopgWriter, SessionWriter, AsyncConnectionAsyncpgWriter, DjangoWriter],
    ids=lambda kind: kind.form,
)
def spoilt_writer(request: pytest.FixtureRequest, own_shop: Database) -> Iterator[Writer]:
    """One form of each driver, on the database that is spoilt."""
    made = request.param(own_shop.dsn)
    yield made
    made.close()


def test_missing_tables(spoilt_writer: Writer, spoilt: Observer) -> None:
    spoilt.rows("ALTER SCHEMA oncommit RENAME TO aside")
    outbox = Outbox()
    spoilt_writer.begin()
    for _ in range(2):
        with pytest.raises(SchemaMissing, match="run `oncommit migrate` against this database"):
            spoilt_writer.add(outbox, Event("order.placed"))
    with pytest.raises(SchemaMissing, match="--schema elsewhere"):
        spoilt_writer.add(Outbox(schema="elsewhere"), Event("order.placed"))
    order = uuid4()
    spoilt_writer.run(INSERT, order)
    spoilt_writer.commit()
    assert spoilt.orders() == {order}
    # Migrated at last: no restart is needed.
    spoilt.rows("ALTER SCHEMA aside RENAME TO oncommit")
    spoilt_writer.begin()
    spoilt_writer.add(outbox, event := Event("order.placed"))
    spoilt_writer.commit()
    assert spoilt.live() == [event.id]


def test_an_older_schema(spoilt_writer: Writer, spoilt: Observer) -> None:
    spoilt.rows("ALTER TABLE oncommit.outbox RENAME COLUMN saga_id TO other")
    spoilt_writer.begin()
    with pytest.raises(SchemaOutdated, match="oncommit.outbox has no saga_id.*run `oncommit migrate`"):
        spoilt_writer.add(Outbox(), Event("order.placed"))
    order = uuid4()
    spoilt_writer.run(INSERT, order)
    spoilt_writer.commit()
    assert spoilt.orders() == {order}


def test_tables_that_vanish_later_are_still_explained(spoilt_writer: Writer, spoilt: Observer) -> None:
    """The look at the tables is made once; after it, PostgreSQL's own answer is translated."""
    outbox = Outbox()
    spoilt_writer.begin()
    spoilt_writer.add(outbox, Event("order.placed"))
    spoilt_writer.commit()
    spoilt.rows("ALTER SCHEMA oncommit RENAME TO aside")
    spoilt_writer.begin()
    with pytest.raises(SchemaMissing, match="run `oncommit migrate`"):
        spoilt_writer.add(outbox, Event("order.placed"))
    spoilt_writer.rollback()


# -- What is not ours to translate


def test_a_deadlock_stays_the_drivers() -> None:
    assert translate(psycopg.errors.DeadlockDetected("deadlock"), "oncommit") is None
    assert translate(asyncpg.DeadlockDetectedError("deadlock"), "oncommit") is None


def test_a_moment_long_ago_is_not_delayed(writer: Writer, observer: Observer) -> None:
    writer.begin()
    writer.add(OUTBOX, Event("order.placed", not_before=datetime(1900, 1, 1, tzinfo=UTC)))
    writer.commit()
    assert len(observer.live()) == 1
