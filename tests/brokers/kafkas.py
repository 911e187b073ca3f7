"""A real Kafka as the conformance suite wants it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from oncommit.brokers.kafka import KafkaBroker
from oncommit.testing.conformance import Arrived, Bench, WrongLogin
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import Server

PARTITIONS = 4
FORBIDDEN = "forbidden"
ACCESS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class KafkaBench(Bench):
    """Topics of four partitions."""

    carries_key = True

    def __init__(self, server: Server, *, guarded: bool = True) -> None:
        self.server = server
        self.admin = AdminClient({"bootstrap.servers": server.address})
        if guarded:
            self._forbid()

    def _forbid(self) -> None:
        self.make(FORBIDDEN)
        deny = AclBinding(
            ResourceType.TOPIC,
            FORBIDDEN,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.WRITE,
            AclPermissionType.DENY,
        )
        for done in self.admin.create_acls([deny]).values():
            done.result()

    @property
    def url(self) -> str:
        return self.server.url

    def broker(self, url: str) -> KafkaBroker:
        return KafkaBroker(url)

    def make(self, topic: str, **config: str) -> None:
        for done in self.admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)]).values():
            done.result()

    async def make_topic(self) -> str:
        topic = f"t-{uuid4().hex}"
        await asyncio.to_thread(self.make, topic)
        return topic

    async def arrived(self, topic: str) -> list[Arrived]:
        return await asyncio.to_thread(self.read, topic)

    def read(self, topic: str) -> list[Arrived]:
        return [_arrived(message) for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Message]:
        """Of each partition in order."""
        consumer = Consumer({"bootstrap.servers": self.server.address, "group.id": "none", "enable.auto.commit": False})
        partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        messages: list[Message] = []
        try:
            ends = {one.partition: _end(consumer, one) for one in partitions}
            consumer.assign([one for one in partitions if ends[one.partition] > 0])
            while any(ends.values()):
                message = consumer.poll(10)
                assert message is not None, f"{topic}: nothing comes, and not all was read"
                assert message.error() is None, message.error()
                messages.append(message)
                if message.offset() + 1 >= ends[message.partition()]:
                    ends[message.partition()] = 0
        finally:
            consumer.close()
        return messages

    def missing_topic(self) -> str:
        return f"missing-{uuid4().hex}"

    def forbidden_topic(self) -> str:
        return FORBIDDEN

    def oversize(self) -> int:
        return 1_000_001

    def wrong_login(self) -> WrongLogin:
        password = "not-the-right-one"
        port = self.server.home.ports["login"]
        return WrongLogin(f"kafka://app:{password}@127.0.0.1:{port}?sasl=PLAIN", password)

    @contextmanager
    def proxied(self) -> Iterator[tuple[Proxy, str]]:
        ports = self.server.home.ports
        with Proxy("127.0.0.1", ports["behind"], listen=ports["before"]) as proxy:
            yield proxy, f"kafka://127.0.0.1:{ports['before']}"


def _arrived(message: Message) -> Arrived:
    headers = {name: value.decode() for name, value in message.headers() or []}
    key = message.key()
    return Arrived(headers=headers, body=message.value() or b"", key=None if key is None else key.decode())


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """How much it holds; after a restart it takes a moment until somebody knows."""
    for _ in range(100):
        try:
            return consumer.get_watermark_offsets(partition, timeout=20)[1]
        except KafkaException:
            time.sleep(0.1)
    raise AssertionError(f"{partition} has no leader")
