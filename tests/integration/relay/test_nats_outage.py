"""NATS goes away with a batch in flight, and comes back: no attempt is spent, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import nats
import pytest

from oncommit.brokers.nats import NatsBroker
from oncommit.relay.relay import Relay
from oncommit.testing.servers import Database
from oncommit.testing.servers import nats as nats_server
from oncommit.testing.servers.server import Server
from tests.integration.relay.tools import QUICK, add, drained, until

HASTY = msgspec.structs.replace(QUICK, publish_timeout=0.5)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await asyncio.to_thread(nats_server().__enter__)
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="events", subjects=["events.>"])
    await client.close()
    yield server
    await asyncio.to_thread(server.close)


async def test_an_outage_spends_no_attempt(database: Database, server: Server) -> None:
    connection = await asyncpg.connect(database.dsn)
    async with Relay(database.dsn, {"main": NatsBroker(server.url)}, settings=QUICK):
        await add(connection, "a", 3)
        await drained(connection)
        await asyncio.to_thread(server.kill)
        await add(connection, "a", 3)
        await add(connection, "b", 3)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1)
        await asyncio.to_thread(server.start)
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == 9
    await connection.close()


async def test_a_server_that_hangs_spends_no_attempt(database: Database, server: Server) -> None:
    connection = await asyncpg.connect(database.dsn)
    async with Relay(database.dsn, {"main": NatsBroker(server.url)}, settings=HASTY):
        await add(connection, "a", 1)
        await drained(connection)
        server.pause()
        await add(connection, "a", 3)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1, timeout=20)
        server.resume()
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    await connection.close()
