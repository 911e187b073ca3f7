"""W4: many events in one call are one statement, in order, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from django.db import connections
from django.test.utils import CaptureQueriesContext

from oncommit import Event, Outbox
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import (
    AsyncEngineWriter,
    AsyncpgWriter,
    DjangoWriter,
    PsycopgWriter,
    SqlAlchemyWriter,
    Writer,
)

MANY = 10_000


def events(count: int = MANY) -> list[Event[Any]]:
    return [Event("order.placed", aggregate=("order", number % 7), payload={"n": number}) for number in range(count)]


def statements(writer: Writer, act: Callable[[], object]) -> list[str]:
    """The statements that the driver sent while that ran, by the driver's own means."""
    seen: list[str] = []
    if isinstance(writer, AsyncpgWriter):
        with writer.connection.query_logger(lambda record: seen.append(record.query)):
            act()
    elif isinstance(writer, SqlAlchemyWriter):
        engine = writer.engine.sync_engine if isinstance(writer, AsyncEngineWriter) else writer.engine

        def note(*arguments: Any) -> None:
            seen.append(arguments[2])

        sqlalchemy.event.listen(engine, "before_cursor_execute", note)
        act()
        sqlalchemy.event.remove(engine, "before_cursor_execute", note)
    elif isinstance(writer, DjangoWriter):
        with CaptureQueriesContext(connections[writer.alias]) as captured:
            act()
        seen = [query["sql"] for query in captured.captured_queries]
    else:
        assert isinstance(writer, PsycopgWriter)
        before = counted(writer)
        act()
        seen = ["INSERT"] * (counted(writer) - before)
    return seen


def counted(writer: Writer) -> int:
    """Psycopg tells nobody what it sends; but each command of a transaction has a number, and each row has its own."""
    return int(writer.run("SELECT count(DISTINCT b.cmin::text) FROM oncommit.outbox b")[0][0])


def test_ten_thousand_are_one_statement_in_their_order(writer: Writer, observer: Observer) -> None:
    outbox = Outbox()
    added = events()
    writer.begin()
    writer.add(outbox, Event("warm.up"), Event("warm.up"))  # asks once for our tables; asyncpg, for types of arrays
    sent = statements(writer, lambda: writer.add(outbox, *added))
    writer.commit()
    assert len(sent) == 1
    assert sent[0].startswith("INSERT")
    assert observer.live()[2:] == [event.id for event in added]
    assert observer.value("SELECT sum((payload->>'n')::int) FROM oncommit.outbox") == sum(range(MANY))


def test_many_of_which_some_are_delayed(writer: Writer, observer: Observer) -> None:
    moment = datetime.now(UTC) + timedelta(days=1)
    mixed = [Event("order.placed", not_before=moment if number % 3 == 0 else None) for number in range(300)]
    writer.begin()
    assert writer.add(Outbox(), *mixed) == tuple(event.id for event in mixed)
    writer.commit()
    assert observer.live() == [event.id for event in mixed if event.not_before is None]
    delayed = observer.rows("SELECT event_id, not_before FROM oncommit.outbox_delayed ORDER BY id")
    assert delayed == [(event.id, moment) for event in mixed if event.not_before is not None]


def test_the_databases_clock_decides_what_is_delayed(writer: Writer, observer: Observer) -> None:
    """Not the writer's, which may be wrong: here the database's runs two days ahead."""
    moment = datetime.now(UTC) + timedelta(days=1)
    observer.rows(
        "CREATE OR REPLACE FUNCTION oncommit.now() RETURNS timestamptz LANGUAGE sql STABLE "
        "AS $$ SELECT pg_catalog.statement_timestamp() + interval '2 days' $$"
    )
    try:
        writer.begin()
        writer.add(Outbox(), event := Event("order.placed", not_before=moment))
        writer.commit()
        assert observer.live() == [event.id]
    finally:
        observer.rows(
            "CREATE OR REPLACE FUNCTION oncommit.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE "
            "AS 'SELECT pg_catalog.statement_timestamp()'"
        )


def test_the_order_of_calls_is_the_order_of_ids(writer: Writer, observer: Observer) -> None:
    outbox = Outbox()
    writer.begin()
    expected = [added for size in (1, 3, 1, 50, 2) for added in writer.add(outbox, *events(size))]
    writer.commit()
    assert observer.live() == expected


async def test_memory_is_bounded(shop: Database) -> None:
    """Beside the events themselves, their rows: payloads once as text and once in the message to the server."""
    connection = await asyncpg.connect(shop.dsn)
    payload = "x" * 1000
    many = [Event("order.placed", payload=payload) for _ in range(MANY)]
    async with connection.transaction():
        await Outbox().add(connection, Event("warm.up"))
    tracemalloc.start()
    begun, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    async with connection.transaction():
        await Outbox().add(connection, *many)
    _, peak = tracemalloc.get_traced_memory()
    async with connection.transaction():
        await Outbox().add(connection, *events(10))
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await connection.close()
    assert peak - begun < 60_000_000  # for 10 MB of payloads
    assert left - begun < 3_000_000


def test_adding_for_long_leaves_nothing_behind(shop: Database) -> None:
    outbox = Outbox(after_commit=lambda _events: None)
    with psycopg.connect(shop.dsn) as connection:

        def work(times: int) -> None:
            for _ in range(times):
                outbox.add(connection, Event("order.placed", aggregate=("order", 1)))
                connection.commit()

        work(50)
        tracemalloc.start()
        work(50)
        before, _ = tracemalloc.get_traced_memory()
        work(300)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert after - before < 30_000  # not one event of 300


@pytest.mark.parametrize("size", [1_000_000, 7_000_000])
def test_large_payloads_arrive_whole(writer: Writer, observer: Observer, size: int) -> None:
    writer.begin()
    writer.add(Outbox(), Event("text", payload="é" * (size // 2)), Event("bytes", payload=b"\x00\xff" * (size // 2)))
    writer.commit()
    assert observer.rows("SELECT octet_length(payload::text), octet_length(data) FROM oncommit.outbox ORDER BY id") == [
        (size + 2, None),
        (None, size),
    ]
