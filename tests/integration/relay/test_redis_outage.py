"""From rows to Redis, killed in the middle: in order of each key, none lost, no attempt spent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from oncommit.brokers.redis import RedisBroker
from oncommit.relay.relay import Relay
from oncommit.testing.servers import Database, Server
from oncommit.testing.servers import redis as redis_server
from tests.integration.relay.tools import QUICK, add, drained, until

KEYS = 8
KILLS = 3
SMALL = msgspec.structs.replace(QUICK, batch_rows=40)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = redis_server(durable=True)
    await asyncio.to_thread(server.start)
    yield server
    await asyncio.to_thread(server.close)


async def entries(server: Server, stream: str) -> list[dict[str, str]]:
    async with Redis.from_url(server.url, decode_responses=True) as client:
        return [fields for _, fields in await client.xrange(stream)]


async def write(connection: Any, rounds: int) -> dict[str, list[str]]:
    """Events of several keys, one after the other; two types, so that each key goes to two streams."""
    written: dict[str, list[str]] = {f"key {number}": [] for number in range(KEYS)}
    for place in range(rounds):
        for key in written:
            written[key] += await add(connection, key, event_type=f"type-{place % 2}")
    return written


async def test_killed_and_started_again_it_has_everything_in_order(database: Database, server: Server) -> None:
    connection, writing = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    async with Relay(database.dsn, {"main": RedisBroker(server.url)}, settings=SMALL) as relay:
        writer = asyncio.create_task(write(writing, 120))
        for _ in range(KILLS):
            sent = relay.sinks["main"].sent
            async with asyncio.timeout(30):
                while relay.sinks["main"].sent < sent + 50 and not writer.done():  # noqa: ASYNC110 - a count
                    await asyncio.sleep(0.005)
            await asyncio.to_thread(server.kill)
            await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1)
            await asyncio.to_thread(server.start)
            await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{main}'", 1)
        written = await writer
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    assert await connection.fetchval("SELECT count(*) FROM oncommit.dead_letter") == 0
    arrived: dict[tuple[str, int], list[str]] = {}
    for number in (0, 1):
        for fields in await entries(server, f"events.type-{number}"):
            arrived.setdefault((fields["ce-partitionkey"], number), []).append(fields["message_id"])
    for key, ids in written.items():
        for number in (0, 1):
            assert list(dict.fromkeys(arrived[key, number])) == ids[number::2], f"{key} in stream {number}"
    # At most what was in flight came twice, once a kill.
    assert sum(map(len, arrived.values())) <= KEYS * 120 + KILLS * 2 * SMALL.batch_rows
    await connection.close()
    await writing.close()


async def test_a_server_that_hangs_spends_no_attempt(database: Database, server: Server) -> None:
    connection = await asyncpg.connect(database.dsn)
    hasty = msgspec.structs.replace(QUICK, publish_timeout=0.5)
    async with Relay(database.dsn, {"main": RedisBroker(server.url)}, settings=hasty):
        await add(connection, "a", 1)
        await drained(connection)
        server.pause()
        ids = await add(connection, "a", 3)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1, timeout=20)
        server.resume()
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    arrived = dict.fromkeys(fields["message_id"] for fields in await entries(server, "events.t"))
    assert list(arrived)[1:] == ids
    await connection.close()


async def test_a_full_server_spends_no_attempt(database: Database, server: Server) -> None:
    connection = await asyncpg.connect(database.dsn)
    async with (
        Redis.from_url(server.url, decode_responses=True) as client,
        Relay(database.dsn, {"main": RedisBroker(server.url)}, settings=QUICK),
    ):
        await add(connection, "a", 1)
        await drained(connection)
        await client.config_set("maxmemory", 1)
        with pytest.raises(RedisError, match="maxmemory"):
            await client.xadd("other", {"a": "b"})
        await add(connection, "a", 3)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1)
        await client.config_set("maxmemory", 0)
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    assert len(await entries(server, "events.t")) == 4
    await connection.close()


async def test_a_stream_that_is_none_holds_up_only_its_keys(database: Database, server: Server) -> None:
    """And what follows in the same key waits, though its own stream is fine."""
    connection = await asyncpg.connect(database.dsn)
    async with Redis.from_url(server.url, decode_responses=True) as client:
        await client.set("events.wrong", "a string")
        async with Relay(database.dsn, {"main": RedisBroker(server.url)}, settings=QUICK):
            held = await add(connection, "a", 1, event_type="wrong") + await add(connection, "a", 2)
            free = await add(connection, "b", 2)
            await until(connection, "SELECT count(*) FROM oncommit.outbox", 3)
            assert [fields["message_id"] for fields in await entries(server, "events.t")] == free
            await client.delete("events.wrong")
            await drained(connection)
    assert [fields["message_id"] for fields in await entries(server, "events.t")] == free + held[1:]
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    await connection.close()
