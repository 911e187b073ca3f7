"""The counters of a relay at work on a real table, and that a log which raises costs no event."""

from __future__ import annotations

import logging

import asyncpg

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import BrokerUnavailable, PublishRejected
from oncommit.relay.relay import Relay
from oncommit.testing.brokers import FailingBroker
from oncommit.testing.servers import Database
from tests.integration.relay.tools import QUICK, add, drained


async def test_a_relay_counts_what_it_does(database: Database) -> None:
    connection = await asyncpg.connect(database.dsn)
    await add(connection, "k", 5)
    await add(connection, None, 3, event_type="bad")

    def judge(message: Message) -> Outcome:
        return PublishRejected("never") if message.topic == "events.bad" else None

    async with Relay(database.dsn, {"main": FailingBroker(judge)}, settings=QUICK) as relay:
        await drained(connection)
    found = relay.metrics.snapshot()
    assert found["outbox_claimed_events_total"][()].value == 8
    assert found["outbox_published_events_total"]["t",].value == 5
    assert found["outbox_failed_events_total"]["bad", "rejected"].value == 3
    assert found["outbox_dlq_total"]["bad",].value == 3
    assert found["outbox_batch_duration_seconds"][()].count >= 1
    assert found["outbox_processing_delay_seconds"][()].count == 5
    assert found["outbox_processing_delay_seconds"][()].value < 60
    await connection.close()


async def test_an_event_that_kills_relays_is_counted_as_dead(database: Database) -> None:
    connection = await asyncpg.connect(database.dsn)
    await add(connection, "a", crashes=4)
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
    )  # fmt: skip
    async with Relay(database.dsn, {"main": FailingBroker()}, settings=QUICK) as relay:
        await drained(connection)
    assert await connection.fetchval("SELECT reason FROM oncommit.dead_letter") == "crashed"
    assert relay.metrics.snapshot()["outbox_dlq_total"]["t",].value == 1
    await connection.close()


class LogThatRaises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"no room for {record.msg}")


async def test_a_log_that_raises_sends_nothing_twice(database: Database) -> None:
    """Half of a batch is acknowledged, half is not, and the log of it raises: the half must be known as sent."""
    connection = await asyncpg.connect(database.dsn)
    for number in range(10):
        await add(connection, f"k{number}")
    broker = FailingBroker()
    asked = 0

    def judge(_message: Message) -> Outcome:
        nonlocal asked
        asked += 1
        return BrokerUnavailable("for a moment") if 5 < asked <= 10 else None

    broker.judge = judge
    handler = LogThatRaises(logging.WARNING)
    logging.getLogger("oncommit").addHandler(handler)
    try:
        async with Relay(database.dsn, {"main": broker}, settings=QUICK):
            await drained(connection)
    finally:
        logging.getLogger("oncommit").removeHandler(handler)
    assert asked > 10
    assert len(broker.ids) == len(set(broker.ids)) == 10
    await connection.close()
