"""Each broker's client as its documentation shows it: what somebody has who publishes without a database.

The messages, their headers and the batches are the relay's, the settings and the number in flight those of our adapter,
and every message is acknowledged before the batch counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from oncommit.errors import OncommitError

if TYPE_CHECKING:
    from oncommit.brokers.base import Message

PublishBatch = Callable[[Sequence["Message"]], Awaitable[None]]

_NATS_PENDING: Final = 4000
_RABBITMQ_UNCONFIRMED: Final = 500
"""aio-pika gets slower with more."""
_REDIS_PIPELINE: Final = 1000


@asynccontextmanager
async def nats_client(url: str) -> AsyncIterator[PublishBatch]:
    """nats-py: ``publish_async`` with a window."""
    import nats

    client = await nats.connect(url)
    jetstream = client.jetstream(publish_async_max_pending=_NATS_PENDING)

    async def publish(batch: Sequence[Message]) -> None:
        answers = [
            await jetstream.publish_async(one.topic, one.body, headers={**one.headers, "Nats-Msg-Id": one.message_id})
            for one in batch
        ]
        await asyncio.gather(*answers)

    yield publish
    await client.close()


@asynccontextmanager
async def rabbitmq_client(url: str) -> AsyncIterator[PublishBatch]:
    """aio-pika: confirmed, persistent, mandatory; as many unconfirmed as it is quickest with."""
    import aio_pika

    async with await aio_pika.connect(url) as connection, connection.channel(publisher_confirms=True) as channel:
        exchanges: dict[str, Any] = {}

        async def send(one: Message) -> None:
            name, _, key = one.topic.partition("/")
            if name not in exchanges:
                exchanges[name] = await channel.get_exchange(name, ensure=False)
            message = aio_pika.Message(
                one.body,
                headers=dict(one.headers),
                message_id=one.message_id,
                content_type=one.content_type,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await exchanges[name].publish(message, key, mandatory=True)

        async def publish(batch: Sequence[Message]) -> None:
            for first in range(0, len(batch), _RABBITMQ_UNCONFIRMED):
                await asyncio.gather(*(send(one) for one in batch[first : first + _RABBITMQ_UNCONFIRMED]))

        yield publish


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[PublishBatch]:
    """redis-py: a pipeline of XADDs."""
    from redis.asyncio import Redis

    client: Any = Redis.from_url(url)

    async def publish(batch: Sequence[Message]) -> None:
        for first in range(0, len(batch), _REDIS_PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for one in batch[first : first + _REDIS_PIPELINE]:
                pipeline.xadd(one.topic, {**one.headers, "ce-data": one.body})
            await pipeline.execute()

    yield publish
    await client.aclose()


@asynccontextmanager
async def kafka_client(url: str) -> AsyncIterator[PublishBatch]:
    """confluent-kafka, with the adapter's settings."""
    from confluent_kafka import Producer

    from oncommit.brokers.kafka_settings import settings_of

    producer: Any = Producer(settings_of(url))

    def produce(batch: Sequence[Message]) -> None:
        refused: list[Any] = []

        def answered(error: Any, _message: Any) -> None:
            if error is not None:
                refused.append(error)

        for one in batch:
            while True:
                try:
                    producer.produce(
                        one.topic, one.body, one.key, headers=list(one.headers.items()), on_delivery=answered
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        producer.flush()
        if refused:
            raise OncommitError(f"the broker did not take {len(refused)} of {len(batch)} messages: {refused[0]}")

    async def publish(batch: Sequence[Message]) -> None:
        await asyncio.to_thread(produce, batch)

    yield publish


CLIENTS: Final = {"nats": nats_client, "rabbitmq": rabbitmq_client, "redis": redis_client, "kafka": kafka_client}
