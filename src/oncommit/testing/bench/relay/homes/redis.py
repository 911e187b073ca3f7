"""A Redis stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from oncommit.testing.bench.relay.timeline import Arrival


class RedisHome:
    """One key."""

    storage = "one stream"

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    async def make(self) -> None:
        """A stream is made by its first entry."""

    async def empty(self) -> None:
        """Delete the key."""
        async with self._client() as client:
            await client.delete(self._key)

    async def arrived(self) -> Arrival:
        """Entries in the stream; their ids begin with the time in milliseconds."""
        async with self._client() as client:
            count = int(await client.xlen(self._key))
            ends: list[Any] = []
            for look in (client.xrange, client.xrevrange):
                ends += await look(self._key, count=1) or []
        times = [int(entry[0].partition(b"-")[0]) / 1000 for entry in ends]
        return Arrival(count, *times)

    async def remove(self) -> None:
        """Delete the key."""
        await self.empty()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Redis]:
        client = Redis.from_url(self._url)
        try:
            yield client
        finally:
            await client.aclose()


def make_home(url: str, topic: str) -> RedisHome:
    """A place for this topic."""
    return RedisHome(url, topic)
