"""The adapter for RabbitMQ in the conformance suite, against a real server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.testing.conformance import Arrived, Bench, Conformance, WrongLogin
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import ServerUnavailable, rabbitmq
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.sql import run_async
from tests.brokers.rabbit import rabbitmqctl

EXCHANGE = "conformance"
LARGEST = 8 * 1024 * 1024
TOPICS = 80


class RabbitBench(Bench):
    """A topic is a routing key of one exchange, and a durable queue bound to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._topics: list[str] = []
        self._seen: dict[str, list[Arrived]] = defaultdict(list)

    @property
    def url(self) -> str:
        return self.server.url.replace("guest:guest", "app:right")

    def broker(self, url: str) -> RabbitBroker:
        return RabbitBroker(url)

    async def prepare(self) -> None:
        """Make topics for all cases at once: what is declared just before a kill is sometimes gone afterwards."""
        self._topics = [f"{EXCHANGE}/{uuid4().hex}" for _ in range(TOPICS)]
        connection = await aio_pika.connect(self.server.url)
        async with connection:
            channel = await connection.channel()
            await channel.declare_exchange("secret", "topic", durable=True)
            exchange = await channel.declare_exchange(EXCHANGE, "topic", durable=True)
            for topic in self._topics:
                queue = await channel.declare_queue(topic.partition("/")[2], durable=True)
                await queue.bind(exchange, queue.name)

    async def make_topic(self) -> str:
        return self._topics.pop()

    async def arrived(self, topic: str) -> list[Arrived]:
        connection = await aio_pika.connect(self.server.url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(topic.partition("/")[2], passive=True)
            # Not until none is left: more may be coming. Not one by one either: they come faster than that.
            wanted = len(self._seen[topic]) + (queue.declaration_result.message_count or 0)
            enough = asyncio.Event()

            async def note(found: AbstractIncomingMessage) -> None:
                headers = {name: str(value) for name, value in found.headers.items()}
                self._seen[topic].append(Arrived(headers=headers, body=found.body, content_type=found.content_type))
                if len(self._seen[topic]) >= wanted:
                    enough.set()

            if len(self._seen[topic]) < wanted:
                tag = await queue.consume(note, no_ack=True)
                async with asyncio.timeout(30):
                    await enough.wait()
                await queue.cancel(tag)
                await asyncio.sleep(0)  # what came before the answer is noted by tasks that have begun
        return list(self._seen[topic])

    def missing_topic(self) -> str:
        return f"{EXCHANGE}/{uuid4().hex}"

    def forbidden_topic(self) -> str:
        return "secret/order.placed"

    def oversize(self) -> int:
        return LARGEST + 1

    def wrong_login(self) -> WrongLogin:
        return WrongLogin(self.server.url.replace("guest:guest", "app:not-the-right-one"), "not-the-right-one")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    try:
        with rabbitmq({"max_message_size": str(LARGEST)}) as server:
            rabbitmqctl(server, "add_user", "app", "right")
            rabbitmqctl(server, "set_permissions", "app", "^$", EXCHANGE, "^$")
            bench = RabbitBench(server)
            run_async(bench.prepare)
            server.restart()
            yield bench
    except ServerUnavailable as error:
        not_to_be_had(error)


class TestRabbit(Conformance):
    lacks = frozenset({"deduplicates", "ordered_pipelining", "transactional_batch", "max_message"})


class BenchOfMissingExchange(RabbitBench):
    """The same, where a topic that leads nowhere is one without an exchange: RabbitMQ closes the channel."""

    def missing_topic(self) -> str:
        return f"{uuid4().hex}/order.placed"


async def test_a_missing_exchange_stops_only_itself(bench: RabbitBench) -> None:
    without = BenchOfMissingExchange(bench.server)
    without._topics = bench._topics
    await TestRabbit().test_a_missing_topic_stops_only_itself(without)
