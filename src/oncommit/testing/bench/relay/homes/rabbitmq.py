"""A durable queue bound to the topic's exchange."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity

from oncommit.testing.bench.relay.timeline import Arrival


class RabbitHome:
    """One queue; and the exchange, where it is not there."""

    storage = "one durable queue, bound to a durable topic exchange"

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._exchange, _, self._key = topic.partition("/")
        self._queue = f"oncommit.{self._key}"
        self._ours = False

    async def make(self) -> None:
        """Declare and bind."""
        async with self._channel() as channel:
            try:
                exchange = await channel.declare_exchange(self._exchange, passive=True)
            except ChannelNotFoundEntity:
                self._ours = True
                await channel.reopen()
                exchange = await channel.declare_exchange(self._exchange, type="topic", durable=True)
            queue = await channel.declare_queue(self._queue, durable=True)
            await queue.bind(exchange, self._key)

    async def empty(self) -> None:
        """Purge it."""
        async with self._channel() as channel:
            await (await channel.declare_queue(self._queue, durable=True)).purge()

    async def arrived(self) -> Arrival:
        """Messages in the queue, which keeps no times."""
        async with self._channel() as channel:
            queue = await channel.declare_queue(self._queue, durable=True, passive=True)
            return Arrival(queue.declaration_result.message_count or 0)

    async def remove(self) -> None:
        """Delete what was made."""
        async with self._channel() as channel:
            await channel.queue_delete(self._queue)
            if self._ours:
                await channel.exchange_delete(self._exchange)

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            yield channel


def make_home(url: str, topic: str) -> RabbitHome:
    """A place for this topic."""
    return RabbitHome(url, topic)
