"""The adapter for NATS JetStream in the suite once more: the stream allows flows, and everything goes in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.testing.conformance import Bench, Conformance
from oncommit.testing.servers import nats as nats_server
from tests.brokers.test_nats import LOGINS, NatsBench


class Impatient(NatsBroker):
    """Sends whatever it gets as a flow, and asks for the stream first."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        if self._streams is not None:
            for topic in {message.topic for message in batch}:
                self._streams.stream_of(topic)
            await self._streams.settled()
        return await super().publish(batch, timeout=timeout)


class FlowBench(NatsBench):
    """The stream allows flows, and the adapter sends everything in them that it can."""

    allows = True

    def broker(self, url: str) -> NatsBroker:
        return Impatient(url, flow_from=1)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with nats_server(durable=True, settings=LOGINS) as server:
        yield FlowBench(server)


class TestNatsInFlows(Conformance):
    lacks = frozenset({"ordered_pipelining", "transactional_batch", "max_message"})
