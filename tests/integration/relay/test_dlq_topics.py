"""``dlq_topics``: what is dead also goes to ``<topic>.dlq``, once, and holds back nobody there either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import nats
import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.errors import PublishFailed, PublishRejected, TopicUnavailable
from oncommit.relay.relay import Relay
from oncommit.relay.store import Burial, Store
from oncommit.testing.brokers import FailingBroker
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import AnyServer, Database, Databases, ServerUnavailable, rabbitmq
from oncommit.testing.servers.server import Server
from oncommit.topics import TopicRules
from tests.brokers.rabbit import connected, resume_queue, suspend_queue
from tests.integration.relay.tools import QUICK, add, drained, emptied, register, until

SETTINGS = msgspec.structs.replace(QUICK, dlq_topics=True)
RECORDS = "SELECT count(*) FROM oncommit.dead_letter"
ROWS = "SELECT count(*) FROM oncommit.outbox"


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def database(shared: Database) -> Database:
    await emptied(shared.dsn)
    return shared


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


def relay(database: Database, broker: Any, topics: TopicRules | None = None, **changes: Any) -> Relay:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return Relay(database.dsn, {"main": broker}, settings=settings, topics={"main": topics} if topics else None)


def refusing(*events: str, error: Outcome = None, also: Callable[[Message], Outcome] | None = None) -> FailingBroker:
    """Refuses these events, as errors or for good."""

    def judge(message: Message) -> Outcome:
        if message.message_id in events:
            return error or PublishRejected("too large")
        return also(message) if also else None

    return FailingBroker(judge)


def copies(broker: FailingBroker) -> list[Message]:
    return [message for message in broker.messages if message.topic.endswith(".dlq")]


async def test_a_copy_says_what_it_died_of_and_has_the_same_bytes(
    database: Database, connection: asyncpg.Connection
) -> None:
    body = '{"b" : 1, "a":1.0,  "b":2}'
    (first,) = await add(
        connection, "a", payload=body, headers='{"x-tenant":"acme","dlq-reason":"mine"}', correlation_id="flow"
    )
    (second,) = await add(
        connection, "b", data=b"\x00\xff", content_type="application/avro", topic="elsewhere",
        aggregate_type="order", aggregate_id="42", max_attempts=2,
    )  # fmt: skip
    behind = await add(connection, "a", 2)
    broker = FailingBroker(
        lambda message: {first: PublishRejected("too large"), second: PublishFailed("no")}.get(message.message_id)
    )
    async with relay(database, broker):
        await drained(connection)
        await until(connection, RECORDS, 2)
    assert [message.message_id for message in broker.messages if message.key == "a"] == behind
    one, other = copies(broker)
    assert (one.topic, one.key, one.body, one.content_type) == (
        "events.t.dlq", "events.t.dlq", body.encode(), "application/json"
    )  # fmt: skip
    assert (other.topic, other.body, other.content_type) == ("elsewhere.dlq", b"\x00\xff", "application/avro")
    assert one.message_id not in (first, second)
    said = {name: value for name, value in one.headers.items() if name.startswith("dlq-")}
    record = await connection.fetchrow(
        "SELECT created_at, died_at FROM oncommit.dead_letter WHERE reason = 'permanent'"
    )
    stamp = "%Y-%m-%dT%H:%M:%S.%fZ"
    assert said == {
        "dlq-event-id": first,
        "dlq-source-topic": "events.t",
        "dlq-key": "a",
        "dlq-reason": "permanent",
        "dlq-error-type": "PublishRejected",
        "dlq-error": said["dlq-error"],
        "dlq-attempts": "1",
        "dlq-crashes": "0",
        "dlq-written-at": record["created_at"].strftime(stamp),
        "dlq-died-at": record["died_at"].strftime(stamp),
    }
    assert "too%20large" in said["dlq-error"] or "too large" in said["dlq-error"]
    assert one.headers["x-tenant"] == "acme"
    assert (one.headers["correlation_id"], one.headers["causation_id"]) == ("flow", first)
    assert other.headers["dlq-reason"] == "exhausted"
    assert other.headers["dlq-attempts"] == "2"
    assert other.headers["ce-aggregateid"] == "42"


async def test_off_unless_asked_for(database: Database, connection: asyncpg.Connection) -> None:
    (dead,) = await add(connection, "a")
    broker = refusing(dead)
    async with relay(database, broker, dlq_topics=False):
        await drained(connection)
        await until(connection, RECORDS, 1)
        await add(connection, "a")
        await broker.wait_for(1)
        await drained(connection)
    assert copies(broker) == []
    assert QUICK.dlq_topics is False


async def test_a_copy_that_nobody_takes_holds_back_no_key_and_has_no_copy(
    database: Database, connection: asyncpg.Connection
) -> None:
    """Its topic is missing at first, then it is refused for good."""
    dead = [*await add(connection, "a"), *await add(connection, "b"), *await add(connection, "c")]
    behind = [*await add(connection, "a"), *await add(connection, "b"), *await add(connection, "c")]

    def missing(message: Message) -> Outcome:
        return TopicUnavailable("no such topic") if message.topic.endswith(".dlq") else None

    broker = refusing(*dead, also=missing)
    async with relay(database, broker):
        await until(connection, ROWS, 3)
        await until(connection, RECORDS, 3)
        assert sorted(broker.ids) == sorted(behind)
        more = await add(connection, "a", 3)
        await broker.wait_for(6)
        await until(connection, ROWS, 3)
        assert broker.ids[-3:] == more
        broker.judge = lambda message: PublishRejected("too large") if message.topic.endswith(".dlq") else None
        await drained(connection)
    assert await connection.fetchval(RECORDS) == 6
    topics = await connection.fetch("SELECT topic FROM oncommit.dead_letter WHERE topic IS NOT NULL")
    assert [topic for (topic,) in topics] == ["events.t.dlq"] * 3


async def test_a_parked_head_has_a_copy_too(database: Database, connection: asyncpg.Connection) -> None:
    (head,) = await add(connection, "a", payload='{"n": 1}')
    (behind,) = await add(connection, "a")
    broker = refusing(head)
    async with relay(database, broker, on_dead="park_key"):
        await broker.wait_for(1)
        await until(connection, ROWS, 2)
    (copy,) = copies(broker)
    assert (copy.headers["dlq-event-id"], copy.body) == (head, b'{"n": 1}')
    assert behind not in broker.ids
    assert await connection.fetchval("SELECT event_id::text FROM oncommit.outbox WHERE state = 'dead_letter'") == head


@pytest.mark.parametrize("step", ["bury", "park"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_answer_leaves_one_copy(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    (dead,) = await add(connection, "a")
    whole = getattr(Store, step)
    broken: list[str] = []

    async def breaking(self: Store, *args: Any, **kwargs: Any) -> Any:
        if broken:
            return await whole(self, *args, **kwargs)
        broken.append(step)
        if when == "after":
            await whole(self, *args, **kwargs)
        raise asyncpg.ConnectionDoesNotExistError("the answer was lost: the test says so")

    monkeypatch.setattr(Store, step, breaking)
    broker = refusing(dead)
    async with relay(database, broker, on_dead="park_key" if step == "park" else "continue"):
        await broker.wait_for(1)
        await until(connection, ROWS, 1 if step == "park" else 0)
        await until(connection, RECORDS, 1)
    assert broken
    assert [copy.headers["dlq-event-id"] for copy in broker.messages] == [dead]


async def test_a_zombie_makes_no_copy(database: Database, connection: asyncpg.Connection) -> None:
    """Its lane was taken by another, who has still to send the event."""
    await add(connection, "a")
    row = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    zombie, _ = await register(connection)
    await zombie.make_lanes()
    (lane,) = [one for one in await zombie.take_lanes(60, 64, urgent=False) if one.lane == row["lane"]]
    await connection.execute("UPDATE oncommit.outbox_lane SET epoch = epoch + 1")
    burial = Burial(lane.lane, lane.epoch, row["id"], "permanent", "X", "x", "events.t")
    assert await zombie.bury([burial], copy=True) == set()
    assert await zombie.park([burial], copy=True) == set()
    assert await connection.fetchval(ROWS) == 1


async def test_dying_again_after_a_replay_makes_a_copy_again(
    database: Database, connection: asyncpg.Connection
) -> None:
    (dead,) = await add(connection, "a")
    broker = refusing(dead)
    async with relay(database, broker):
        await broker.wait_for(1)
        await drained(connection)
        await add(connection, "a", event_id=dead)
        await broker.wait_for(2)
        await drained(connection)
    assert [copy.headers["dlq-event-id"] for copy in copies(broker)] == [dead, dead]
    assert len(set(broker.ids)) == 2


ODD = """
INSERT INTO oncommit.outbox (event_type, key, payload, headers, lane, topic)
SELECT v.type, 'odd ' || n, '{"n":1}', v.headers::json,
       oncommit.lane_of(5::smallint, 'odd ' || n, NULL, NULL, NULL), v.topic
FROM (VALUES
    (1, 'spaces',   '{ }',                        'a'),
    (2, 'a list',   '["x"]',                      'a'),
    (3, 'nul',      '{"x-bad":"\\u0000","y":"z"}', 'a'),
    (4, 'twice',    E'{"y":"1","y":"z"}\\n ',      'a'),
    (5, '',         '{}',                         'a'),
    (6, 'no copy',  '{}',                         repeat('l', 252))
) AS v (n, type, headers, topic)
"""


async def test_odd_rows_are_buried_with_a_copy_or_without(database: Database, connection: asyncpg.Connection) -> None:
    """Rows that no writer of ours makes. A copy that the outbox refuses must not keep the others from theirs."""
    await connection.execute(ODD)
    broker = FailingBroker(lambda message: None if message.topic.endswith(".dlq") else PublishRejected("no"))
    async with relay(database, broker):
        await until(connection, RECORDS, 6)
        await drained(connection)
    found = {copy.headers["ce-type"]: copy.headers.get("y") for copy in copies(broker)}
    # The list cannot be read, so nobody knows what to send; the last two, nobody can.
    assert found == {"spaces": None, "nul": "z", "twice": "z"}


# ── Those that killed their relays ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("topics", "topic", "expected"),
    [
        (TopicRules(template="shop.{aggregate_type}"), None, "shop.order.dlq"),
        (TopicRules(function=lambda event: "never"), None, None),
        (TopicRules(function=lambda event: "never"), "own", "own.dlq"),
        (TopicRules(function=lambda event: "never", by_type={"t": "mapped"}), None, "mapped.dlq"),
    ],
    ids=["template", "function", "own", "map"],
)
async def test_one_that_killed_its_relays_has_a_copy_but_where_only_a_function_knows_its_topic(
    database: Database, connection: asyncpg.Connection, topics: TopicRules, topic: str | None, expected: str | None
) -> None:
    await add(connection, None, aggregate_type="order", aggregate_id="1", topic=topic)
    row = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    dead, relay_id = await register(connection)
    await dead.make_lanes()
    await dead.take_lanes(60, 64, urgent=False)
    await connection.execute("UPDATE oncommit.outbox SET crashes = 4")
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone) "
        "SELECT $1, 'main', 1, lane, epoch, $3, $3, 1, true FROM oncommit.outbox_lane WHERE lane = $2",
        relay_id, row["lane"], row["id"],
    )  # fmt: skip
    await connection.execute("DELETE FROM oncommit.outbox_relay")
    broker = FailingBroker()
    async with relay(database, broker, topics):
        await until(connection, RECORDS, 1)
        await drained(connection)
    assert [message.topic for message in broker.messages] == ([expected] if expected else [])
    assert all(
        copy.headers["dlq-reason"] == "crashed" and copy.headers["dlq-crashes"] == "5" for copy in copies(broker)
    )


# ── Real brokers ─────────────────────────────────────────────────────────────────────────────────


async def test_nats_a_message_too_large_for_its_stream_goes_to_another(
    database: Database, connection: asyncpg.Connection, oncommit_nats: AnyServer
) -> None:
    client = await nats.connect(oncommit_nats.url)
    stream = client.jetstream()
    await stream.add_stream(name="small", subjects=["events.*"], max_msg_size=2000)
    await stream.add_stream(name="dead", subjects=["events.*.dlq"], max_msg_size=20_000)
    try:
        large, larger = ('{"text": "' + "x" * size + '"}' for size in (5000, 50_000))
        (dead,) = await add(connection, "a", payload=large)
        (lost,) = await add(connection, "b", payload=larger)
        behind = await add(connection, "a")
        async with relay(database, NatsBroker(oncommit_nats.url)):
            await drained(connection)
            await until(connection, RECORDS, 3)
        message = await stream.get_msg("dead", 1)
        assert message.subject == "events.t.dlq"
        assert message.data == large.encode()
        assert (message.headers or {})["dlq-event-id"] == dead
        assert (await stream.stream_info("dead")).state.messages == 1
        assert ((await stream.get_msg("small", 1)).headers or {})["message_id"] == behind[0]
        reasons = await connection.fetch("SELECT reason, causation_id FROM oncommit.dead_letter ORDER BY id")
        assert [tuple(row) for row in reasons][-1] == ("permanent", lost)
    finally:
        await stream.delete_stream("small")
        await stream.delete_stream("dead")
        await client.close()


@pytest.fixture(scope="module")
def rabbit_server() -> Iterator[Server]:
    try:
        with rabbitmq() as server:
            yield server
    except ServerUnavailable as error:
        not_to_be_had(error)


async def test_rabbitmq_what_its_queue_never_answers_goes_to_another(
    database: Database, connection: asyncpg.Connection, rabbit_server: Server
) -> None:
    async with connected(rabbit_server.url) as rabbit:
        await rabbit.queue("placed", "events", "order.placed")
        dead_queue = await rabbit.queue("dead", "events", "#.dlq")
        suspend_queue(rabbit_server, "placed")
        try:
            (dead,) = await add(connection, "a", event_type="order.placed", max_attempts=1, payload='{"n": 1}')
            async with relay(database, RabbitBroker(rabbit_server.url), publish_timeout=0.5):
                await drained(connection)
                await until(connection, RECORDS, 1)
        finally:
            resume_queue(rabbit_server, "placed")
        (copy,) = await rabbit.arrived(dead_queue, 1)
        assert (copy.routing_key, copy.body) == ("order.placed.dlq", b'{"n": 1}')
        assert (copy.headers["dlq-event-id"], copy.headers["dlq-reason"]) == (dead, "exhausted")
        assert copy.headers["dlq-source-topic"] == "events/order.placed"
