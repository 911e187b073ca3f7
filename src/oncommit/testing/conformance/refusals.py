"""What the broker refuses is told apart, since it decides what becomes of an event."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oncommit.brokers.base import Broker
from oncommit.errors import BrokerUnavailable, PublishRejected, TopicUnavailable
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import check_once
from oncommit.testing.conformance.messages import Mint
from oncommit.testing.conformance.work import PATIENT, hangs_on, need, opened

QUICK = 10.0
"""Seconds within which a refusal is told, although the publish has a longer limit."""


class Refusals:
    """The kinds of error."""

    @hangs_on("oversize")
    async def test_too_large_is_rejected_for_good(self, bench: Bench) -> None:
        """And only that one."""
        size = need(bench.oversize(), "oversize")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batch = [mint.message({"n": number}, key=f"key {number}") for number in range(4)]
            batch[1] = mint.message(b"." * size, key="large")
            outcomes = await broker.publish(batch, timeout=PATIENT)
            assert isinstance(outcomes[1], PublishRejected)
            assert str(size)[:3] in str(outcomes[1]), "the message says how large it is"
            assert [outcomes[0], *outcomes[2:]] == [None] * 3
        check_once(await bench.arrived(topic), [batch[0], *batch[2:]])

    async def test_a_missing_topic_stops_only_itself(self, bench: Bench) -> None:
        """It is named, it is told soon, and the others arrive."""
        topic, missing = await bench.make_topic(), bench.missing_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batch = [mint.message({"n": number}, key=f"key {number}") for number in range(4)]
            batch[1] = mint.message({"n": 1}, key="astray", topic=missing)
            async with asyncio.timeout(QUICK):
                outcomes = await broker.publish(batch, timeout=PATIENT)
            assert isinstance(outcomes[1], TopicUnavailable)
            assert missing in str(outcomes[1])
            assert [outcomes[0], *outcomes[2:]] == [None] * 3
        check_once(await bench.arrived(topic), [batch[0], *batch[2:]])

    @hangs_on("forbidden_topic")
    async def test_a_forbidden_topic_stops_only_itself(self, bench: Bench) -> None:
        """The same for one that exists and may not be written to."""
        forbidden = need(bench.forbidden_topic(), "forbidden_topic")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batch = [mint.message({"n": number}, key=f"key {number}") for number in range(4)]
            batch[1] = mint.message({"n": 1}, key="astray", topic=forbidden)
            async with asyncio.timeout(QUICK):
                outcomes = await broker.publish(batch, timeout=PATIENT)
            assert isinstance(outcomes[1], TopicUnavailable)
            assert forbidden in str(outcomes[1])
            assert [outcomes[0], *outcomes[2:]] == [None] * 3
        check_once(await bench.arrived(topic), [batch[0], *batch[2:]])

    @hangs_on("wrong_login")
    async def test_a_login_that_is_refused_is_no_event_s_fault(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It counts as the broker being unavailable; the error says what to look at, and nothing shows the password."""
        login = need(bench.wrong_login(), "wrong_login")
        caplog.set_level(logging.DEBUG)
        broker = bench.broker(login.url)
        try:
            with pytest.raises(BrokerUnavailable) as raised:
                await _enter(broker)
            message = Mint(broker, await bench.make_topic()).message({"a": 1})
            (outcome,) = await broker.publish([message], timeout=PATIENT)
        finally:
            await broker.close()
        assert isinstance(outcome, BrokerUnavailable)
        told = f"{raised.value} {outcome}"
        assert any(word in told.lower() for word in ("login", "password", "authenti", "credential", "user")), told
        causes = " ".join(repr(error) for error in (raised.value, raised.value.__cause__, outcome, outcome.__cause__))
        assert login.password not in f"{told} {causes} {broker!r} {caplog.text}"


async def _enter(broker: Broker) -> None:
    """Some clients log in when they connect, others when they are first used."""
    await broker.open()
    await broker.ping()
