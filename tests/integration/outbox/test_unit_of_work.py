"""Events collected on a SQLAlchemy session are written with its rows: after them, in order, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from oncommit import Event, Outbox
from oncommit.contrib.sqlalchemy import UnitOfWork
from oncommit.errors import InvalidEvent, SchemaMissing
from oncommit.testing.servers import Database


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]

    def to_event(self) -> Event[Any]:
        return Event("order.placed", aggregate=("order", self.id), payload={"item": self.item})


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def unit(heard: list[str]) -> UnitOfWork:
    return UnitOfWork(Outbox(after_commit=lambda events: heard.extend(event.type for event in events)))


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = create_engine(database.url("psycopg"))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def async_engine(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(database.url(request.param))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


WRITTEN = text("SELECT event_type FROM oncommit.outbox ORDER BY id")


def written(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(WRITTEN).scalars())


async def written_async(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(WRITTEN)).scalars())


def test_an_entity_is_asked_after_its_flush(engine: Engine, unit: UnitOfWork, heard: list[str]) -> None:
    with Session(engine) as session:
        order = Order(item="tea")
        session.add(order)
        unit.collect(session, order)
        session.commit()
    with engine.connect() as connection:
        row = connection.execute(text("SELECT aggregate_id, payload FROM oncommit.outbox")).one()
        number = connection.execute(text("SELECT id FROM orders")).scalar_one()
    assert row.aggregate_id == str(number)
    assert row.payload == {"item": "tea"}
    assert heard == ["order.placed"]


def test_the_rows_come_first(engine: Engine, unit: UnitOfWork) -> None:
    """Their locks order the writers of a key, so they have to be taken before the events draw their ids."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE orders ADD last_event bigint DEFAULT 0"))
        connection.execute(
            text(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN NEW.last_event := (SELECT count(*) FROM oncommit.outbox); RETURN NEW; END'"
            )
        )
        connection.execute(text("CREATE TRIGGER note BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()"))
    with Session(engine) as session:
        unit.collect(session, Event("collected.before"))
        session.add(Order(item="tea"))
        session.commit()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT last_event FROM orders")).scalar_one() == 0
    assert written(engine) == ["collected.before"]


def test_a_commit_without_a_flush_writes_too(engine: Engine, unit: UnitOfWork, heard: list[str]) -> None:
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders (item) VALUES ('by hand')"))
        unit.collect(session, Event("first"), Event("second"))
        session.commit()
    assert written(engine) == ["first", "second"] == heard


def test_a_flush_in_between_writes_and_a_rollback_takes_it_back(
    engine: Engine, unit: UnitOfWork, heard: list[str]
) -> None:
    with Session(engine) as session:
        session.add(Order(item="tea"))
        unit.collect(session, Event("flushed"))
        session.flush()
        assert session.execute(WRITTEN).scalars().all() == ["flushed"]
        unit.collect(session, Event("never flushed"))
        session.rollback()
        session.execute(text("INSERT INTO orders (item) VALUES ('next')"))
        session.commit()
    assert written(engine) == [] == heard


def test_a_session_that_is_closed_forgets(engine: Engine, unit: UnitOfWork, heard: list[str]) -> None:
    session = Session(engine)
    unit.collect(session, Event("lost"))
    session.close()
    session.execute(text("SELECT 1"))
    session.commit()
    session.close()
    assert written(engine) == [] == heard


def test_a_wrong_event_is_refused_where_it_is_collected(engine: Engine, unit: UnitOfWork) -> None:
    with Session(engine) as session:
        session.add(Order(item="tea"))
        with pytest.raises(InvalidEvent, match="NaN"):
            unit.collect(session, Event("order.placed", payload={"price": float("nan")}))
        session.commit()
        assert session.execute(text("SELECT count(*) FROM orders")).scalar_one() == 1
    assert written(engine) == []


def test_missing_tables_fail_the_commit_and_say_so(empty_database: Database, unit: UnitOfWork) -> None:
    engine = create_engine(empty_database.url("psycopg"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(item="tea"))
        unit.collect(session, Event("order.placed"))
        with pytest.raises(SchemaMissing, match="oncommit migrate"):
            session.commit()
        session.rollback()
        assert session.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
    engine.dispose()


async def test_savepoints_keep_the_order_and_take_along_what_is_theirs(
    async_engine: AsyncEngine, unit: UnitOfWork, heard: list[str]
) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        unit.collect(session, Event("before"))
        async with session.begin_nested() as savepoint:
            unit.collect(session, Event("rolled back"))
            session.add(Order(item="gone"))
            await session.flush()
            async with session.begin_nested():
                unit.collect(session, Event("released into what is rolled back"))
            await savepoint.rollback()
        async with session.begin_nested():
            session.add(Order(item="kept"))
            unit.collect(session, Event("kept"))
            await session.flush()
            async with session.begin_nested():
                unit.collect(session, Event("kept deeper"))
        unit.collect(session, Event("after"))
    assert await written_async(async_engine) == ["before", "kept", "kept deeper", "after"] == heard


async def test_a_session_is_used_again(async_engine: AsyncEngine, unit: UnitOfWork, heard: list[str]) -> None:
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        for item in ("tea", "coffee"):
            order = Order(item=item)
            session.add(order)
            unit.collect(session, order)
            await session.commit()
        unit.collect(session, Event("never"))
        await session.rollback()
    assert await written_async(async_engine) == ["order.placed", "order.placed"] == heard


async def test_two_units_on_one_session_do_not_mix(async_engine: AsyncEngine) -> None:
    quiet, strict = UnitOfWork(Outbox()), UnitOfWork(Outbox(strict_order=True))
    async with AsyncSession(async_engine) as session, session.begin():
        quiet.collect(session, Event("quiet"))
        strict.collect(session, Event("strict", key="k"))
    assert sorted(await written_async(async_engine)) == ["quiet", "strict"]
