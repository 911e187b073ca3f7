"""From rows to Kafka, which is killed in the middle: in order, none lost, no attempt spent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import msgspec
import pytest
from confluent_kafka import Message

from oncommit.brokers.kafka import KafkaBroker
from oncommit.brokers.registry import make_broker
from oncommit.relay.relay import Relay
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import Database, ServerUnavailable
from oncommit.testing.servers import kafka as kafka_server
from tests.brokers.kafkas import KafkaBench
from tests.integration.relay.tools import QUICK, drained, until

EVENTS, KEYS = 6000, 40
TOPICS = ("events.order.placed", "events.order.paid")
SETTINGS = msgspec.structs.replace(QUICK, batch_rows=200)
# Each key goes from topic to topic.
ADD = """
INSERT INTO oncommit.outbox (event_type, aggregate_type, aggregate_id, payload)
SELECT CASE WHEN n / $1 % 4 < 3 THEN 'order.placed' ELSE 'order.paid' END, 'order', n % $1, json_build_object('n', n)
FROM generate_series(1, $2) n ORDER BY n
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[KafkaBench]:
    try:
        with kafka_server(durable=True) as server:
            yield KafkaBench(server, guarded=False)
    except ServerUnavailable as error:
        not_to_be_had(error)


@pytest.mark.timeout(240)
async def test_a_kill_in_the_middle_loses_nothing_and_overtakes_nothing(database: Database, bench: KafkaBench) -> None:
    for topic in TOPICS:
        await asyncio.to_thread(bench.make, topic)
    connection = await asyncpg.connect(database.dsn)
    broker = make_broker(bench.url)
    assert isinstance(broker, KafkaBroker)
    async with Relay(database.dsn, {"main": broker}, settings=SETTINGS):
        await connection.execute(ADD, KEYS, EVENTS)
        await until(connection, f"SELECT count(*) BETWEEN 1 AND {EVENTS - 1} FROM oncommit.outbox_archive", wanted=True)
        bench.server.kill()
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1, timeout=30)
        assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox") > 0, "killed too late"
        await asyncio.to_thread(bench.server.start)
        await until(connection, "SELECT count(*) FROM oncommit.outbox", timeout=60)
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    rows = await connection.fetch("SELECT event_id::text, aggregate_id FROM oncommit.outbox_archive ORDER BY id")
    await connection.close()
    found = [one for topic in TOPICS for one in await asyncio.to_thread(bench.messages, topic)]
    firsts: dict[str, Message] = {}
    for one in found:
        firsts.setdefault(message_id(one), one)
    assert sorted(firsts) == sorted(id_ for id_, _ in rows)
    assert len(rows) == EVENTS
    assert len(found) - EVENTS <= SETTINGS.batch_rows, "more than what was in flight came twice"
    by_key: dict[str, list[Message]] = {}
    for id_, key in rows:
        by_key.setdefault(key, []).append(firsts[id_])
    for ordered in by_key.values():
        for topic in TOPICS:
            offsets = [one.offset() or 0 for one in ordered if one.topic() == topic]
            assert offsets == sorted(offsets)
        # Across topics: nothing was handed to Kafka's client before what comes before it was acknowledged.
        times = [one.timestamp()[1] for one in ordered]
        assert times == sorted(times)


def message_id(message: Message) -> str:
    value = dict(message.headers() or [])["message_id"]
    assert isinstance(value, bytes)
    return value.decode()
