"""What a relay has read is on disk before it hears of it: PostgreSQL itself is killed, right after.

With `synchronous_commit = off` a writer is told that his transaction has committed before it is on disk; readers see
it, and a crash takes it back. An event of his that had been published by then would be a phantom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from oncommit.db.migrate import migrate
from oncommit.relay import store as store_module
from oncommit.relay.store import Window
from oncommit.testing.servers import Database, Databases, postgres
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.sql import run_async
from tests.conftest import VERSIONS
from tests.integration.relay.test_fences import altered
from tests.integration.relay.tools import add, emptied, register

SYNCHRONOUS = "replace(current_setting('synchronous_commit'), 'off', 'on')"


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"pg{version}")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with postgres(request.param, durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Server) -> Database:
    return Databases(server, lambda dsn: run_async(lambda: migrate(dsn))).create()


async def read_before_a_crash(server: Server, database: Database) -> tuple[list[str], list[str]]:
    """Events that a relay has read when PostgreSQL is killed, and those that are there when it is back."""
    await emptied(database.dsn)
    writer, reader = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    # Nobody else may bring the writer's transaction to disk meanwhile.
    await writer.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    await writer.execute("ALTER SYSTEM SET bgwriter_delay = '10s'")
    await writer.execute("SELECT pg_reload_conf()")
    store, _ = await register(reader)
    await store.make_lanes()
    lanes = await store.take_lanes(10.0, 64, urgent=False)
    await reader.execute("SET synchronous_commit = off")
    await writer.execute("SET synchronous_commit = off")
    await writer.execute("CHECKPOINT")
    read: list[Any] = []
    for batch in range(1, 6):
        await add(writer, f"k{batch}")
        windows = [Window(lane.lane, lane.epoch, 0, 2**40, 10) for lane in lanes]
        read = await store.fetch(windows, batch=batch, budget=10_000)
    await asyncio.to_thread(server.kill)
    for connection in (writer, reader):
        connection.terminate()
    await asyncio.to_thread(server.start)
    again = await asyncpg.connect(database.dsn)
    there = [str(event) for (event,) in await again.fetch("SELECT event_id FROM oncommit.outbox ORDER BY id")]
    await again.close()
    return sorted(str(row.id) for row in read), sorted(there)


async def test_what_was_read_survives_the_crash_of_its_server(server: Server, database: Database) -> None:
    read, there = await read_before_a_crash(server, database)
    assert len(read) == 5
    assert there == read


@pytest.mark.rule("F-durable claim")
async def test_mutation_with_a_claim_that_does_not_wait_it_was_a_phantom(
    server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "query", altered("relay/fetch", SYNCHRONOUS, "'off'"))
    read, there = await read_before_a_crash(server, database)
    assert len(read) == 5
    assert set(there) < set(read)
