"""The adapter for NATS JetStream in the conformance suite, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import nats
import pytest

from oncommit.brokers.nats import NatsBroker
from oncommit.testing.conformance import Arrived, Bench, Conformance, WrongLogin
from oncommit.testing.servers import Server
from oncommit.testing.servers import nats as nats_server

STREAM = "conformance"
# Whoever gives no login is `app`; a wrong one is refused.
LOGINS = {
    "authorization": {
        "users": [{"user": "app", "password": "right", "permissions": {"publish": {"deny": ["conformance.secret"]}}}]
    },
    "no_auth_user": "app",
}


class NatsBench(Bench):
    """A stream of its own; a topic is a subject."""

    allows = False

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    def broker(self, url: str) -> NatsBroker:
        return NatsBroker(url)

    async def make_topic(self) -> str:
        client = await nats.connect(self.url)
        await client.jetstream().add_stream(name=STREAM, subjects=[f"{STREAM}.>"], allow_batched=self.allows)
        await client.close()
        return f"{STREAM}.{uuid4().hex}"

    async def arrived(self, topic: str) -> list[Arrived]:
        client = await nats.connect(self.url)
        try:
            stored = (await client.jetstream().stream_info(STREAM, subjects_filter=topic)).state.subjects or {}
            subscription = await client.jetstream().subscribe(topic, ordered_consumer=True)
            found = [await subscription.next_msg(timeout=5) for _ in range(stored.get(topic, 0))]
            arrived = [Arrived(headers=dict(one.headers or {}), body=one.data) for one in found]
        finally:
            await client.close()
        return arrived

    def missing_topic(self) -> str:
        return f"nobody.{uuid4().hex}"

    def forbidden_topic(self) -> str:
        return "conformance.secret"

    def oversize(self) -> int:
        return 8 * 1024 * 1024 + 1

    def wrong_login(self) -> WrongLogin:
        password = "not-the-right-one"
        return WrongLogin(self.url.replace("://", f"://app:{password}@"), password)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with nats_server(durable=True, settings=LOGINS) as server:
        yield NatsBench(server)


class TestNats(Conformance):
    lacks = frozenset({"ordered_pipelining", "transactional_batch", "max_message"})
