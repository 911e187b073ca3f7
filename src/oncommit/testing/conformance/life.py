"""Opened, closed, cancelled, and opened again."""

from __future__ import annotations

import asyncio

from oncommit.errors import BrokerUnavailable
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import check_all, check_order, check_there
from oncommit.testing.conformance.messages import Mint
from oncommit.testing.conformance.work import GRACE, PATIENT, opened, paused, publish_all, until_it_answers


class Life:
    """What whoever holds an adapter may do with it."""

    async def test_open_and_close_can_be_said_twice(self, bench: Bench) -> None:
        """And an adapter that was closed can be opened again."""
        topic = await bench.make_topic()
        broker = bench.broker(bench.url)
        await broker.close()
        messages = Mint(broker, topic).of_key("k", 4)
        for begin in (0, 2):
            await broker.open()
            await broker.open()
            await broker.ping()
            await broker.ping()
            check_all(messages[begin : begin + 2], await broker.publish(messages[begin : begin + 2], timeout=PATIENT))
            await broker.close()
            await broker.close()
        arrived = await bench.arrived(topic)
        assert [one.message_id for one in arrived] == [message.message_id for message in messages]

    async def test_publishing_before_opening_is_an_outcome(self, bench: Bench) -> None:
        """Not an exception: a relay must not stop for it."""
        topic = await bench.make_topic()
        broker = bench.broker(bench.url)
        message = Mint(broker, topic).message({})
        (outcome,) = await broker.publish([message], timeout=PATIENT)
        await broker.close()
        assert outcome is None or isinstance(outcome, BrokerUnavailable)

    async def test_nothing_is_left_behind(self, bench: Bench) -> None:
        """Once closed, none of its tasks runs."""
        before = asyncio.all_tasks()
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            messages = Mint(broker, topic).some(20, keys=5)
            check_all(messages, await broker.publish(messages, timeout=PATIENT))
        assert asyncio.all_tasks() - before == set()

    async def test_a_cancelled_publish_leaves_nothing_in_flight(self, bench: Bench) -> None:
        """What comes later of the same key is behind it or without it, and the adapter works as before."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            messages = mint.some(40, keys=4)
            check_all(messages[:4], await broker.publish(messages[:4], timeout=PATIENT))
            async with paused(bench):
                publishing = asyncio.create_task(broker.publish(messages[4:20], timeout=PATIENT))
                await asyncio.wait({publishing}, timeout=0.3)
                assert not publishing.done()
                publishing.cancel()
                async with asyncio.timeout(GRACE):
                    await asyncio.wait({publishing})
                assert publishing.cancelled()
            await until_it_answers(broker, within=bench.recovery)
            await publish_all(broker, messages[4:], within=bench.recovery)
        arrived = await bench.arrived(topic)
        check_there(arrived, messages)
        check_order(arrived, messages)

    async def test_closing_gives_up_what_is_in_flight(self, bench: Bench) -> None:
        """Soon, and without an exception for whoever publishes."""
        topic = await bench.make_topic()
        broker = bench.broker(bench.url)
        await broker.open()
        messages = Mint(broker, topic).some(8, keys=2)
        async with paused(bench):
            publishing = asyncio.create_task(broker.publish(messages, timeout=PATIENT))
            await asyncio.wait({publishing}, timeout=0.3)
            async with asyncio.timeout(2 * GRACE + bench.ping_limit):
                await broker.close()
                outcomes = await publishing
        assert all(isinstance(outcome, Exception) for outcome in outcomes)
