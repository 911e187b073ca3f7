"""The line between adapter and server fails at a chosen moment; the server itself is well."""

from __future__ import annotations

import asyncio

import pytest

from oncommit.brokers.base import Message
from oncommit.errors import BrokerUnavailable, PublishFailed
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import acknowledged, check_all, check_once, check_order, check_there
from oncommit.testing.conformance.messages import Mint, without
from oncommit.testing.conformance.work import GRACE, PATIENT, SHORT, eventually, opened, publish_all, until_it_answers


class Lines:
    """Faults of the network, by way of a proxy."""

    @pytest.mark.parametrize("fault", ["cut_request", "drop_answer"])
    @pytest.mark.parametrize("after", [0, 1, 3])
    async def test_a_connection_cut_in_mid_batch(self, bench: Bench, fault: str, after: int) -> None:
        """Whatever was on its way: what is acknowledged is there, of no key a later one without those before it."""
        topic = await bench.make_topic()
        with bench.proxied() as (proxy, url):
            async with opened(bench, url) as broker:
                mint = Mint(broker, topic)
                warm = [mint.message({}, key=f"warm {number}") for number in range(3)]
                check_all(warm, await broker.publish(warm, timeout=PATIENT))
                getattr(proxy, fault)(after=after)
                messages: list[Message] = []
                done: list[Message] = []
                while not proxy.struck:  # an adapter may need one request for a whole batch
                    assert len(done) == len(messages) < 20 * 240
                    batch = mint.some(240, keys=12, size=2000)
                    messages += batch
                    done += acknowledged(batch, await broker.publish(batch, timeout=PATIENT))
                arrived = await bench.arrived(topic)
                check_there(arrived, done)
                check_order(arrived, messages)
                await until_it_answers(broker, within=bench.recovery)
                await publish_all(broker, without(messages, done), within=bench.recovery)
        arrived = await bench.arrived(topic)
        check_there(arrived, messages)
        check_order(arrived, messages)

    async def test_without_an_answer_nothing_is_acknowledged(self, bench: Bench) -> None:
        """The message arrives, the answer never does, and nobody is there to ask: it counts as failed."""
        topic = await bench.make_topic()
        with bench.proxied() as (proxy, url):
            async with opened(bench, url) as broker:
                mint = Mint(broker, topic)
                (warm,) = mint.of_key("warm", 1)
                check_all([warm], await broker.publish([warm], timeout=PATIENT))
                (message,) = mint.of_key("k", 1)
                proxy.refuse()
                proxy.drop_answer()
                async with asyncio.timeout(SHORT + GRACE + bench.ping_limit):
                    (outcome,) = await broker.publish([message], timeout=SHORT)
                assert proxy.struck
                assert isinstance(outcome, BrokerUnavailable | PublishFailed)
                check_once(await bench.arrived(topic), [warm, message])
                proxy.heal()
                await until_it_answers(broker, within=bench.recovery)
                await publish_all(broker, [message], within=bench.recovery)
                deduplicates = broker.capabilities.deduplicates
        arrived = await bench.arrived(topic)
        check_there(arrived, [warm, message])
        assert len(arrived) <= (2 if deduplicates else 3)

    async def test_cut_between_two_batches_is_not_noticed(self, bench: Bench) -> None:
        """The adapter connects again by itself."""
        topic = await bench.make_topic()
        with bench.proxied() as (proxy, url):
            async with opened(bench, url) as broker:
                mint = Mint(broker, topic)
                messages = mint.of_key("k", 4)
                check_all(messages[:2], await broker.publish(messages[:2], timeout=PATIENT))
                proxy.cut()
                await until_it_answers(broker, within=bench.recovery)
                await publish_all(broker, messages[2:], within=bench.recovery)
        arrived = await bench.arrived(topic)
        check_there(arrived, messages)
        check_order(arrived, messages)

    async def test_a_silent_line_costs_the_time_limit_and_no_more(self, bench: Bench) -> None:
        """Connected, and nothing comes through; later everything does."""
        topic = await bench.make_topic()
        with bench.proxied() as (proxy, url):
            async with opened(bench, url) as broker:
                mint = Mint(broker, topic)
                (warm,) = mint.of_key("warm", 1)
                check_all([warm], await broker.publish([warm], timeout=PATIENT))
                messages = mint.some(12, keys=4)
                proxy.hold()
                async with asyncio.timeout(SHORT + GRACE + bench.ping_limit):
                    assert acknowledged(messages, await broker.publish(messages, timeout=SHORT)) == []
                proxy.heal()
                await until_it_answers(broker, within=bench.recovery)
                await publish_all(broker, messages, within=bench.recovery)
        arrived = await eventually(lambda: bench.arrived(topic), lambda found: len(found) > len(messages))
        check_there(arrived, messages)
        check_order(arrived, messages)
