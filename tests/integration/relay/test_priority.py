"""Who goes first, with a real PostgreSQL behind it: priorities within a batch, urgent lanes beside a backlog."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import PublishFailed
from oncommit.relay.relay import Relay
from oncommit.retry import Backoff, RetryPolicy
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.relay.tools import QUICK, add, drained, until

FLOOD = """
    INSERT INTO oncommit.outbox (event_type, key, priority, payload)
    SELECT $1, $1 || n % 200, $2, to_json(repeat('x', $4)) FROM generate_series(1, $3) AS n
"""


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


async def test_between_keys_of_a_batch_the_higher_priority_goes_first(
    database: Database, connection: asyncpg.Connection
) -> None:
    async with connection.transaction():
        low = await add(connection, "low", 2, priority=1)
        usual = await add(connection, "usual", 2)
        mixed = [*await add(connection, "mixed", priority=0), *await add(connection, "mixed", priority=4)]
        high = await add(connection, "high", 2, priority=9)
    broker = RecordingBroker()
    # Of rows whose size it does not know yet, a relay reads few: here enough for one batch.
    settings = msgspec.structs.replace(QUICK, batch_bytes=256 * 1024 * 1024)
    async with Relay(database.dsn, {"main": broker}, settings=settings):
        await drained(connection)
    assert broker.batches[0] == 8
    assert broker.ids == [*high, *usual, *mixed, *low]


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
async def test_neither_flood_starves_the_other(database: Database, connection: asyncpg.Connection, size: int) -> None:
    """Two backlogs of the same size: while both last, each has its share of what goes."""
    count, batch = (2000, 80) if size < 1000 else (300, 80)
    await connection.execute(FLOOD, "usual", 5, count, size)
    await connection.execute(FLOOD, "urgent", 9, count, size)
    broker = RecordingBroker()
    settings = msgspec.structs.replace(QUICK, batch_rows=batch, batch_bytes=4 * 1024 * 1024, publish_timeout=30.0)
    async with Relay(database.dsn, {"main": broker}, settings=settings):
        await drained(connection)
    kinds = [message.topic for message in broker.messages]
    assert len(kinds) == 2 * count
    while_both = kinds[: count // 2]
    share = while_both.count("events.usual") / len(while_both)
    assert 0.1 < share < 0.45, share


async def test_what_is_urgent_overtakes_a_backlog(database: Database, connection: asyncpg.Connection) -> None:
    await connection.execute(FLOOD, "usual", 5, 3000, 10)
    broker = RecordingBroker()
    broker.hold()
    settings = msgspec.structs.replace(QUICK, batch_rows=100, publish_timeout=30.0)
    async with Relay(database.dsn, {"main": broker}, settings=settings):
        await broker.publishing.wait()  # the first batch hangs, the second may have been read
        (urgent,) = await add(connection, "key", priority=6)
        broker.release()
        await drained(connection)
    assert broker.ids.index(urgent) < sum(broker.batches[:4])


async def test_types_have_policies_of_their_own(database: Database, connection: asyncpg.Connection) -> None:
    await add(connection, "a", event_type="payment.taken")
    await add(connection, "b", event_type="order.placed")
    (own,) = await add(connection, "c", event_type="payment.taken", max_attempts=4)

    def judge(_message: Message) -> Outcome:
        return PublishFailed("no")

    rules = {"payment.*": RetryPolicy(max_attempts=2, backoff=Backoff(base=0.01, cap=0.02))}
    settings = msgspec.structs.replace(
        QUICK, retry=RetryPolicy(max_attempts=3, backoff=Backoff(base=0.01, cap=0.02)), retry_by_type=rules
    )
    async with Relay(database.dsn, {"main": FailingBroker(judge)}, settings=settings):
        await until(connection, "SELECT count(*) FROM oncommit.dead_letter", 3)
    rows = await connection.fetch("SELECT event_type, message_id = $1, attempts FROM oncommit.dead_letter", own)
    assert {tuple(row) for row in rows} == {
        ("payment.taken", False, 2),
        ("order.placed", False, 3),
        ("payment.taken", True, 4),
    }
