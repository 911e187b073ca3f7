"""Every form of session that tells of its commit, with every kind of pool: the event is sent and settled."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from nats.js.client import JetStreamContext
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncommit import Event, Optimistic, Outbox
from oncommit.contrib.sqlalchemy import UnitOfWork
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import AnyServer, Database, pgbouncer
from tests.integration.optimistic.tools import World
from tests.integration.outbox.writers import HOOKED, DjangoWriter, Writer

BLOCKING = Optimistic(limit=5.0)


def placed(name: str = "placed", key: str | None = "k", **more: object) -> Event:
    return Event(name, key=key, **more)


@pytest.fixture(params=HOOKED, ids=lambda kind: kind.form)
def writer(request: pytest.FixtureRequest, plain: Database) -> Iterator[Writer]:
    made: Writer = request.param(plain.dsn)
    yield made
    made.close()


def archived(database: Database) -> list[str]:
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute("SELECT event_type FROM oncommit.outbox_archive ORDER BY id").fetchall()
    return [name for (name,) in rows]


def taken(outbox: Outbox, count: int) -> None:
    """Until the thread is done with so many."""
    stats = outbox.optimistic
    assert stats is not None
    deadline = time.monotonic() + 15
    while stats.attempts < count and time.monotonic() < deadline:
        time.sleep(0.005)
    assert (stats.successes, dict(stats.failures)) == (count, {})


def test_every_session_with_a_dsn(writer: Writer, plain: Database) -> None:
    """A thread of our own sends, also for an asyncio session."""
    broker = RecordingBroker()
    outbox = Outbox(after_commit=plain.dsn, broker=broker, optimistic=BLOCKING)
    for number, name in enumerate(("one", "two", "three"), start=1):
        writer.begin()
        writer.add(outbox, placed(name), placed(f"{name} more"))
        writer.commit()
        writer.begin()
        writer.add(outbox, placed("lost"))
        writer.rollback()
        taken(outbox, 2 * number)
    outbox.close_blocking()
    sent = ["one", "one more", "two", "two more", "three", "three more"]
    assert [message.topic.removeprefix("events.") for message in broker.messages] == sent
    assert archived(plain) == sent


def test_a_savepoint_that_is_rolled_back_is_not_sent(writer: Writer, plain: Database) -> None:
    broker = RecordingBroker()
    outbox = Outbox(after_commit=plain.dsn, broker=broker, optimistic=BLOCKING)
    writer.begin()
    writer.savepoint()
    writer.add(outbox, placed("lost"))
    writer.rollback_to()
    writer.savepoint()
    writer.add(outbox, placed("kept", "x"))
    writer.release()
    writer.commit()
    taken(outbox, 1)
    outbox.close_blocking()
    assert archived(plain) == ["kept"]


def kinds() -> dict[str, Callable[[Database], Any]]:
    return {
        "psycopg_pool": lambda database: psycopg_pool.ConnectionPool(database.dsn, min_size=1, max_size=3, open=True),
        "psycopg_null_pool": lambda database: psycopg_pool.NullConnectionPool(database.dsn, max_size=3, open=True),
        "engine": lambda database: sqlalchemy.create_engine(database.url("psycopg")),
    }


@pytest.mark.parametrize("kind", kinds())
def test_blocking_pools(kind: str, plain: Database) -> None:
    pool = kinds()[kind](plain)
    broker = RecordingBroker()
    outbox = Outbox(after_commit=pool, broker=broker, optimistic=BLOCKING)
    for number, name in enumerate(("one", "two"), start=1):
        with outbox.transaction(pool) as connection:
            outbox.add(connection, placed(name))
        taken(outbox, number)
    outbox.close_blocking()
    (pool.close if hasattr(pool, "close") else pool.dispose)()
    assert archived(plain) == ["one", "two"]


def async_kinds() -> dict[str, Callable[[Database], Any]]:
    return {
        "asyncpg": lambda database: asyncpg.create_pool(database.dsn, min_size=1, max_size=3),
        "psycopg_pool": lambda database: psycopg_pool.AsyncConnectionPool(
            database.dsn, min_size=1, max_size=3, open=False
        ),
        "engine-asyncpg": lambda database: create_async_engine(database.url("asyncpg")),
        "engine-psycopg": lambda database: create_async_engine(database.url("psycopg")),
    }


@pytest.mark.parametrize("kind", async_kinds())
async def test_asyncio_pools(kind: str, plain: Database) -> None:
    pool = async_kinds()[kind](plain)
    if kind == "asyncpg":
        pool = await pool
    elif kind == "psycopg_pool":
        await pool.open()
    broker = RecordingBroker()
    outbox = Outbox(after_commit=pool, broker=broker, optimistic=BLOCKING)
    for name in ("one", "two"):
        async with outbox.transaction(pool) as connection:
            await outbox.add(connection, placed(name, name), placed(name + "+", name))
    await outbox.close()
    await (pool.close if hasattr(pool, "close") else pool.dispose)()
    stats = outbox.optimistic
    assert stats is not None
    assert (stats.successes, dict(stats.failures)) == (4, {})
    assert sorted(archived(plain)) == ["one", "one+", "two", "two+"]


async def test_a_blocking_session_beside_a_pool_of_asyncio_is_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = world.outbox()
    engine = sqlalchemy.create_engine(world.dsn.replace("postgresql://", "postgresql+psycopg://"))

    def work() -> None:
        for _ in range(3):
            with Session(engine) as session, session.begin():
                outbox.add(session, placed())

    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(work)
    engine.dispose()
    assert await world.states() == ["pending"] * 3
    assert caplog.text.count("are left to the relay") == 1


def test_a_session_in_somebody_elses_transaction_is_left_to_the_relay(plain: Database) -> None:
    engine = sqlalchemy.create_engine(plain.url("psycopg"))
    outbox = Outbox(after_commit=engine, broker=RecordingBroker(), optimistic=BLOCKING)
    with engine.begin() as connection, Session(bind=connection) as session:
        outbox.add(session, placed())
        session.commit()
        states = connection.execute(sqlalchemy.text("SELECT state FROM oncommit.outbox")).scalars().all()
    assert states == ["pending"]
    outbox.close_blocking()
    engine.dispose()


def test_a_two_phase_commit_is_sent_when_it_is_whole(plain: Database) -> None:
    engine = sqlalchemy.create_engine(plain.url("psycopg"))
    broker = RecordingBroker()
    outbox = Outbox(after_commit=plain.dsn, broker=broker, optimistic=BLOCKING)
    with Session(engine, twophase=True) as session:
        outbox.add(session, placed("kept"))
        session.prepare()
        assert broker.messages == []
        session.commit()
    taken(outbox, 1)
    outbox.close_blocking()
    engine.dispose()
    assert archived(plain) == ["kept"]


async def test_an_async_session_with_the_smallest_engine(plain: Database) -> None:
    """Its only connection is back before it is needed."""
    engine = create_async_engine(plain.url("asyncpg"), pool_size=1, max_overflow=0)
    broker = RecordingBroker()
    outbox = Outbox(after_commit=engine, broker=broker, optimistic=BLOCKING)
    for name in ("one", "two"):
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add(session, placed(name, name))
    await outbox.close()
    await engine.dispose()
    assert sorted(archived(plain)) == ["one", "two"]


def test_another_event_loop_leaves_it_to_the_relay(plain: Database) -> None:
    """An outbox that two loops share, one after the other, with a pool of the first."""
    broker = RecordingBroker()
    made: list[Outbox] = []

    async def work() -> None:
        pool = await asyncpg.create_pool(plain.dsn, min_size=1, max_size=2)
        outbox = made[0] if made else Outbox(after_commit=pool, broker=broker, optimistic=BLOCKING)
        made.append(outbox)
        async with outbox.transaction(pool) as connection:
            await outbox.add(connection, placed("x", f"k{len(made)}"))
        if len(made) == 1:
            await broker.wait_for(1)
            while outbox.optimistic is None or not outbox.optimistic.successes:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.005)
        await pool.close()

    asyncio.run(work())
    asyncio.run(work())
    assert made[0].optimistic is not None
    assert dict(made[0].optimistic.failures) == {"stopped": 1}


FORKS = """
import os, sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from oncommit import Event, Outbox, Optimistic

dsn, broker = sys.argv[1:]
outbox = Outbox(after_commit=dsn, broker=broker, optimistic=Optimistic(limit=10.0))

def add(name):
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    before = outbox.optimistic.successes
    with Session(engine) as session, session.begin():
        outbox.add(session, Event(name, key=name))
    engine.dispose()
    deadline = time.monotonic() + 20
    while outbox.optimistic.successes == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert outbox.optimistic.successes == before + 1, outbox.optimistic.__dict__

add("events.parent")
child = os.fork()
if not child:
    try:
        add("events.child")
        outbox.close_blocking()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
_, status = os.waitpid(child, 0)
add("events.parent.again")
outbox.close_blocking()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> Any:
    import nats

    client = await nats.connect(oncommit_nats.url)
    jetstream: JetStreamContext = client.jetstream()
    await jetstream.add_stream(name="optimistic", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("optimistic")
    await client.close()


async def test_a_forked_child_sends_by_itself(
    plain: Database, stream: JetStreamContext, oncommit_nats: AnyServer, tmp_path: Path
) -> None:
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(program), plain.dsn, oncommit_nats.url]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, timeout=60, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert archived(plain) == ["events.parent", "events.child", "events.parent.again"]
    assert (await stream.stream_info("optimistic")).state.messages == 3


def test_a_process_that_just_ends_ends(plain: Database, oncommit_nats: AnyServer, tmp_path: Path) -> None:
    """Nobody closed the outbox: nothing hangs, and the relay has the rest."""
    program = tmp_path / "ends.py"
    program.write_text(FORKS.split('add("events.parent")', maxsplit=1)[0] + 'add("events.ends")\n')
    command = [sys.executable, str(program), plain.dsn, oncommit_nats.url]
    began = time.monotonic()
    subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert time.monotonic() - began < 40


def test_django_is_among_them() -> None:
    assert DjangoWriter in HOOKED


async def test_a_unit_of_work_sends_too(world: World) -> None:
    engine = create_async_engine(world.dsn.replace("postgresql://", "postgresql+asyncpg://"))
    outbox = world.outbox(pool=engine)
    unit = UnitOfWork(outbox)
    async with AsyncSession(engine) as session, session.begin():
        unit.collect(session, placed("collected"), placed("too"))
    await world.finished(2)
    await outbox.close()
    await engine.dispose()
    assert world.arrived == ["collected", "too"]


async def test_through_a_pooler_in_transaction_mode(world: World, plain: Database) -> None:
    with pgbouncer(plain.server, settings={"default_pool_size": "4"}) as pooler:
        dsn = urlsplit(pooler.dsn)._replace(path=f"/{plain.name}").geturl()
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=6, statement_cache_size=0)
        for after_commit in (pool, dsn):
            outbox = world.outbox(pool=after_commit)
            for number in range(10):
                await world.add(outbox, placed(f"n{number}", f"k{number}"))
                async with outbox.transaction(pool) as connection:
                    await outbox.add(connection, placed("pooled", f"p{number}"))
            await outbox.close()
            assert outbox.optimistic is not None
            assert outbox.optimistic.successes >= 10
            assert dict(outbox.optimistic.failures) == {}
        await pool.close()
