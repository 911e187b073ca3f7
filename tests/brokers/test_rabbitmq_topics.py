"""What RabbitMQ does with messages that it cannot place, and what that does to the others of the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cloudevents.core.bindings import amqp

from oncommit import Event
from oncommit.brokers.base import Message
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.brokers.registry import make_broker
from oncommit.cloudevents import AMQP, to_binary
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer
from tests.brokers.rabbit import TOPIC, Rabbit, connected, ids, kinds, message, opened


@pytest.fixture
def url(oncommit_rabbitmq: AnyServer) -> str:
    return oncommit_rabbitmq.url


@pytest.fixture
async def rabbit(url: str) -> AsyncIterator[Rabbit]:
    async with connected(url) as rabbit:
        yield rabbit


@pytest.fixture
async def broker(url: str) -> AsyncIterator[RabbitBroker]:
    async with opened(url) as broker:
        yield broker


async def publish(broker: RabbitBroker, *batch: Message, timeout: float = 10) -> list[str]:
    return kinds(await broker.publish(batch, timeout=timeout))


# ── What arrives ─────────────────────────────────────────────────────────────────────────────────


async def test_the_official_sdk_reads_what_arrives(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    event = Event(
        "order.placed",
        aggregate=("order", "№ 42"),
        payload={"total": "9.90"},
        headers={"x-tenant": "acmé"},
        correlation_id="flow",
    )
    wire = to_binary(event, source="/shop", time=None, binding=AMQP)
    sent = Message(str(event.id), TOPIC, event.ordering_key, wire.headers, wire.body, wire.content_type)
    assert await publish(broker, sent) == ["sent"]
    (found,) = await rabbit.arrived(queue, 1)
    assert (found.exchange, found.routing_key) == ("shop", "order.placed")
    assert (found.message_id, found.content_type, found.delivery_mode) == (str(event.id), "application/json", 2)
    assert dict(found.headers) == wire.headers
    assert found.headers["x-tenant"] == "acmé"
    properties = {"content-type": found.content_type}
    parsed = amqp.from_amqp_event(amqp.AMQPMessage(properties, dict(found.headers), found.body))
    assert parsed.get_id() == str(event.id)
    assert parsed.get_subject() == "№ 42"
    assert parsed.get_data() == {"total": "9.90"}


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000])
async def test_bytes_arrive_as_they_are(rabbit: Rabbit, broker: RabbitBroker, size: int) -> None:
    queue = await rabbit.queue()
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = message(body=body)
    assert await publish(broker, sent) == ["sent"]
    (found,) = await rabbit.arrived(queue, 1)
    assert found.body == body


async def test_an_event_without_payload_has_no_content_type(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    assert await publish(broker, Message("a", TOPIC, None, {}, b"", None)) == ["sent"]
    (found,) = await rabbit.arrived(queue, 1)
    assert (found.body, found.content_type) == (b"", None)


async def test_a_topic_is_exchange_and_routing_key(rabbit: Rabbit, broker: RabbitBroker) -> None:
    by_key = await rabbit.queue("by-key", "shop", "a/b.c")
    by_type = await rabbit.queue("by-type", "only-an-exchange", "order.placed")
    by_name = await rabbit.bare("by-name")
    topics = ["shop/a/b.c", "only-an-exchange", "/by-name"]
    assert await publish(broker, *(message(topic) for topic in topics)) == ["sent"] * 3
    for queue in (by_key, by_type, by_name):
        await rabbit.arrived(queue, 1)


# ── What cannot be placed ────────────────────────────────────────────────────────────────────────


async def test_what_no_queue_takes_is_not_taken_for_sent(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue(key="order.*")
    lost = "shop/nobody.listens"
    batch = [
        message(),
        message(lost, "a"),
        message(key="a"),
        message(lost, body=bytes(300_000)),
        message(),
        message(lost),
    ]
    assert await publish(broker, *batch) == [
        "sent", "TopicUnavailable", "NotAttempted", "TopicUnavailable", "sent", "TopicUnavailable"
    ]  # fmt: skip
    assert await rabbit.counted(queue) == dict.fromkeys([batch[0].message_id, batch[4].message_id], 1)
    assert await publish(broker, batch[2]) == ["sent"]


async def test_one_id_twice_in_a_batch_is_not_taken_for_sent(rabbit: Rabbit, broker: RabbitBroker) -> None:
    await rabbit.queue(key="order.*")
    good, bad = message(), message("shop/nobody.listens")
    twice = Message(good.message_id, bad.topic, None, good.headers, good.body, None)
    assert await publish(broker, good, twice, good, twice) == ["sent", "TopicUnavailable"] * 2


async def test_a_missing_exchange_harms_nobody_else(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    good = [message(key=f"k{number % 7}") for number in range(50)]
    bad = [message("nowhere/order.placed", f"n{number % 3}") for number in range(10)]
    batch = [*good[:20], *bad, *good[20:]]
    for _ in range(2):
        outcomes = dict(zip(ids(batch), await publish(broker, *batch), strict=True))
        assert {outcomes[one] for one in ids(good)} == {"sent"}
        assert [outcomes[one] for one in ids(bad)] == ["TopicUnavailable"] * 3 + ["NotAttempted"] * 7
        assert await rabbit.counted(queue) == dict.fromkeys(ids(good), 1)


async def test_an_exchange_that_goes_is_found_out_and_the_others_arrive(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    await rabbit.queue("other", "passing")
    assert await publish(broker, message(), message("passing/x")) == ["sent"] * 2
    await rabbit.arrived(queue, 1)
    await (await rabbit.exchange("passing")).delete(if_unused=False)
    batch = [message("passing/x" if number % 10 == 7 else TOPIC, f"k{number % 40}") for number in range(400)]
    outcomes = await publish(broker, *batch)
    stopped: set[str | None] = set()
    for one, outcome in zip(batch, outcomes, strict=True):
        if one.key in stopped:
            assert outcome == "NotAttempted"
        elif one.topic == TOPIC:
            assert outcome == "sent"
        else:
            assert outcome == "TopicUnavailable"
            stopped.add(one.key)
    found = [one.message_id for one in await rabbit.arrived(queue, await rabbit.waiting(queue))]
    sent = [one for one, outcome in zip(batch, outcomes, strict=True) if outcome == "sent"]
    assert set(found) == set(ids(sent))
    assert max(found.count(one) for one in found) <= 2  # a bystander is sent once more at most
    for key in {one.key for one in sent}:
        mine = ids([one for one in sent if one.key == key])
        assert list(dict.fromkeys(one for one in found if one in mine)) == mine


async def test_a_full_queue_spends_no_attempt(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue(**{"x-max-length": 2, "x-overflow": "reject-publish"})
    batch = [message(key="a") for _ in range(4)]
    assert await publish(broker, *batch) == ["sent", "sent", "TopicUnavailable", "NotAttempted"]
    await rabbit.arrived(queue, 2)
    assert await publish(broker, *batch[2:]) == ["sent", "sent"]


async def test_what_amqp_cannot_carry_is_rejected_and_the_others_arrive(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    # By plain SQL a row can hold any of these.
    bad = [
        message(f"shop/{'ß' * 128}"),
        message(f"{'e' * 256}/a"),
        message(**{"n" * 256: "long"}),
        message(large="x" * 131_072),
        message(CC="elsewhere"),
        message(BCC="elsewhere"),
        Message("i" * 256, TOPIC, None, {}, b"", None),
    ]
    good = [message(), message()]
    assert await publish(broker, good[0], *bad, good[1]) == ["sent", *["PublishRejected"] * len(bad), "sent"]
    assert await rabbit.counted(queue) == dict.fromkeys(ids(good), 1)


# ── Order, time, cancellation ────────────────────────────────────────────────────────────────────


async def test_keys_arrive_in_order(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    batch = [message(key=f"k{number % 30}") for number in range(1500)]
    assert set(await publish(broker, *batch)) == {"sent"}
    found = [one.message_id for one in await rabbit.arrived(queue, len(batch))]
    for key in {one.key for one in batch}:
        mine = ids([one for one in batch if one.key == key])
        assert [one for one in found if one in set(mine)] == mine


async def test_a_cancelled_publish_leaves_the_broker_usable(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    given_up = 0
    for steps in (0, 1, 2, 3, 5, 8, 13, 21):
        tasks = [asyncio.create_task(broker.publish([message() for _ in range(500)], timeout=10))]
        for _ in range(steps):
            await asyncio.sleep(0)
        given_up += tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        last = message()
        assert await publish(broker, last) == ["sent"]
    assert given_up > 2
    await queue.purge()


async def test_publishes_go_side_by_side(rabbit: Rabbit, broker: RabbitBroker) -> None:
    queue = await rabbit.queue()
    batches = [[message(key=f"{lot}-{number % 3}") for number in range(20)] for lot in range(30)]
    bad = [[message("nowhere/x")] for _ in range(5)]
    answers = await asyncio.gather(*(publish(broker, *batch) for batch in [*batches, *bad]))
    assert answers == [["sent"] * 20] * 30 + [["TopicUnavailable"]] * 5
    assert await rabbit.counted(queue) == dict.fromkeys([one.message_id for lot in batches for one in lot], 1)


async def test_a_lost_answer_is_a_failure_and_the_broker_is_reached_again(rabbit: Rabbit, url: str) -> None:
    queue = await rabbit.queue()
    address = url.rpartition(":")
    with Proxy("127.0.0.1", int(address[2])) as proxy:
        async with opened(proxy.through(url)) as broker:
            assert await publish(broker, message()) == ["sent"]
            proxy.drop_answer()
            lost = [message(key="a"), message(key="a")]
            assert await publish(broker, *lost) == ["BrokerUnavailable", "NotAttempted"]
            assert await publish(broker, *lost) == ["sent", "sent"]
    found = [one.message_id for one in await rabbit.arrived(queue, 4)][1:]
    assert list(dict.fromkeys(found)) == ids(lost)


# ── The URL ──────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_there_is_an_unavailable_broker() -> None:
    broker = make_broker("amqp://guest:hidden@127.0.0.1:1/")
    assert isinstance(broker, RabbitBroker)
    assert "hidden" not in repr(broker)
    assert kinds(await broker.publish([message()], timeout=5)) == ["BrokerUnavailable"]
