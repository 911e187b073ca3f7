"""What the cases have in common: an adapter opened and closed, a server down for a while, a relay's patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import pytest

from oncommit.brokers.base import Broker, Message, Outcome
from oncommit.errors import BrokerUnavailable
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import acknowledged

T = TypeVar("T")

PATIENT: Final = 15.0
"""Seconds for a publish that has no reason to fail."""
SHORT: Final = 2.0
"""Seconds for a publish that will fail."""
GRACE: Final = 3.0
"""Seconds that a publish may take beyond its limit, to see what is wrong and to give up what is in flight."""


@asynccontextmanager
async def opened(bench: Bench, url: str | None = None) -> AsyncIterator[Broker]:
    """An adapter, open."""
    broker = bench.broker(url or bench.url)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def down(bench: Bench) -> AsyncIterator[None]:
    """Killed for as long as the block takes."""
    await asyncio.to_thread(bench.server.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(bench.server.start)


@asynccontextmanager
async def paused(bench: Bench) -> AsyncIterator[None]:
    """Stopped in its tracks for as long as the block takes."""
    bench.server.pause()
    try:
        yield
    finally:
        bench.server.resume()


async def publish_all(broker: Broker, messages: Sequence[Message], *, within: float) -> None:
    """As a relay does: what was not acknowledged is sent again, in its order, until everything is."""
    left = list(messages)
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    outcomes: Sequence[Outcome] = ()
    while left:
        if loop.time() > end:
            bad = next(outcome for outcome in outcomes if outcome is not None)
            raise AssertionError(f"{len(left)} messages still fail after {within:.0f} s, the first with {bad!r}")
        outcomes = await broker.publish(left, timeout=PATIENT)
        done = {message.message_id for message in acknowledged(left, outcomes)}
        left = [message for message in left if message.message_id not in done]
        if left:
            await asyncio.sleep(0.1)  # a relay's back-off


async def until_it_answers(broker: Broker, *, within: float) -> None:
    """As a relay does: ping until the broker is back."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while True:
        try:
            await broker.open()
            await broker.ping()
        except BrokerUnavailable:
            if loop.time() > end:
                raise
            await asyncio.sleep(0.1)  # a relay's back-off
        else:
            return


async def eventually(look: Callable[[], Awaitable[T]], good: Callable[[T], bool], *, within: float = 15.0) -> T:
    """Look until it is as wanted, or time is up; what was seen last."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while True:
        seen = await look()
        if good(seen) or loop.time() > end:
            return seen
        await asyncio.sleep(0.02)  # a server has no event to wait for


def hangs_on(*names: str) -> pytest.MarkDecorator:
    """A case for those only that have these; it is left out where the class names one of them in ``lacks``."""
    return pytest.mark.oncommit_hangs_on(*names)


def need(value: T | None, name: str) -> T:
    """What the case hangs on; it must not pass by not being tried."""
    if not value:
        pytest.fail(f"there is no {name} here: say so, lacks = frozenset({{{name!r}}}) in the class", pytrace=False)
    return value


def offered(bench: Bench, name: str) -> object:
    """What there is of this name: a capability of the adapter, or something that the bench has."""
    if name in ("forbidden_topic", "oversize", "wrong_login"):
        return getattr(bench, name)()
    return getattr(bench.broker(bench.url).capabilities, name)
