"""What a batch is cut at: the bytes of rows as they are stored, which say little about those that come."""

from __future__ import annotations

import random

import asyncpg
import msgspec

from oncommit.relay.relay import Relay
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.relay.tools import QUICK, add, drained

EVENTS = 60


async def test_a_batch_that_was_cut_is_read_on_from_where_it_was_cut(any_database: Database) -> None:
    """Compressed to half: taken for twice as large as they are, they are cut although they would all have fitted."""
    connection = await asyncpg.connect(any_database.dsn)
    chance = random.Random(1)
    written: list[str] = []
    for _ in range(EVENTS):
        half = chance.randbytes(1500).hex()
        written += await add(connection, "a", 1, payload=f'"{half}{half}"')
    stored = await connection.fetchval("SELECT sum(4 * pg_column_size(payload)) FROM oncommit.outbox")
    held = await connection.fetchval("SELECT sum(octet_length(payload::text) + 300) FROM oncommit.outbox")
    assert held < stored, "then this shows nothing"
    settings = msgspec.structs.replace(QUICK, batch_bytes=int((held + stored) / 2))
    broker = RecordingBroker()
    async with Relay(any_database.dsn, {"main": broker}, settings=settings):
        await drained(connection)
    await connection.close()
    assert broker.ids == written
