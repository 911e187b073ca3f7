"""What applications do to their connections, and what lies between: codecs, factories, scopes, poolers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from oncommit import Event, Outbox
from oncommit.testing.servers import Database
from oncommit.testing.servers.kinds.pgbouncer import pgbouncer
from tests.integration.outbox.observer import Observer

PAYLOAD = {"total": 1.5, "note": 'a "quoted" word', "items": [1, None, True]}
STORED = """
    SELECT payload::text, headers::text FROM oncommit.outbox
    UNION ALL SELECT payload::text, headers::text FROM oncommit.outbox_delayed
"""


def events() -> list[list[Event[Any]]]:
    """Calls for each way into the database: one, many, ids of the caller's, and later ones among them."""
    later = datetime.now(UTC) + timedelta(days=1)

    def event(**more: Any) -> Event[Any]:
        return Event("order.placed", payload=PAYLOAD, headers={"x": "1"}, **more)

    return [[event()], [event(), event()], [event(id=uuid4())], [event(not_before=later), event()]]


def check(observer: Observer, calls: list[list[Event[Any]]]) -> None:
    """As it was written, and not encoded a second time."""
    added = [event for call in calls for event in call]
    assert observer.live() == [event.id for event in added if event.not_before is None]
    for payload, headers in observer.rows(STORED):
        assert (json.loads(payload), json.loads(headers)) == (PAYLOAD, {"x": "1"})
    assert observer.value("SELECT count(*) FROM oncommit.outbox_delayed") == 1


async def add_all(outbox: Outbox, connection: Any, calls: list[list[Event[Any]]]) -> None:
    """Each call, and once more."""
    for call in calls:
        assert await outbox.add(connection, *call) == tuple(event.id for event in call)
        assert await outbox.add(connection, *call) == ()


def add_all_blocking(outbox: Outbox, connection: Any, calls: list[list[Event[Any]]]) -> None:
    """The same."""
    for call in calls:
        assert outbox.add(connection, *call) == tuple(event.id for event in call)
        assert outbox.add(connection, *call) == ()


async def test_asyncpg_codecs_of_the_application(shop: Database, observer: Observer) -> None:
    connection = await asyncpg.connect(shop.dsn)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>"[1:-1])
    added = events()
    async with connection.transaction():
        await add_all(Outbox(), connection, added)
    await connection.close()
    check(observer, added)


async def test_asyncpg_codec_that_gives_ids_of_its_own_kind(shop: Database, observer: Observer) -> None:
    class Id:
        def __init__(self, text: str) -> None:
            self.text = text

        def __str__(self) -> str:
            return self.text

    connection = await asyncpg.connect(shop.dsn)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=Id)
    added = events()
    async with connection.transaction():
        await add_all(Outbox(), connection, added)
    await connection.close()
    check(observer, added)


async def test_asyncpg_record_class_and_no_statement_cache(shop: Database, observer: Observer) -> None:
    class Mine(asyncpg.Record):
        """Of the application."""

    connection = await asyncpg.connect(shop.dsn, record_class=Mine, statement_cache_size=0)
    added = events()
    async with connection.transaction():
        await add_all(Outbox(), connection, added)
    await connection.close()
    check(observer, added)


@pytest.mark.parametrize(
    "options",
    [
        {"row_factory": dict_row},
        {"row_factory": namedtuple_row},
        {"row_factory": scalar_row},
        {"row_factory": class_row(dict)},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
        {"prepare_threshold": None},
        {"prepare_threshold": 0},
    ],
    ids=["dict", "namedtuple", "scalar", "class", "client", "raw", "never prepared", "always prepared"],
)
def test_psycopg_options_of_the_application(shop: Database, observer: Observer, options: dict[str, Any]) -> None:
    outbox = Outbox()
    with psycopg.connect(shop.dsn, **options) as connection:
        added = events()
        add_all_blocking(outbox, connection, added)
    check(observer, added)


@pytest.mark.parametrize(
    "options", [{"row_factory": dict_row}, {"cursor_factory": psycopg.AsyncRawCursor}], ids=["dict", "raw"]
)
async def test_psycopg_async_options(shop: Database, observer: Observer, options: dict[str, Any]) -> None:
    added = events()
    async with await psycopg.AsyncConnection.connect(shop.dsn, **options) as connection:
        await add_all(Outbox(), connection, added)
    check(observer, added)


def test_psycopg_dumpers_of_the_application(shop: Database, observer: Observer) -> None:
    """It writes dicts as jsonb and UUIDs as text; neither reaches our values."""
    with psycopg.connect(shop.dsn) as connection:
        connection.adapters.register_dumper(dict, psycopg.types.json.JsonbDumper)
        connection.adapters.register_loader("uuid", psycopg.types.string.TextLoader)
        added = events()
        add_all_blocking(Outbox(), connection, added)
    check(observer, added)


# -- SQLAlchemy's scopes


@pytest.fixture
def engine(shop: Database) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(shop.url("psycopg"))
    yield made
    made.dispose()


def test_scoped_session(engine: sqlalchemy.Engine, observer: Observer) -> None:
    heard: list[tuple[Event[Any], ...]] = []
    outbox = Outbox(after_commit=heard.append)
    scope = scoped_session(sessionmaker(engine))
    added = events()
    add_all_blocking(outbox, scope, added)
    assert outbox.add(scope(), *added[0]) == ()
    assert observer.live() == []
    scope.commit()
    scope.remove()
    check(observer, added)
    assert heard == [tuple(call) for call in added]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_scoped_session(shop: Database, observer: Observer, driver: str) -> None:
    heard: list[tuple[Event[Any], ...]] = []
    outbox = Outbox(after_commit=heard.append)
    engine = create_async_engine(shop.url(driver))
    scope = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    added = events()
    await add_all(outbox, scope, added)
    await scope.commit()
    await scope.remove()
    await engine.dispose()
    check(observer, added)
    assert heard == [tuple(call) for call in added]


def test_a_sessions_rows_and_events_share_one_bind_of_several(engine: sqlalchemy.Engine, observer: Observer) -> None:
    other = sqlalchemy.create_engine("sqlite://")
    base = sqlalchemy.Table("elsewhere", sqlalchemy.MetaData())
    with sessionmaker(engine, binds={base: other})() as session:  # a default, and an exception from it
        added = events()
        add_all_blocking(Outbox(), session, added)
        session.commit()
    other.dispose()
    check(observer, added)


def test_sqlalchemy_two_phase(shop: Database, engine: sqlalchemy.Engine) -> None:
    """Prepared transactions are off on a server by default; what counts is that add does not care."""
    with sessionmaker(engine, twophase=True)() as session:
        Outbox().add(session, Event("order.placed"))
        session.rollback()


# -- PgBouncer in transaction mode


@pytest.fixture
def bounced(shop: Database) -> Iterator[str]:
    with pgbouncer(shop.server) as between:
        yield shop.dsn.replace(f":{shop.server.port}/", f":{between.port}/")


async def test_asyncpg_through_pgbouncer(bounced: str, observer: Observer) -> None:
    connections = [await asyncpg.connect(bounced, statement_cache_size=0) for _ in range(3)]
    outbox = Outbox(strict_order=True)

    async def work(connection: asyncpg.Connection) -> list[UUID]:
        ids = []
        for _ in range(10):
            async with connection.transaction():
                ids += await outbox.add(connection, Event("a", key="k"), Event("b", key="l", id=uuid4()))
        return ids

    made = await asyncio.gather(*(work(connection) for connection in connections))
    for connection in connections:
        await connection.close()
    assert set(observer.live()) == {event_id for ids in made for event_id in ids}


def test_psycopg_through_pgbouncer(bounced: str, observer: Observer) -> None:
    outbox = Outbox()
    with psycopg.connect(bounced, prepare_threshold=None) as connection:
        for _ in range(10):
            add_all_blocking(outbox, connection, events())
            connection.commit()
    assert len(observer.live()) == 50
