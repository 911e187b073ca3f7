"""Who is woken by a commit, how often, and that no commit ever waits for it or fails by it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from redis import Redis
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncommit import Event, Outbox
from oncommit.errors import ConfigError
from oncommit.outbox import waker
from oncommit.outbox.wake import Wake, payload_of
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer, Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import HOOKED, Writer

SOON = 5.0
QUIET = 0.3
CHANNEL = "oncommit_wake"


class Ear:
    """Hears what is notified, on a connection of its own."""

    def __init__(self, dsn: str, channel: str = CHANNEL) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"LISTEN {channel}")

    def next(self, timeout: float = SOON) -> str | None:
        """The next word, or nothing within the time."""
        for word in self._connection.notifies(timeout=timeout, stop_after=1):
            return word.payload
        return None

    def all(self) -> list[str]:
        """All words until it is quiet."""
        words = []
        while (word := self.next(QUIET)) is not None:
            words.append(word)
        return words

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ear(shop: Database) -> Iterator[Ear]:
    made = Ear(shop.dsn)
    yield made
    made.close()


@pytest.fixture(params=HOOKED, ids=lambda kind: kind.form)
def hooked(request: pytest.FixtureRequest, writer_of: Callable[[type[Writer]], Writer]) -> Writer:
    return writer_of(request.param)


# -- Behind the commit


def test_a_commit_is_heard_and_a_rollback_is_not(hooked: Writer, shop: Database, ear: Ear, observer: Observer) -> None:
    """By way of a DSN, which serves every kind of session."""
    outbox = Outbox(after_commit=shop.dsn, sinks=("main", "audit"))
    hooked.begin()
    hooked.add(outbox, Event("lost"))
    hooked.rollback()
    assert ear.next(QUIET) is None
    hooked.begin()
    hooked.add(outbox, Event("kept"), Event("kept", sink="audit"))
    assert ear.next(QUIET) is None
    hooked.commit()
    assert ear.next() == "audit main"
    assert len(observer.live()) == 2
    outbox.close_blocking()


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_blocking_pools(shop: Database, ear: Ear, kind: str) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    with ConnectionPool(shop.dsn, min_size=1, open=True) as pool:
        through: Any = pool if kind == "psycopg" else engine
        outbox = Outbox(after_commit=through)
        with outbox.transaction(through) as connection:
            outbox.add(connection, Event("kept"))
        assert ear.next() == "main"
        outbox.close_blocking()
    engine.dispose()


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "sqlalchemy"])
async def test_asyncio_pools(shop: Database, ear: Ear, kind: str) -> None:
    engine = create_async_engine(shop.url("asyncpg"))
    async with asyncpg.create_pool(shop.dsn, min_size=1) as pool, AsyncConnectionPool(shop.dsn, open=False) as other:
        through: Any = {"asyncpg": pool, "psycopg": other, "sqlalchemy": engine}[kind]
        outbox = Outbox(after_commit=through)
        async with outbox.transaction(through) as connection:
            await outbox.add(connection, Event("kept"))
        assert await asyncio.to_thread(ear.next) == "main"
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add(session, Event("kept"))
        assert await asyncio.to_thread(ear.next) == "main"
        await outbox.close()
    await engine.dispose()


async def test_many_commits_are_told_of_by_few_words(shop: Database, ear: Ear) -> None:
    """And each by one that went out after it."""
    outbox = Outbox(after_commit=shop.dsn, wake=Wake(every=0.25))
    async with asyncpg.create_pool(shop.dsn, min_size=4, max_size=4) as pool:

        async def write() -> None:
            for _ in range(20):
                async with outbox.transaction(pool) as connection:
                    await outbox.add(connection, Event("kept"))

        await asyncio.gather(*[write() for _ in range(4)])
        words = await asyncio.to_thread(ear.all)
    assert words[0] == "main"
    assert 2 <= len(words) <= 20
    await outbox.close()


def test_the_last_commit_is_always_told_of(shop: Database, ear: Ear) -> None:
    """It comes while a word is out, or in the pause behind it; whoever listens looks after the word."""
    outbox = Outbox(after_commit=shop.dsn, wake=Wake(every=0.2))
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    for _ in range(5):
        for _ in range(3):
            with Session(engine) as session, session.begin():
                outbox.add(session, Event("kept"))
        seen = 0
        with engine.connect() as looking:
            committed = looking.execute(sqlalchemy.text("SELECT count(*) FROM oncommit.outbox")).scalar_one()
            while ear.next(SOON) is not None:
                looking.rollback()
                seen = looking.execute(sqlalchemy.text("SELECT count(*) FROM oncommit.outbox")).scalar_one()
                if seen == committed:
                    break
        assert seen == committed
        ear.all()
    engine.dispose()
    outbox.close_blocking()


def test_a_commit_waits_for_nobody(shop: Database, ear: Ear, observer: Observer) -> None:
    """The pool is exhausted, by the very transaction."""
    engine = sqlalchemy.create_engine(shop.url("psycopg"), pool_size=1, max_overflow=0, pool_timeout=0.1)
    outbox = Outbox(after_commit=engine)
    with Session(engine) as session:
        outbox.add(session, Event("kept"))
        session.commit()
        held = session.connection()
        assert len(observer.live()) == 1
        assert held is not None
        session.rollback()
    outbox.close_blocking()
    engine.dispose()


def test_a_server_that_is_away_costs_a_warning_and_is_tried_again(
    shop: Database, ear: Ear, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker, "_FIRST_PAUSE", 0.1)
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    caplog.set_level(logging.WARNING)
    with Proxy.to(shop.dsn) as proxy:
        outbox = Outbox(wake=Wake(through=proxy.through(shop.dsn)))
        proxy.refuse()
        for _ in range(3):
            with Session(engine) as session, session.begin():
                outbox.add(session, Event("kept"))
        assert ear.next(1.0) is None
        proxy.heal()
        with Session(engine) as session, session.begin():
            outbox.add(session, Event("kept"))
        assert ear.next(SOON) == "main"
        outbox.close_blocking()
    engine.dispose()
    assert len([record for record in caplog.records if "cannot be woken" in record.getMessage()]) == 1


def test_an_asyncio_pool_cannot_serve_blocking_sessions(
    shop: Database, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    """They commit all the same, and the log says what to do, once."""
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    outbox = Outbox(after_commit=create_async_engine(shop.url("asyncpg")))
    for _ in range(2):
        with Session(engine) as session, session.begin():
            outbox.add(session, Event("kept"))
    assert ear.next(QUIET) is None
    assert caplog.text.count("Wake(through=dsn)") == 1
    engine.dispose()


def test_nobody_is_woken_where_that_is_asked_for(shop: Database, ear: Ear) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    before = threading.active_count()
    for outbox in (Outbox(after_commit=shop.dsn, wake=False), Outbox(), Outbox(after_commit=lambda _events: None)):
        with Session(engine) as session, session.begin():
            outbox.add(session, Event("kept"))
    assert ear.next(QUIET) is None
    assert threading.active_count() == before
    engine.dispose()


def test_each_schema_has_its_channel(shop: Database) -> None:
    ear = Ear(shop.dsn, "other_wake")
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS other CASCADE")
    from oncommit.db.migrate import migrate

    asyncio.run(migrate(shop.dsn, "other"))
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    outbox = Outbox(after_commit=shop.dsn, schema="other")
    with Session(engine) as session, session.begin():
        outbox.add(session, Event("kept"))
    assert ear.next() == "main"
    outbox.close_blocking()
    engine.dispose()
    ear.close()
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA other CASCADE")


# -- In the transaction


def test_from_within_the_transaction(writer: Writer, ear: Ear) -> None:
    """With every kind of connection; a rollback takes it along."""
    outbox = Outbox(wake=Wake(in_transaction=True), sinks=("main", "audit"))
    writer.begin()
    writer.add(outbox, Event("lost"))
    writer.rollback()
    writer.begin()
    event = Event("kept", sink="audit")
    writer.add(outbox, event)
    assert ear.next(QUIET) is None
    writer.commit()
    assert ear.next() == "audit"
    writer.begin()
    writer.add(outbox, event)  # it is there already
    writer.commit()
    assert ear.next(QUIET) is None


# -- Redis


def test_a_list_in_redis_is_short_and_expires(shop: Database, oncommit_redis: AnyServer) -> None:
    engine = sqlalchemy.create_engine(shop.url("psycopg"))
    outbox = Outbox(wake=Wake(redis=oncommit_redis.url, service="shop-test", every=0.001))
    with Redis.from_url(oncommit_redis.url) as client:
        client.delete("outbox:wake:shop-test")
        for _ in range(3):
            with Session(engine) as session, session.begin():
                outbox.add(session, Event("kept"))
            assert client.blpop(["outbox:wake:shop-test"], timeout=SOON) == (b"outbox:wake:shop-test", b"main")
        client.lpush("outbox:wake:shop-test", *["main"] * 50)
        with Session(engine) as session, session.begin():
            outbox.add(session, Event("kept"))
        outbox.close_blocking()
        assert client.llen("outbox:wake:shop-test") == 10
        assert 0 < client.ttl("outbox:wake:shop-test") <= 60
    engine.dispose()


# -- Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"through": 5},
        {"through": "postgresql://app:hush@db/shop", "redis": "redis://:hush@host"},
        {"redis": "redis://:hush@host", "in_transaction": True},
        {"redis": "redis://:hush@host", "service": "a b"},
        {"every": 0},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Wake(**wrong)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("wake", [{"redis": "redis://:hush@host:port"}, {"through": "mysql://app:hush@db/shop"}])
def test_addresses_that_are_none_are_said_at_once(wake: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Outbox(wake=Wake(**wake))
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(Wake(**wake))


def test_too_many_sinks_for_one_word_are_all_of_them() -> None:
    assert payload_of(frozenset({"b", "a"})) == "a b"
    assert payload_of(frozenset(f"sink-{number:04}" for number in range(2000))) == ""
