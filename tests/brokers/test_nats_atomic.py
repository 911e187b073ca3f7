"""The adapter for NATS JetStream in the conformance suite once more, with a stream that allows atomic batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.testing.conformance import Bench, Conformance
from oncommit.testing.servers import nats as nats_server
from tests.brokers.test_nats import LOGINS, NatsBench


class Impatient(NatsBroker):
    """Sends atomic batches of whatever two messages it gets, and asks for the stream first."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        if self._streams is not None:
            for topic in {message.topic for message in batch}:
                self._streams.stream_of(topic)
            await asyncio.gather(*self._streams._asking.values(), return_exceptions=True)
        return await super().publish(batch, timeout=timeout)


class AtomicBench(NatsBench):
    """The stream allows atomic batches, and the adapter sends everything in them that it can."""

    allows = True

    def broker(self, url: str) -> NatsBroker:
        return Impatient(url, atomic_from=2)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with nats_server(durable=True, settings=LOGINS) as server:
        yield AtomicBench(server)


class TestNatsInAtomicBatches(Conformance):
    pass
