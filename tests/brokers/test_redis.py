"""The adapter for Redis in the conformance suite, against a real server: by script, and in waves without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from oncommit.brokers.redis import RedisBroker
from oncommit.testing.conformance import Arrived, Bench, Conformance, WrongLogin
from oncommit.testing.servers import Server
from oncommit.testing.servers import redis as redis_server

USERS = (
    "user app on >right +@all ~conformance:* &*",
    "user plain on >right +xadd +config ~conformance:* &*",
)
LIMIT = 200_000 * 40


class RedisBench(Bench):
    """A topic is a stream; missing ones are not made."""

    def __init__(self, server: Server, user: str, *, scripts: str = "yes") -> None:
        self.server = server
        self._user = user
        self._scripts = scripts

    @property
    def url(self) -> str:
        return (
            self.server.url.replace("://", f"://{self._user}:right@")
            + f"?create=no&max_message={LIMIT}&scripts={self._scripts}"
        )

    def broker(self, url: str) -> RedisBroker:
        return RedisBroker(url)

    async def make_topic(self) -> str:
        topic = f"conformance:{uuid4().hex}"
        async with self._client() as client:
            await client.xgroup_create(topic, "readers", mkstream=True)
        return topic

    async def arrived(self, topic: str) -> list[Arrived]:
        async with self._client() as client:
            entries = await client.xrange(topic)
        return [_arrived({name.decode(): value for name, value in fields.items()}) for _, fields in entries]

    def missing_topic(self) -> str:
        return f"conformance:nobody:{uuid4().hex}"

    def forbidden_topic(self) -> str:
        return "elsewhere"

    def oversize(self) -> int:
        return LIMIT + 1

    def wrong_login(self) -> WrongLogin:
        password = "not-the-right-one"
        return WrongLogin(self.url.replace(":right@", f":{password}@"), password)

    def _client(self) -> Any:
        return Redis.from_url(self.server.url)


def _arrived(fields: dict[str, bytes]) -> Arrived:
    body = fields.pop("ce-data", b"")
    headers = {name: value.decode() for name, value in fields.items()}
    return Arrived(headers=headers, body=body, key=headers.get("ce-partitionkey"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server(durable=True, settings=USERS) as server:
        yield server


class TestRedis(Conformance):
    lacks = frozenset({"deduplicates", "transactional_batch"})

    @pytest.fixture
    def bench(self, server: Server) -> RedisBench:
        return RedisBench(server, "app")


class TestRedisWithoutScripts(Conformance):
    """A user who may add to streams and do nothing else."""

    lacks = frozenset({"deduplicates", "ordered_pipelining", "transactional_batch"})

    @pytest.fixture
    def bench(self, server: Server) -> RedisBench:
        return RedisBench(server, "plain", scripts="no")
