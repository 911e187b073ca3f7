"""Relays through the real PgBouncer in transaction mode, where no two statements need meet the same server."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit import Event, Outbox
from oncommit.brokers.nats import NatsBroker
from oncommit.db.dsn import open_connection
from oncommit.relay.local import LocalBroker
from oncommit.relay.relay import Relay
from oncommit.testing.servers import AnyServer, Database, pgbouncer
from tests.integration.cli.test_relay_command import Program
from tests.integration.relay.tools import QUICK, drained, until

KEYS = 8
SERVERS = 3
OWNERS = "SELECT count(DISTINCT owner) FROM oncommit.outbox_lane"


@pytest.fixture
def pooled(any_database: Database) -> Iterator[str]:
    """The database's DSN through a pooler that has few servers to lend."""
    settings = {"default_pool_size": str(SERVERS), "server_lifetime": "1", "query_wait_timeout": "5"}
    with pgbouncer(any_database.server, settings=settings) as pooler:
        yield urlsplit(pooler.dsn)._replace(path=f"/{any_database.name}").geturl()


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    """Past the pooler."""
    connection = await asyncpg.connect(any_database.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="pooled", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("pooled")
    await client.close()


async def first_arrivals(stream: JetStreamContext) -> list[str]:
    """The ids in the stream, each where it came first."""
    last = (await stream.stream_info("pooled")).state.last_seq
    found = [await stream.get_msg("pooled", seq) for seq in range(1, last + 1)]
    return list(dict.fromkeys((message.headers or {})["message_id"] for message in found))


async def write(dsn: str, rounds: int) -> list[tuple[int, str]]:
    """Key and id of events, each round a transaction, through the pooler."""
    written: list[tuple[int, str]] = []
    outbox = Outbox()
    async with open_connection(dsn) as connection:
        for _ in range(rounds):
            events = [Event("order.placed", aggregate=("order", key), payload={}) for key in range(KEYS)]
            async with connection.transaction():
                await outbox.add(connection, *events)
            written += [(key, str(event.id)) for key, event in enumerate(events)]
    return written


async def test_two_relays_one_of_which_is_killed(
    pooled: str, connection: asyncpg.Connection, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    arguments = ("--database", pooled, "--broker", oncommit_nats.url, "--lease", "2", "--statement-timeout", "1.5")
    relays = [Program(*arguments, "--batch-rows", "20", "--name", name) for name in ("one", "two")]
    try:
        for relay in relays:
            await asyncio.to_thread(relay.says, "serves main")
        await until(connection, OWNERS, 2)
        written = await write(pooled, 20)
        relays[0].process.kill()
        written += await write(pooled, 20)
        await until(connection, OWNERS, 1, timeout=30.0)
        await drained(connection)
        relays[1].process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(relays[1].ends) == 0
    finally:
        for relay in relays:
            if relay.process.poll() is None:
                relay.process.kill()
            relay.process.wait()
    arrived = await first_arrivals(stream)
    assert Counter(arrived) == Counter(one for _, one in written)
    for key in range(KEYS):
        mine = [one for its, one in written if its == key]
        assert [one for one in arrived if one in set(mine)] == mine
    assert not [line for line in relays[1].rest() if "prepared statement" in line or " ERROR " in line]


async def test_handlers_in_the_database(pooled: str, connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE TABLE effects (event_id uuid)")

    async def handle(event: Event, its: asyncpg.Connection) -> None:
        await its.execute("INSERT INTO effects VALUES ($1)", event.id)

    written = await write(pooled, 5)
    async with Relay(pooled, {"main": LocalBroker({"order.placed": handle}, connections=2)}, settings=QUICK):
        await drained(connection)
    effects = [str(row[0]) for row in await connection.fetch("SELECT event_id FROM effects")]
    assert Counter(effects) == Counter(one for _, one in written)


async def test_a_relay_has_few_connections_and_always_as_many(
    any_database: Database, connection: asyncpg.Connection, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    """As the guide says: one each for the lease, maintenance and listening, two for each sink; and handlers'."""
    brokers = {
        "main": NatsBroker(oncommit_nats.url),
        "local": LocalBroker({"noted": _nothing}, connections=3),
    }
    relays = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'oncommit relay%'
          AND application_name NOT LIKE '%housekeeping%'
    """
    outbox = Outbox(sinks={"main", "local"})
    async with Relay(any_database.dsn, brokers, settings=QUICK):
        for _ in range(3):
            async with connection.transaction():
                for number in range(50):
                    sink = "local" if number % 2 else "main"
                    await outbox.add(connection, Event("noted", key=str(number), payload={}, sink=sink))
            await drained(connection)
        await until(connection, relays, 3 + 2 * len(brokers) + 3)
    await until(connection, relays, 0)


async def _nothing(_event: Event, _connection: asyncpg.Connection) -> None:
    """Handled."""
