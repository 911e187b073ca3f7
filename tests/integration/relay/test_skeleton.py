"""The way of an event, whole: a transaction, the relay, NATS, and the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit import Event, Outbox
from oncommit.brokers.nats import NatsBroker
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.testing.servers import AnyServer, Database

QUICK = RelaySettings(lease=2.0, statement_timeout=1.5, poll_busy=0.02)


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="events", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("events")
    await client.close()


async def received(stream: JetStreamContext, count: int) -> list[tuple[str, str]]:
    """Subjects and message ids, in the order of the stream."""
    subscription = await stream.subscribe("events.>", ordered_consumer=True)
    messages = [await subscription.next_msg(timeout=15) for _ in range(count)]
    await subscription.unsubscribe()
    return [(message.subject, (message.headers or {})["message_id"]) for message in messages]


async def settled(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(15):
        while await connection.fetchval("SELECT count(*) FROM oncommit.outbox"):  # noqa: ASYNC110 - a table has no event
            await asyncio.sleep(0.02)


async def test_committed_events_arrive_in_order(
    database: Database, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    outbox = Outbox()
    connection = await asyncpg.connect(database.dsn)
    written: list[str] = []
    async with Relay(database.dsn, {"main": NatsBroker(oncommit_nats.url)}, settings=QUICK):
        for number in range(200):
            event = Event("order.changed", aggregate=("order", number % 7), payload={"n": number})
            transaction = connection.transaction()
            await transaction.start()
            await outbox.add(connection, event)
            if number % 5 == 4:
                await transaction.rollback()
            else:
                await transaction.commit()
                written.append(str(event.id))
        arrived = await received(stream, len(written))
        await settled(connection)
    by_key: dict[str, list[str]] = {}
    assert sorted(message_id for _, message_id in arrived) == sorted(written)
    assert {subject for subject, _ in arrived} == {"events.order.order.changed"}
    order = {message_id: place for place, (_, message_id) in enumerate(arrived)}
    rows = await connection.fetch("SELECT event_id::text, aggregate_id FROM oncommit.outbox_archive ORDER BY id")
    for row in rows:
        by_key.setdefault(row["aggregate_id"], []).append(row["event_id"])
    assert len(rows) == len(written)
    for ids in by_key.values():
        assert [order[one] for one in ids] == sorted(order[one] for one in ids)
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_claim") == 0
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL") == 0
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_relay") == 0
    await connection.close()
