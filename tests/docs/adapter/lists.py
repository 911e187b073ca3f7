"""An adapter of one's own: a topic is a list in Redis. Whoever makes the list makes the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.cloudevents import REDIS
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishFailed, TopicUnavailable

LIMIT = 5.0  # seconds
MOST = 50  # in flight


class Entry(msgspec.Struct):
    """What stands in the list."""

    headers: dict[str, str]
    body: bytes


class ListBroker:
    """For ``lists://host:6379``."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("lists://", "redis://", 1)
        self._redis: Redis | None = None
        self.capabilities = Capabilities(
            name="lists",
            binding=REDIS,
            acknowledged_means="in the list; on disk as appendfsync says",
            ordered_pipelining=False,
            deduplicates=False,
        )

    async def open(self) -> None:
        if self._redis is not None:
            return
        redis = Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), socket_timeout=LIMIT)
        try:
            await redis.ping()
        except (RedisError, OSError) as error:
            await redis.aclose()
            raise BrokerUnavailable(f"Redis cannot be reached: {error}") from error
        self._redis = redis

    async def close(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()
            await redis.connection_pool.disconnect()  # also what is being waited for

    async def ping(self) -> None:
        await self.open()
        assert self._redis is not None
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"Redis cannot be reached: {error}") from error

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [NotAttempted("an earlier event of its key was not taken") for _ in batch]
        keys: dict[str, list[int]] = {}
        for index, message in enumerate(batch):
            keys.setdefault(f"none {index}" if message.key is None else f"key {message.key}", []).append(index)
        room = asyncio.Semaphore(MOST)

        async def follow(indexes: list[int]) -> None:
            """The messages of one key, each behind the answer to the one before."""
            for index in indexes:
                async with room:
                    outcomes[index] = PublishFailed("Redis gave no answer")  # until there is one
                    outcomes[index] = await self._push(batch[index])
                if outcomes[index] is not None:
                    return

        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*map(follow, keys.values()))
        except TimeoutError:
            pass
        return outcomes

    async def _push(self, message: Message) -> Outcome:
        if self._redis is None:
            return BrokerUnavailable("not open")
        entry = msgspec.json.encode(Entry(message.headers, message.body))
        try:
            taken = await self._redis.rpushx(message.topic, entry)  # only where there is such a list
        except (RedisError, OSError) as error:
            return BrokerUnavailable(f"Redis cannot be reached: {error}")
        return None if taken else TopicUnavailable(f"there is no list {message.topic!r}")
