"""A Kafka topic of eight partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from oncommit.errors import OncommitError
from oncommit.testing.bench.relay.timeline import Arrival

PARTITIONS: Final = 8
_TIMEOUT: Final = 30


class KafkaHome:
    """One topic. Its client blocks, so it is called in a thread."""

    storage = f"one topic of {PARTITIONS} partitions, one replica"

    def __init__(self, url: str, topic: str) -> None:
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": urlsplit(url).netloc.rpartition("@")[2]
        }
        self._settings["log_level"] = 4  # its threads write to stderr by themselves
        self._topic = topic

    async def make(self) -> None:
        """Create the topic. It takes large messages too."""
        from confluent_kafka.cimpl import NewTopic

        # The broker's own times: those of a client would say when it made the message.
        config = {"message.timestamp.type": "LogAppendTime"} | {
            "max.message.bytes": str(16 * 1024 * 1024),
            "segment.bytes": str(64 * 1024 * 1024),
        }
        new = NewTopic(self._topic, num_partitions=PARTITIONS, replication_factor=1, config=config)
        await self._ask(lambda admin: admin.create_topics([new], request_timeout=_TIMEOUT))

    async def empty(self) -> None:
        """Delete the records."""
        from confluent_kafka import OFFSET_END, TopicPartition

        ends = [TopicPartition(self._topic, partition, OFFSET_END) for partition in range(PARTITIONS)]
        await self._ask(lambda admin: admin.delete_records(ends, request_timeout=_TIMEOUT))

    async def arrived(self) -> Arrival:
        """What lies between the watermarks of all partitions, with the times at which it was appended."""
        return await asyncio.to_thread(self._look)

    async def remove(self) -> None:
        """Delete the topic."""
        await self._ask(lambda admin: admin.delete_topics([self._topic], request_timeout=_TIMEOUT))

    async def _ask(self, question: Callable[[Any], dict[Any, Any]]) -> None:
        def ask() -> None:
            from confluent_kafka.admin import AdminClient

            admin = AdminClient(self._settings)  # has to outlive its answers
            for answer in question(admin).values():
                answer.result(timeout=_TIMEOUT)

        await asyncio.to_thread(ask)

    def _look(self) -> Arrival:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self._settings | {"group.id": "oncommit-bench", "enable.auto.commit": False})
        count, times = 0, []
        try:
            for partition in range(PARTITIONS):
                low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_TIMEOUT)
                count += high - low
                if high > low:
                    times += [self._time(consumer, partition, offset) for offset in (low, high - 1)]
        finally:
            consumer.close()
        return Arrival(count, min(times), max(times)) if times else Arrival(0)

    def _time(self, consumer: Any, partition: int, offset: int) -> float:
        from confluent_kafka import TopicPartition

        consumer.assign([TopicPartition(self._topic, partition, offset)])
        message = consumer.poll(_TIMEOUT)
        if message is None or message.error():
            raise OncommitError(f"the last message of partition {partition} cannot be read")
        return float(message.timestamp()[1]) / 1000


def make_home(url: str, topic: str) -> KafkaHome:
    """A place for this topic."""
    return KafkaHome(url, topic)
