"""A broker that is away for twenty minutes, by the relay's clock and the database's: nobody has to do anything."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from oncommit.errors import BrokerUnavailable
from oncommit.relay import relay as relay_module
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.relay.sink import SinkRelay
from oncommit.testing.brokers import FailingBroker
from oncommit.testing.servers import Database
from tests.integration.relay.tools import add, drained, for_a_while, until

MINUTES = 20
STEP = 5.0
"""Seconds by which time goes on at once; less than the lease."""


class Time:
    """What the relay's loop takes for the time. The database's runs beside it, since leases hang on both."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """The database's clock reads a table that the test turns on."""
    connection = await asyncpg.connect(database.dsn)
    await connection.execute(
        "CREATE TABLE public.ahead (seconds float8); INSERT INTO public.ahead VALUES (0);"
        "CREATE OR REPLACE FUNCTION oncommit.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS"
        " 'SELECT pg_catalog.statement_timestamp() + make_interval(secs => (SELECT seconds FROM public.ahead))'"
    )
    yield connection
    await connection.close()


class Away(FailingBroker):
    """Counts how often it was asked while it was away."""

    probes = 0

    async def ping(self) -> None:
        self.probes += self.down
        await super().ping()

    async def publish(self, batch: Any, *, timeout: float) -> Any:
        if self.down:
            return [BrokerUnavailable("away")] * len(batch)
        return await super().publish(batch, timeout=timeout)


async def test_twenty_minutes_without_a_broker(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time()

    def with_clock(*args: Any, **named: Any) -> SinkRelay:
        return SinkRelay(*args, **named, clock=clock)

    monkeypatch.setattr(relay_module, "SinkRelay", with_clock)
    broker = Away()
    settings = RelaySettings(lease=30.0, poll_busy=0.01)  # the circuit and the retries as they are in life
    async with Relay(database.dsn, {"main": broker}, settings=settings):
        events = await add(connection, "a", 3)
        await drained(connection)
        broker.down = True
        events += await add(connection, "a", 3) + await add(connection, "b", 3)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1)
        for _ in range(int(MINUTES * 60 / STEP)):
            clock.ahead += STEP
            await connection.execute("UPDATE public.ahead SET seconds = $1", clock.ahead)
            await for_a_while(0.03)
        events += await add(connection, "c", 3)
        assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox WHERE state = 'pending'") == 9
        assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox") == 0
        probes = broker.probes
        broker.down = False
        clock.ahead += 60.0  # the longest pause between two looks is half of that
        await connection.execute("UPDATE public.ahead SET seconds = $1", clock.ahead)
        await drained(connection)
    assert sorted(broker.ids) == sorted(events)
    assert len(set(broker.ids)) == len(broker.ids)
    assert probes > 3, "it has looked again and again"
    assert await connection.fetchval("SELECT count(*) FROM oncommit.dead_letter") == 0
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
