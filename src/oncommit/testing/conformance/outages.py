"""The server dies, hangs and comes back. What was acknowledged is there, and a relay that goes on loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from oncommit.brokers.base import Broker, Message
from oncommit.errors import BrokerUnavailable
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import acknowledged, check_all, check_order, check_there
from oncommit.testing.conformance.messages import Mint, without
from oncommit.testing.conformance.work import (
    GRACE,
    PATIENT,
    SHORT,
    down,
    eventually,
    opened,
    paused,
    publish_all,
    until_it_answers,
)

BATCH = 200


class Outages:
    """The server itself is hurt, and started again."""

    async def test_a_server_that_is_down_is_no_event_s_fault(self, bench: Bench) -> None:
        """Opening says so. Publishing raises nothing, and blames nothing but the broker. Later both work."""
        topic = await bench.make_topic()
        late = bench.broker(bench.url)
        async with opened(bench) as broker:
            messages = Mint(broker, topic).some(20, keys=20)
            async with down(bench):
                with pytest.raises(BrokerUnavailable):
                    await late.open()
                async with asyncio.timeout(SHORT + GRACE):
                    outcomes = await broker.publish(messages, timeout=SHORT)
                assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * 20
                with pytest.raises(BrokerUnavailable):
                    await broker.ping()
            await until_it_answers(broker, within=bench.recovery)
            await publish_all(broker, messages, within=bench.recovery)
            await until_it_answers(late, within=bench.recovery)
            await publish_all(late, messages, within=bench.recovery)
            await late.close()
        check_there(await bench.arrived(topic), messages)

    async def test_what_was_acknowledged_outlasts_a_kill(self, bench: Bench) -> None:
        """Killed in mid-batch; the same adapter goes on when the server is back, and nothing is lost or overtaken."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            sending = asyncio.create_task(_until_it_fails(broker, Mint(broker, topic)))
            some_arrived = await eventually(lambda: bench.arrived(topic), lambda arrived: len(arrived) > BATCH)
            assert some_arrived
            async with down(bench):
                messages, done = await sending
            if bench.durable:
                check_there(await bench.arrived(topic), done)
            check_order(await bench.arrived(topic), messages)
            await until_it_answers(broker, within=bench.recovery)
            await publish_all(broker, without(messages, done), within=bench.recovery)
        arrived = await bench.arrived(topic)
        if bench.durable:
            check_there(arrived, messages)
            check_order(arrived, messages)

    async def test_a_server_that_hangs_costs_the_time_limit_and_no_more(self, bench: Bench) -> None:
        """Nothing is acknowledged, nothing raised; when it goes on, so does the adapter, and nothing is overtaken."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            before = mint.of_key("k", 1)
            check_all(before, await broker.publish(before, timeout=PATIENT))
            messages = mint.some(30, keys=10)
            async with paused(bench), asyncio.timeout(SHORT + GRACE + bench.ping_limit):
                assert acknowledged(messages, await broker.publish(messages, timeout=SHORT)) == []
            await until_it_answers(broker, within=bench.recovery)
            await publish_all(broker, messages, within=bench.recovery)
        arrived = await bench.arrived(topic)
        check_there(arrived, messages)
        check_order(arrived, messages)


async def _until_it_fails(broker: Broker, mint: Mint) -> tuple[list[Message], list[Message]]:
    """Publish batch after batch; everything that was tried, and what of it was acknowledged."""
    messages: list[Message] = []
    done: list[Message] = []
    while len(messages) == len(done):
        # Keys of their own for each batch, as a relay tries nothing of a key behind what has failed.
        batch = [mint.message({"n": number}, key=f"{len(messages)} {number % 20}") for number in range(BATCH)]
        messages += batch
        done += acknowledged(batch, await broker.publish(batch, timeout=PATIENT))
    return messages, done
