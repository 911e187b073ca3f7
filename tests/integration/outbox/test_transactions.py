"""W2: committed with the business rows or not at all; an add outside any transaction is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncommit import Event, Outbox
from oncommit.errors import NotInTransaction
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import AsyncpgWriter, DjangoWriter, Writer

OUTBOX = Outbox()
INSERT = "INSERT INTO orders VALUES ($1, 'k', 't')"


def place(writer: Writer, event: Event[None]) -> Event[None]:
    writer.run(INSERT, event.id)
    assert writer.add(OUTBOX, event) == (event.id,)
    return event


def test_nothing_is_seen_before_the_commit_and_all_after_it(writer: Writer, observer: Observer) -> None:
    writer.begin()
    event = place(writer, Event("order.placed"))
    assert (observer.live(), observer.orders()) == ([], set())
    writer.commit()
    assert (observer.live(), observer.orders()) == ([event.id], {event.id})


def test_a_rollback_takes_both(writer: Writer, observer: Observer) -> None:
    writer.begin()
    place(writer, Event("order.placed"))
    writer.rollback()
    assert (observer.live(), observer.orders()) == ([], set())


def test_a_connection_that_closes_takes_both(writer: Writer, observer: Observer) -> None:
    writer.begin()
    place(writer, Event("order.placed"))
    writer.reconnect()
    assert (observer.live(), observer.orders()) == ([], set())


def test_savepoints_take_what_came_inside_them(writer: Writer, observer: Observer) -> None:
    writer.begin()
    first = place(writer, Event("order.placed"))
    writer.savepoint()
    place(writer, Event("order.lost"))
    writer.savepoint()
    place(writer, Event("order.lost"))
    writer.release()
    writer.rollback_to()
    writer.savepoint()
    second = place(writer, Event("order.placed"))
    writer.savepoint()
    place(writer, Event("order.lost"))
    writer.rollback_to()
    third = place(writer, Event("order.placed"))
    writer.release()
    writer.commit()
    assert observer.live() == [first.id, second.id, third.id]
    assert observer.orders() == {first.id, second.id, third.id}


def test_an_event_can_be_added_again_after_its_rollback(writer: Writer, observer: Observer) -> None:
    event = Event("order.placed")
    writer.begin()
    place(writer, event)
    writer.rollback()
    writer.begin()
    writer.savepoint()
    place(writer, event)
    writer.rollback_to()
    place(writer, event)
    writer.commit()
    assert observer.live() == [event.id]


def test_adding_nothing_is_fine(writer: Writer, observer: Observer) -> None:
    writer.begin()
    assert writer.add(OUTBOX) == ()
    writer.commit()
    assert observer.live() == []


# -- Without a transaction


@pytest.mark.parametrize("kind", [AsyncpgWriter, DjangoWriter])
def test_a_connection_outside_any_transaction_is_refused(
    writer_of: Callable[[type[Writer]], Writer], observer: Observer, kind: type[Writer]
) -> None:
    writer = writer_of(kind)
    with pytest.raises(
        NotInTransaction, match=r"no transaction is open: add the event inside `\w+ with .*`|inside `with"
    ):
        writer.add(OUTBOX, Event("order.placed"))
    assert observer.live() == []
    writer.begin()
    place(writer, Event("order.placed"))
    writer.commit()


def test_psycopg_in_autocommit(shop: Database, observer: Observer) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        with pytest.raises(
            NotInTransaction, match=r"autocommit: add the event inside `with connection\.transaction\(\):`"
        ):
            OUTBOX.add(connection, Event("order.placed"))
        with connection.transaction():
            OUTBOX.add(connection, Event("order.placed"))
    assert len(observer.live()) == 1


def test_psycopg_in_a_pipeline(shop: Database, observer: Observer) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(NotInTransaction):
            OUTBOX.add(connection, Event("order.lost"))
        with connection.transaction():
            OUTBOX.add(connection, event := Event("order.placed"))
    assert observer.live() == [event.id]


async def test_psycopg_async_in_autocommit(shop: Database, observer: Observer) -> None:
    async with await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            await OUTBOX.add(connection, Event("order.placed"))
    assert observer.live() == []


def test_django_with_autocommit_turned_off_by_hand(
    writer_of: Callable[[type[Writer]], Writer], observer: Observer
) -> None:
    connection = writer_of(DjangoWriter).handle
    connection.set_autocommit(False)
    OUTBOX.add(connection, Event("order.placed"))
    assert observer.live() == []
    connection.commit()
    connection.set_autocommit(True)
    assert len(observer.live()) == 1


@pytest.fixture(params=["engine", "option"])
def autocommit_engine(shop: Database, request: pytest.FixtureRequest) -> Iterator[sqlalchemy.Engine]:
    """SQLAlchemy's two ways into true autocommit."""
    if request.param == "engine":
        engine = sqlalchemy.create_engine(shop.url("psycopg"), isolation_level="AUTOCOMMIT")
    else:
        engine = sqlalchemy.create_engine(shop.url("psycopg")).execution_options(isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def test_sqlalchemy_in_autocommit(autocommit_engine: sqlalchemy.Engine, observer: Observer) -> None:
    with Session(autocommit_engine) as session, pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
        OUTBOX.add(session, Event("order.placed"))
    with autocommit_engine.connect() as connection, pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
        OUTBOX.add(connection, Event("order.placed"))
    assert observer.live() == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_async_in_autocommit(shop: Database, observer: Observer, driver: str) -> None:
    engine = create_async_engine(shop.url(driver), isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
            await OUTBOX.add(session, Event("order.placed"))
    async with engine.connect() as connection:
        with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
            await OUTBOX.add(connection, Event("order.placed"))
    await engine.dispose()
    assert observer.live() == []


async def test_the_transaction_is_asked_for_when_the_call_is_made(shop: Database) -> None:
    connection = await asyncpg.connect(shop.dsn)
    with pytest.raises(NotInTransaction):
        OUTBOX.add(connection, Event("order.placed"))  # not awaited: it does not come so far
    await connection.close()
