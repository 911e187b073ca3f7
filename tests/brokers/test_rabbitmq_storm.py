"""Everything that can go wrong with a message, at once and at random: what is promised holds for all the others.

Several senders share an adapter; some give up in the middle. Each batch has keys of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from oncommit.brokers.base import Message
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.errors import NotAttempted, TopicUnavailable
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import ServerUnavailable, rabbitmq
from oncommit.testing.servers.server import Server
from tests.brokers.rabbit import EXCHANGE, Rabbit, connected, message, opened, rabbitmqctl

GOOD = (f"{EXCHANGE}/order.placed", "other/order.paid", "/plain")
BAD = (f"{EXCHANGE}/nobody.listens", "nowhere/order.placed", f"{EXCHANGE}/salary", "secret/x")
FULL = "/full"
COMES_AND_GOES = "fickle/x"
SENDERS, BATCHES, MESSAGES = 4, 8, 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with rabbitmq() as server:
            rabbitmqctl(server, "add_user", "clerk", "word")
            rabbitmqctl(server, "set_permissions", "clerk", "^$", "^(?!secret).*$", "^$")
            rabbitmqctl(server, "set_topic_permissions", "clerk", EXCHANGE, "^(order|nobody)", "^$")
            yield server
    except ServerUnavailable as error:
        not_to_be_had(error)


@pytest.fixture
async def rabbit(server: Server) -> AsyncIterator[Rabbit]:
    async with connected(server.url) as rabbit:
        yield rabbit


class Storm:
    """Senders, and what they were told."""

    def __init__(self, broker: RabbitBroker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.batches: list[list[Message]] = []
        self.sent: set[str] = set()
        self.in_doubt: set[str] = set()
        self.not_sent: set[str] = set()

    async def sender(self, name: int) -> None:
        for number in range(BATCHES):
            batch = self._batch(f"{name}.{number}")
            self.batches.append(batch)
            task = asyncio.ensure_future(self.broker.publish(batch, timeout=20))
            if self.random.random() < 0.2:
                for _ in range(self.random.randrange(40)):
                    await asyncio.sleep(0)
                task.cancel()
            (outcomes,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcomes, BaseException):
                self.in_doubt |= {one.message_id for one in batch}
            else:
                self._note(batch, list(outcomes))

    def _batch(self, name: str) -> list[Message]:
        topics = [*GOOD * 8, *BAD, FULL, COMES_AND_GOES]
        return [
            message(self.random.choice(topics), self.random.choice([None, *(f"{name}.{key}" for key in range(12))]))
            for _ in range(self.random.randrange(1, MESSAGES))
        ]

    def _note(self, batch: list[Message], outcomes: list[object]) -> None:
        stopped: set[str | None] = set()
        for one, outcome in zip(batch, outcomes, strict=True):
            if one.key is not None and one.key in stopped:
                assert isinstance(outcome, NotAttempted)
                self.not_sent.add(one.message_id)
                continue
            if outcome is None:
                assert one.topic not in BAD
                self.sent.add(one.message_id)
            else:
                stopped.add(one.key)
                assert isinstance(outcome, TopicUnavailable), (one.topic, outcome)
                assert one.topic not in GOOD, outcome
                # Where its exchange went while it was under way, it may have been taken before.
                (self.in_doubt if one.topic == COMES_AND_GOES else self.not_sent).add(one.message_id)


async def coming_and_going(rabbit: Rabbit, stopping: asyncio.Event) -> None:
    """An exchange that is deleted and declared, again and again."""
    while not stopping.is_set():
        await rabbit.channel.exchange_delete("fickle")
        await asyncio.sleep(0.02)
        exchange = await rabbit.exchange("fickle")
        await (await rabbit.channel.get_queue("fickle")).bind(exchange, "#")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_overtaken_or_sent_beyond_bounds(server: Server, rabbit: Rabbit, seed: int) -> None:
    queues = [
        await rabbit.queue("shop", EXCHANGE, "order.*"),
        await rabbit.queue("other", "other"),
        await rabbit.bare("plain"),
        await rabbit.bare("fickle"),
    ]
    await rabbit.exchange("secret")
    full = await rabbit.channel.declare_queue(
        "full", durable=True, arguments={"x-max-length": 20, "x-overflow": "reject-publish"}
    )
    rabbit.queues.add("full")
    stopping = asyncio.Event()
    fickle = asyncio.create_task(coming_and_going(rabbit, stopping))
    async with opened(server.url.replace("guest:guest", "clerk:word")) as broker:
        storm = Storm(broker, seed)
        await asyncio.gather(*(storm.sender(name) for name in range(SENDERS)))
        stopping.set()
        await fickle
        # What was given up may still be on its way; it is there before what follows on the same connection's channels.
        await asyncio.gather(*(broker.publish([message(topic)], timeout=10) for topic in GOOD * 4))
    found: Counter[str] = Counter()
    order: list[str] = []
    for queue in [*queues, full]:
        arrived = [one.message_id for one in await rabbit.arrived(queue, await rabbit.waiting(queue))]
        order += arrived
        found.update(arrived)
    assert storm.sent <= found.keys()
    assert not storm.not_sent & found.keys()
    assert len(storm.sent) > 100
    assert max(found.values()) <= 3
    place = {id_: number for number, id_ in reversed(list(enumerate(order)))}
    for batch in storm.batches:
        for key in {one.key for one in batch if one.key}:
            mine = [one for one in batch if one.key == key]
            there = [one.message_id in found for one in mine]
            assert there == sorted(there, reverse=True), "a later one was taken without an earlier one"
            for topic in {one.topic for one in mine}:  # a queue says nothing of another's order
                places = [place[one.message_id] for one in mine if one.topic == topic and one.message_id in found]
                assert places == sorted(places)
