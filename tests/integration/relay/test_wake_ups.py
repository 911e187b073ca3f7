"""Wake-ups: each truly wakes a relay that would look in half a minute only, and what is lost of them costs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis

from oncommit import Event, Outbox
from oncommit.errors import ConfigError
from oncommit.relay.idle import Idle
from oncommit.relay.pace import Pace
from oncommit.relay.reader import Reader
from oncommit.relay.relay import Relay
from oncommit.relay.wake_ups import WakeUps
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer, Database, Server, pgbouncer
from oncommit.testing.servers import redis as redis_server
from tests.integration.relay.tools import QUICK, add, until

RARELY = 30.0
PATIENT = msgspec.structs.replace(QUICK, poll_busy=RARELY, poll_idle=RARELY, poll_woken=RARELY, maintenance=False)
DEAF = msgspec.structs.replace(PATIENT, listen=False)
_AT_REST: list[set[Idle]] = [set()]
SOON = 3.0
"""Seconds: far below what a look would take, far above what a wake-up does."""
NOT_SOON = 1.5


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def at_rest(monkeypatch: pytest.MonkeyPatch) -> set[Idle]:
    """Those that wait for something to do."""
    resting: set[Idle] = set()
    usual = Idle.wait

    async def wait(self: Idle, *arguments: Any) -> None:
        resting.add(self)
        try:
            await usual(self, *arguments)
        finally:
            resting.discard(self)

    monkeypatch.setattr(Idle, "wait", wait)
    _AT_REST[0] = resting
    return resting


async def listening(relay: Relay, *, works: bool = True) -> None:
    """Until its wake-ups arrive, and what it was woken for at the start has been looked for."""

    def is_ready() -> bool:
        waiting = {idle._wake for idle in _AT_REST[0]}
        return relay._sources.work == works and all(
            wake in waiting and not wake.is_set() and relay.sinks[sink].lanes.owned
            for sink, wake in relay._wakes.items()
        )

    async with asyncio.timeout(20):
        while not is_ready():  # noqa: ASYNC110 - several states at once have no event
            await asyncio.sleep(0.01)


async def arrives(broker: RecordingBroker, count: int, *, within: float = SOON) -> None:
    await broker.wait_for(count, timeout=within)


async def stays(broker: RecordingBroker, count: int) -> None:
    """Nobody looks: nothing more than this arrives."""
    with pytest.raises(TimeoutError):
        await broker.wait_for(count + 1, timeout=NOT_SOON)


async def notify(connection: Any, payload: str = "main", channel: str = "oncommit_wake") -> None:
    await connection.execute("SELECT pg_notify($1, $2)", channel, payload)


# -- LISTEN


async def test_a_notification_wakes(database: Database, connection: asyncpg.Connection) -> None:
    broker = RecordingBroker()
    async with Relay(database.dsn, {"main": broker}, settings=PATIENT) as relay:
        await listening(relay)
        await add(connection, "a")
        await stays(broker, 0)
        await notify(connection)
        await arrives(broker, 1)
        for number in range(2, 6):
            await add(connection, "a")
            await notify(connection, "" if number % 2 else "audit main")
            await arrives(broker, number)
        (series,) = relay.metrics.snapshot()["relay_wake_up_latency_seconds"].values()
        assert 1 <= series.count <= 5  # what is found by a read under way was told of by nobody
        assert 0 < series.value < 5 * SOON


async def test_only_the_sinks_that_are_named(database: Database, connection: asyncpg.Connection) -> None:
    main, audit = RecordingBroker(), RecordingBroker()
    async with Relay(database.dsn, {"main": main, "audit": audit}, settings=PATIENT) as relay:
        await listening(relay)
        await add(connection, "a", sink="main")
        await add(connection, "a", sink="audit")
        await notify(connection, "audit")
        await arrives(audit, 1)
        await notify(connection, "main", "somebody_elses")
        await notify(connection, "proof of nothing")
        await stays(main, 0)
        await notify(connection)
        await arrives(main, 1)


async def test_a_wake_up_during_a_publish_is_kept(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = RecordingBroker()
    found_nothing = asyncio.Event()
    usual = Reader.read

    async def read(self: Reader, *arguments: Any) -> Any:
        batch = await usual(self, *arguments)
        if batch is None and broker.publishing.is_set():
            found_nothing.set()
        return batch

    monkeypatch.setattr(Reader, "read", read)
    async with Relay(database.dsn, {"main": broker}, settings=PATIENT) as relay:
        await listening(relay)
        broker.hold()
        await add(connection, "a")
        await notify(connection)
        async with asyncio.timeout(SOON):
            await found_nothing.wait()  # the look beside the publish is over
        await add(connection, "b")
        await notify(connection)
        async with asyncio.timeout(SOON):
            await relay._wakes["main"].wait()
        broker.release()
        await arrives(broker, 2)


async def test_a_relay_that_does_not_listen(database: Database, connection: asyncpg.Connection) -> None:
    broker = RecordingBroker()
    async with Relay(database.dsn, {"main": broker}, settings=DEAF) as relay:
        await listening(relay, works=False)
        await add(connection, "a")
        await notify(connection)
        await stays(broker, 0)
        assert not relay._sources.work


async def test_a_listener_that_dies_comes_back_and_catches_up(
    database: Database, connection: asyncpg.Connection
) -> None:
    broker = RecordingBroker()
    async with Relay(database.dsn, {"main": broker}, settings=PATIENT) as relay:
        await listening(relay)
        await add(connection, "a")
        killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1"
        assert await connection.fetchval(killed, "oncommit relay listener") == 1
        await arrives(broker, 1, within=10)  # said by nobody: it looks for what it may have missed
        await listening(relay)
        await add(connection, "a")
        await notify(connection)
        await arrives(broker, 2)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when somebody begins a pause as long as trust in wake-ups allows."""
    event = asyncio.Event()
    usual = Pace.pause

    def pause(self: Pace, now: float, *, listening: bool) -> float:
        chosen = usual(self, now, listening=listening)
        if chosen == self._woken:
            event.set()
        return chosen

    monkeypatch.setattr(Pace, "pause", pause)
    return event


async def test_without_its_line_it_polls_and_with_it_again_it_listens(
    database: Database, connection: asyncpg.Connection, rests: asyncio.Event
) -> None:
    """Wake-ups were trusted before, so that it looked rarely."""
    broker = RecordingBroker()
    settings = msgspec.structs.replace(QUICK, poll_woken=RARELY, maintenance=False)
    with Proxy.to(database.dsn) as proxy:
        wake_ups = WakeUps(listen_database=proxy.through(database.dsn))
        async with Relay(database.dsn, {"main": broker}, settings=settings, wake_ups=wake_ups) as relay:
            await listening(relay)
            await add(connection, "a")
            await notify(connection)
            async with asyncio.timeout(SOON):
                await rests.wait()
            proxy.refuse()
            proxy.cut()
            for number in (2, 3):
                await add(connection, "a")  # the first in the pause that began with trust
                await arrives(broker, number)
            assert not relay._sources.work
            proxy.heal()
            await listening(relay)


async def test_what_was_said_while_it_did_not_listen(database: Database, connection: asyncpg.Connection) -> None:
    broker = RecordingBroker()
    with Proxy.to(database.dsn) as proxy:
        wake_ups = WakeUps(listen_database=proxy.through(database.dsn))
        async with Relay(database.dsn, {"main": broker}, settings=PATIENT, wake_ups=wake_ups) as relay:
            await listening(relay)
            proxy.refuse()
            proxy.cut()
            await listening(relay, works=False)
            await add(connection, "a")
            await notify(connection)
            await stays(broker, 0)
            proxy.heal()
            await arrives(broker, 1, within=10)


async def test_a_silent_line_is_noticed(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reset, no answer: only a proof from time to time tells."""
    monkeypatch.setattr("oncommit.relay.listener.CHECK_EVERY", 0.3)
    monkeypatch.setattr("oncommit.relay.listener.PROOF_TIMEOUT", 0.5)
    with Proxy.to(database.dsn) as proxy:
        wake_ups = WakeUps(listen_database=proxy.through(database.dsn))
        async with Relay(database.dsn, {"main": RecordingBroker()}, settings=PATIENT, wake_ups=wake_ups) as relay:
            await listening(relay)
            proxy.hold()
            await listening(relay, works=False)
            proxy.heal()
            await listening(relay)


async def test_a_writer_of_plain_sql_is_not_left_waiting(
    database: Database, connection: asyncpg.Connection, rests: asyncio.Event
) -> None:
    """Once wake-ups are trusted one such event may wait for a look; those behind it do not."""
    broker = RecordingBroker()
    settings = msgspec.structs.replace(QUICK, poll_woken=3.0, maintenance=False)
    async with Relay(database.dsn, {"main": broker}, settings=settings) as relay:
        await listening(relay)
        await add(connection, "a")
        await notify(connection)
        async with asyncio.timeout(SOON):
            await rests.wait()
        await add(connection, "a")
        await stays(broker, 1)
        await arrives(broker, 2)
        for number in (3, 4, 5):
            await add(connection, "a")
            await arrives(broker, number, within=1.0)


async def test_lanes_are_tended_while_it_waits(database: Database, connection: asyncpg.Connection) -> None:
    """Another relay gets its share within seconds, and its lanes come back when it ends."""
    first, second = RecordingBroker(), RecordingBroker()
    owners = "SELECT count(DISTINCT owner) FROM oncommit.outbox_lane"
    async with Relay(database.dsn, {"main": first}, settings=PATIENT) as relay:
        await listening(relay)
        async with Relay(database.dsn, {"main": second}, settings=PATIENT):
            await until(connection, owners, 2, timeout=6)
        await until(connection, owners, 1, timeout=6)
        await add(connection, "a")
        await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
        await arrives(first, 1)


async def test_delayed_events_wake_the_relay_that_has_their_lane(
    database: Database, connection: asyncpg.Connection
) -> None:
    """One relay moves them when they are due, and each has a part of the lanes."""
    brokers = [RecordingBroker(), RecordingBroker()]
    settings = msgspec.structs.replace(PATIENT, maintenance=True)
    relays = [Relay(database.dsn, {"main": broker}, settings=settings) for broker in brokers]
    async with relays[0], relays[1]:
        owners = "SELECT count(*) FROM (SELECT owner FROM oncommit.outbox_lane GROUP BY owner HAVING count(*) >= 30) o"
        await until(connection, owners, 2)
        for relay in relays:
            await listening(relay)
        due = datetime.now(UTC) + timedelta(seconds=1)
        events = [Event("t", key=f"key {number}", not_before=due) for number in range(40)]
        async with connection.transaction():
            await Outbox().add(connection, *events)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_archive", 40, timeout=1 + SOON)
        assert all(broker.messages for broker in brokers)


async def test_what_the_application_could_not_send_wakes(database: Database, connection: asyncpg.Connection) -> None:
    """An event that was sent behind its commit wakes nobody; one that was not is told of at once."""
    await connection.execute(f'ALTER DATABASE "{database.name}" SET synchronous_commit = on')
    relayed, own = RecordingBroker(), FailingBroker()
    async with (
        asyncpg.create_pool(database.dsn, min_size=2) as pool,
        Relay(database.dsn, {"main": relayed}, settings=PATIENT) as relay,
    ):
        await listening(relay)
        outbox = Outbox(after_commit=pool, broker=own)
        async with outbox.transaction(pool) as tx:
            await outbox.add(tx, Event("t"))
        await arrives(own, 1)
        own.down = True
        async with outbox.transaction(pool) as tx:
            await outbox.add(tx, Event("t"))
        await arrives(relayed, 1)
        assert outbox.optimistic is not None
        assert (outbox.optimistic.successes, outbox.optimistic.attempts) == (1, 2)
        await outbox.close()


# -- PgBouncer


@pytest.fixture
async def pooler(postgres: AnyServer) -> AsyncIterator[Server]:
    server = pgbouncer(postgres)
    await asyncio.to_thread(server.start)
    yield server
    await asyncio.to_thread(server.close)


def through(pooler: Server, database: Database) -> str:
    return pooler.url.rpartition("/")[0] + "/" + database.dsn.rpartition("/")[2]


async def test_a_pooler_is_noticed(
    database: Database, connection: asyncpg.Connection, pooler: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN succeeds there, and nothing is ever heard. So it polls, and the log says what to do."""
    caplog.set_level(logging.WARNING)
    broker = RecordingBroker()
    settings = msgspec.structs.replace(QUICK, poll_woken=RARELY, maintenance=False)
    async with Relay(through(pooler, database), {"main": broker}, settings=settings) as relay:
        async with asyncio.timeout(15):
            while "listen_database" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.02)
        assert not relay._sources.work
        for number in (1, 2):
            await add(connection, "a")
            await arrives(broker, number)


async def test_past_a_pooler_it_listens(database: Database, connection: asyncpg.Connection, pooler: Server) -> None:
    broker = RecordingBroker()
    wake_ups = WakeUps(listen_database=database.dsn)
    async with Relay(through(pooler, database), {"main": broker}, settings=PATIENT, wake_ups=wake_ups) as relay:
        await listening(relay)
        await add(connection, "a")
        writer = await asyncpg.connect(through(pooler, database), statement_cache_size=0)
        await notify(writer)
        await writer.close()
        await arrives(broker, 1)


async def test_another_database_is_no_place_to_listen(
    database: Database, empty_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    wake_ups = WakeUps(listen_database=empty_database.dsn)
    async with Relay(database.dsn, {"main": RecordingBroker()}, settings=PATIENT, wake_ups=wake_ups) as relay:
        async with asyncio.timeout(15):
            while "another server" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.02)
        assert not relay._sources.work


# -- Redis


async def test_a_list_in_redis_wakes(database: Database, connection: asyncpg.Connection, redis: Server) -> None:
    broker = RecordingBroker()
    client = Redis.from_url(redis.url)
    wake_ups = WakeUps(redis=redis.url, service="shop")
    async with Relay(database.dsn, {"main": broker}, settings=DEAF, wake_ups=wake_ups) as relay:
        await listening(relay)
        await add(connection, "a")
        await stays(broker, 0)
        await client.lpush("outbox:wake:shop", "main")
        await arrives(broker, 1)
        assert await client.exists("outbox:wake:shop") == 0
    await client.aclose()


async def test_one_entry_wakes_all_relays(database: Database, connection: asyncpg.Connection, redis: Server) -> None:
    """Each has a part of the lanes."""
    client = Redis.from_url(redis.url)
    wake_ups = WakeUps(redis=redis.url, service="shop")
    brokers = [RecordingBroker() for _ in range(3)]
    relays = [Relay(database.dsn, {"main": broker}, settings=DEAF, wake_ups=wake_ups) for broker in brokers]
    async with relays[0], relays[1], relays[2]:
        owners = "SELECT count(*) FROM (SELECT owner FROM oncommit.outbox_lane GROUP BY owner HAVING count(*) >= 21) o"
        await until(connection, owners, 3, timeout=20)
        for relay in relays:
            await listening(relay)
        async with asyncio.timeout(10):
            while any(relay._others() < 2 for relay in relays):  # noqa: ASYNC110 - seen when lanes are tended
                await asyncio.sleep(0.02)
        for number in range(60):
            await add(connection, f"key {number}")
        await client.lpush("outbox:wake:shop", "main")
        await until(connection, "SELECT count(*) FROM oncommit.outbox", timeout=SOON + 2)
        assert all(broker.messages for broker in brokers)
        assert await client.exists("outbox:wake:shop") == 0
    await client.aclose()


async def test_without_redis_it_polls_and_recovers(database: Database, connection: asyncpg.Connection) -> None:
    broker = RecordingBroker()
    settings = msgspec.structs.replace(QUICK, poll_woken=RARELY, listen=False, maintenance=False)
    with redis_server() as server:
        wake_ups = WakeUps(redis=server.url)
        async with Relay(database.dsn, {"main": broker}, settings=settings, wake_ups=wake_ups) as relay:
            await listening(relay)
            await add(connection, "a")
            async with Redis.from_url(server.url) as client:
                await client.lpush("outbox:wake:oncommit", "main")
            await arrives(broker, 1)
            await asyncio.to_thread(server.kill)
            await listening(relay, works=False)
            for number in (2, 3):
                await add(connection, "a")
                await arrives(broker, number)
            await asyncio.to_thread(server.start)
            await listening(relay)


def test_a_url_that_is_none_is_said_at_once(database: Database) -> None:
    for wake_ups in (WakeUps(redis="redis://:hush@host:port"), WakeUps(listen_database="mysql://app:hush@db/x")):
        with pytest.raises(ConfigError) as caught:
            Relay(database.dsn, {"main": RecordingBroker()}, wake_ups=wake_ups)
        assert "hush" not in str(caught.value)
        assert "hush" not in repr(wake_ups)
