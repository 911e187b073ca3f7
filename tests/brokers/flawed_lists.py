"""The adapter of the guide with one flaw, which the environment names. Not collected by itself: test_the_suite.py."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishFailed
from oncommit.testing.conformance import Bench, Conformance
from oncommit.testing.servers import redis
from tests.docs.adapter.lists import ListBroker
from tests.docs.adapter.test_lists import ListBench

Outcomes = Sequence[Outcome]


class Flawed(ListBroker):
    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Outcomes:
        return await FLAWS[os.environ["FLAW"]](self, batch, timeout)

    async def well(self, batch: Sequence[Message], timeout: float) -> Outcomes:
        return await super().publish(batch, timeout=timeout)


async def forgets(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Says that it has sent what it has not."""
    await broker.well([message for number, message in enumerate(batch) if number % 7 != 6], timeout)
    return [None] * len(batch)


async def repeats(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    await broker.well(batch, timeout)
    return await broker.well(batch, timeout)


async def swaps(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Sends two messages of one key in the other order."""
    mixed = list(batch)
    for place, (one, other) in enumerate(pairwise(batch)):
        if one.key == other.key:
            mixed[place : place + 2] = [other, one]
            break
    return await broker.well(mixed, timeout)


async def overtakes(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Goes on with a key of which one was refused."""
    outcomes = list(await broker.well(batch, timeout))
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, NotAttempted):
            (outcomes[index],) = await broker.well([batch[index]], timeout)
    return outcomes


async def strips(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Loses what is not ASCII."""

    def ascii_only(headers: dict[str, str]) -> dict[str, str]:
        return {name: value.encode("ascii", "ignore").decode() for name, value in headers.items()}

    return await broker.well([msgspec.structs.replace(one, headers=ascii_only(one.headers)) for one in batch], timeout)


async def raises(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    outcomes = await broker.well(batch, timeout)
    for outcome in outcomes:
        if isinstance(outcome, BrokerUnavailable):
            raise outcome
    return outcomes


async def hopes(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Takes no answer for a good one."""
    outcomes = await broker.well(batch, timeout)
    return [None if isinstance(one, PublishFailed | BrokerUnavailable) else one for one in outcomes]


async def insists(broker: Flawed, batch: Sequence[Message], timeout: float) -> Outcomes:
    """Tries again and again, beyond its time limit."""
    for _ in range(5):
        outcomes = await broker.well(batch, timeout)
        if outcomes == [None] * len(batch):
            break
    return outcomes


FLAWS: dict[str, Callable[[Flawed, Sequence[Message], float], Awaitable[Outcomes]]] = {
    flaw.__name__: flaw for flaw in (forgets, repeats, swaps, overtakes, strips, raises, hopes, insists)
}


class FlawedBench(ListBench):
    def broker(self, url: str) -> Flawed:
        return Flawed(url)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with redis(durable=True) as server:
        yield FlawedBench(server)


class TestFlawed(Conformance):
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
