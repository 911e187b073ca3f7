"""The adapter in the suite."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import msgspec
import pytest
from redis.asyncio import Redis

from oncommit.testing.conformance import Arrived, Bench, Conformance
from oncommit.testing.servers import Server, redis
from tests.docs.adapter.lists import Entry, ListBroker


class ListBench(Bench):
    def __init__(self, server: Server) -> None:
        self.server = server  # start, kill, pause, resume, alive

    @property
    def url(self) -> str:
        return self.server.url.replace("redis://", "lists://")

    def broker(self, url: str) -> ListBroker:
        return ListBroker(url)

    async def make_topic(self) -> str:
        topic = f"topic:{uuid4().hex}"
        async with Redis.from_url(self.server.url) as client:
            await client.rpush(topic, "its first entry: an empty list would not be there")
        return topic

    async def arrived(self, topic: str) -> list[Arrived]:
        async with Redis.from_url(self.server.url) as client:
            found = [msgspec.json.decode(one, type=Entry) for one in await client.lrange(topic, 1, -1)]
        return [Arrived(headers=one.headers, body=one.body) for one in found]

    def missing_topic(self) -> str:
        return f"nowhere:{uuid4().hex}"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with redis(durable=True) as server:
        yield ListBench(server)


class TestLists(Conformance):
    lacks = frozenset(
        {
            "deduplicates",
            "ordered_pipelining",
            "transactional_batch",
            "max_message",
            "oversize",
            "forbidden_topic",
            "wrong_login",
        }
    )
