"""What runs behind a commit: after it and never else, in order, and unable to spoil anything."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncommit import Event, Outbox
from oncommit.errors import ConfigError
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import HOOKED, AsyncSessionAsyncpgWriter, DjangoWriter, SessionWriter, Writer

Events = tuple[Event[Any], ...]


class Heard:
    """Notes what it is told. What was not committed at that moment has a mark: an error here would only be logged."""

    def __init__(self, observer: Observer) -> None:
        self.names: list[str] = []
        self.calls = 0
        self._observer = observer

    def __call__(self, events: Events) -> None:
        committed = set(self._observer.live())
        self.names += [event.type if event.id in committed else f"{event.type}, not committed" for event in events]
        self.calls += 1


@pytest.fixture
def heard(observer: Observer) -> Heard:
    return Heard(observer)


@pytest.fixture
def outbox(heard: Heard) -> Outbox:
    return Outbox(after_commit=heard)


@pytest.fixture(params=HOOKED, ids=lambda kind: kind.form)
def hooked(request: pytest.FixtureRequest, writer_of: Callable[[type[Writer]], Writer]) -> Writer:
    """The forms whose session tells of its commit."""
    return writer_of(request.param)


@pytest.fixture
def engine(shop: Database) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(shop.url("psycopg"))
    yield made
    made.dispose()


def test_it_comes_after_the_commit_and_in_order(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    hooked.begin()
    hooked.add(outbox, Event("first"), Event("second"))
    hooked.add(outbox, Event("third"))
    assert heard.names == []
    hooked.commit()
    assert heard.names == ["first", "second", "third"]


def test_a_rollback_is_not_told(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    hooked.begin()
    hooked.add(outbox, Event("lost"))
    hooked.rollback()
    hooked.begin()
    hooked.add(outbox, Event("kept"))
    hooked.commit()
    assert heard.names == ["kept"]


def test_a_savepoint_that_is_rolled_back_is_not_told(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    hooked.begin()
    hooked.add(outbox, Event("before"))
    hooked.savepoint()
    hooked.add(outbox, Event("lost"))
    hooked.savepoint()
    hooked.add(outbox, Event("lost, though released"))
    hooked.release()
    hooked.rollback_to()
    hooked.savepoint()
    hooked.add(outbox, Event("inside"))
    hooked.release()
    hooked.add(outbox, Event("after"))
    hooked.commit()
    assert heard.names == ["before", "inside", "after"]


def test_a_session_closed_without_commit_tells_nothing(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    hooked.begin()
    hooked.add(outbox, Event("lost"))
    hooked.reconnect()
    hooked.begin()
    hooked.commit()
    assert heard.calls == 0


def test_each_transaction_of_a_session_tells_its_own(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    for name in ("one", "two", "three"):
        hooked.begin()
        hooked.add(outbox, Event(name))
        hooked.commit()
    hooked.begin()
    hooked.run("SELECT 1")
    hooked.commit()
    assert heard.names == ["one", "two", "three"]


def test_what_was_there_already_is_not_told(hooked: Writer, outbox: Outbox, heard: Heard) -> None:
    event = Event("once")
    for _ in range(2):
        hooked.begin()
        hooked.add(outbox, event)
        hooked.add(outbox, event)
        hooked.commit()
    assert heard.names == ["once"]


def test_two_outboxes_on_one_session(hooked: Writer, outbox: Outbox, heard: Heard, observer: Observer) -> None:
    second = Heard(observer)
    hooked.begin()
    hooked.add(outbox, Event("of the first"))
    hooked.add(Outbox(after_commit=second), Event("of the second"))
    hooked.commit()
    assert (heard.names, second.names) == (["of the first"], ["of the second"])


def test_a_hook_that_fails_is_logged_and_stops_nobody(
    hooked: Writer, outbox: Outbox, heard: Heard, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_events: Events) -> None:
        raise RuntimeError("no luck")

    hooked.begin()
    hooked.add(Outbox(after_commit=fails), event := Event("told in vain"))
    hooked.add(outbox, Event("told"))
    hooked.commit()
    assert heard.names == ["told"]
    assert len(observer.live()) == 2
    (record,) = [record for record in caplog.records if record.name == "oncommit.outbox"]
    assert "committed and safe" in record.getMessage()
    assert str(event.id) in record.getMessage()
    assert record.exc_info
    hooked.begin()
    hooked.add(outbox, Event("next"))
    hooked.commit()
    assert heard.names == ["told", "next"]


def test_a_commit_that_fails_is_not_told(hooked: Writer, outbox: Outbox, heard: Heard, observer: Observer) -> None:
    observer.rows("DROP TABLE IF EXISTS strict; CREATE TABLE strict (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    hooked.begin()
    hooked.add(outbox, Event("lost"))
    hooked.run("INSERT INTO strict VALUES (1), (1)")
    with pytest.raises(Exception, match="duplicate key"):
        hooked.commit()
    hooked.rollback()
    hooked.begin()
    hooked.add(outbox, Event("kept"))
    hooked.commit()
    assert heard.names == ["kept"]


def test_djangos_savepoints_by_hand(
    writer_of: Callable[[type[Writer]], Writer], outbox: Outbox, heard: Heard, observer: Observer
) -> None:
    """Its on_commit knows the savepoints of nested atomic blocks only; the rows go all the same."""
    writer = writer_of(DjangoWriter)
    alias = writer.handle.alias
    with transaction.atomic(using=alias):
        savepoint = transaction.savepoint(using=alias)
        outbox.add(writer.handle, Event("lost"))
        transaction.savepoint_rollback(savepoint, using=alias)
    assert observer.live() == []
    assert heard.names == ["lost, not committed"]


# -- Async hooks


def test_an_async_hook_is_awaited_within_the_commit(hooked: Writer, observer: Observer) -> None:
    heard = Heard(observer)

    async def hear(events: Events) -> None:
        heard(events)

    outbox = Outbox(after_commit=hear)
    hooked.begin()
    if hooked.is_async:
        hooked.add(outbox, Event("kept"))
        hooked.commit()
        assert heard.names == ["kept"]
        return
    # A blocking session says so when it is still time, and nothing was written.
    with pytest.raises(ConfigError, match="async function"):
        hooked.add(outbox, Event("kept"))
    hooked.commit()
    assert observer.live() == []


class AsyncCallable:
    async def __call__(self, _events: Events) -> None:
        """An object whose call is async."""


def test_an_async_object_is_seen_through_as_well(engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session, pytest.raises(ConfigError, match="async function"):
        Outbox(after_commit=AsyncCallable()).add(session, Event("order.placed"))


@pytest.mark.parametrize("kind", [SessionWriter, DjangoWriter], ids=lambda kind: kind.form)
def test_one_that_hides_it_is_logged_after_the_commit(
    writer_of: Callable[[type[Writer]], Writer],
    kind: type[Writer],
    observer: Observer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lambda shows only when it is called; the commit has happened then, so it is no error any more."""

    async def hear(_events: Events) -> None:
        """Never runs."""

    def hidden(events: Events) -> Awaitable[None]:
        return hear(events)

    writer = writer_of(kind)
    writer.begin()
    writer.add(Outbox(after_commit=hidden), Event("kept"))
    with caplog.at_level(logging.ERROR):
        writer.commit()
    assert len(observer.live()) == 1
    assert "this session is a blocking one" in caplog.text


async def test_an_async_hook_inside_run_sync(shop: Database, observer: Observer) -> None:
    """Blocking code under an AsyncSession: its commit can wait."""
    heard = Heard(observer)

    async def hear(events: Events) -> None:
        heard(events)

    outbox = Outbox(after_commit=hear)
    engine = create_async_engine(shop.url("asyncpg"))
    async with AsyncSession(engine) as session:
        await session.run_sync(lambda blocking: outbox.add(blocking, Event("kept")))
        await session.commit()
    await engine.dispose()
    assert heard.names == ["kept"]


def test_a_failing_async_hook_is_logged(
    writer_of: Callable[[type[Writer]], Writer], observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_events: Events) -> None:
        raise RuntimeError("no luck")

    writer = writer_of(AsyncSessionAsyncpgWriter)
    writer.add(Outbox(after_commit=fails), Event("kept"))
    writer.commit()
    assert len(observer.live()) == 1
    assert "no luck" in caplog.text


# -- Sessions that are not what they seem


def test_a_session_inside_somebody_elses_transaction_tells_nothing(
    engine: sqlalchemy.Engine, outbox: Outbox, heard: Heard, observer: Observer
) -> None:
    """The usual way to roll back whole tests: the session's commit is none."""
    for mode in ("conditional_savepoint", "create_savepoint", "rollback_only", "control_fully"):
        with engine.connect() as connection:
            transaction = connection.begin()
            with Session(bind=connection, join_transaction_mode=mode) as session:
                outbox.add(session, Event(mode))
                session.commit()
            if transaction.is_active:
                transaction.rollback()
    assert heard.names == ["control_fully"]  # the only one that commits the connection's transaction
    assert len(observer.live()) == 1


def test_a_hook_finds_the_connection_back_in_its_pool(shop: Database) -> None:
    """Or the smallest pool would be a deadlock, and a slow hook would keep connections from others."""
    engine = sqlalchemy.create_engine(shop.url("psycopg"), pool_size=1, max_overflow=0, pool_timeout=0.1)
    seen: list[int] = []

    def hear(_events: Events) -> None:
        with Session(engine) as own:
            seen.append(own.scalars(sqlalchemy.text("SELECT count(*) FROM oncommit.outbox")).one())

    with Session(engine) as session:
        Outbox(after_commit=hear).add(session, Event("kept"))
        session.commit()
    with Session(engine) as session, session.begin():
        Outbox(after_commit=hear).add(session, Event("kept"))
    engine.dispose()
    assert seen == [1, 2]


async def test_an_async_hook_finds_the_connection_back_in_its_pool(shop: Database) -> None:
    engine = create_async_engine(shop.url("asyncpg"), pool_size=1, max_overflow=0, pool_timeout=0.1)
    seen: list[int] = []

    async def hear(_events: Events) -> None:
        async with AsyncSession(engine) as own:
            seen.append((await own.scalars(sqlalchemy.text("SELECT count(*) FROM oncommit.outbox"))).one())

    async with AsyncSession(engine) as session, session.begin():
        await Outbox(after_commit=hear).add(session, Event("kept"))
    await engine.dispose()
    assert seen == [1]


def test_a_hook_may_use_the_session_again(engine: sqlalchemy.Engine, observer: Observer) -> None:
    names: list[str] = []

    def hear(events: Events) -> None:
        names.append(events[0].type)
        if len(names) < 3:
            outbox.add(session, Event(f"{names[-1]}+"))
            session.commit()

    outbox = Outbox(after_commit=hear)
    with Session(engine) as session:
        outbox.add(session, Event("a"))
        session.commit()
    assert names == ["a", "a+", "a++"]
    assert len(observer.live()) == 3


def test_a_commit_with_a_savepoint_still_open(engine: sqlalchemy.Engine, outbox: Outbox, heard: Heard) -> None:
    with Session(engine) as session:
        session.begin_nested()
        outbox.add(session, Event("inside"))
        session.commit()
        if session.in_transaction():
            session.commit()
        assert heard.names == ["inside"]


def test_a_sessions_memory_of_hooks_goes_with_it(engine: sqlalchemy.Engine, outbox: Outbox, heard: Heard) -> None:
    gone = []
    for _ in range(20):
        with Session(engine) as session:
            outbox.add(session, event := Event("kept"))
            session.commit()
            gone.append(weakref.ref(session))
    del session, event
    gc.collect()
    assert [reference for reference in gone if reference() is not None] == []
    assert heard.calls == 20


def test_a_connection_without_hooks_just_commits(shop: Database, outbox: Outbox, heard: Heard) -> None:
    with psycopg.connect(shop.dsn) as connection:
        outbox.add(connection, Event("found by the relay"))
    assert heard.calls == 0
