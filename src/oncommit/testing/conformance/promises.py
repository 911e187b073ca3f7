"""What an adapter says of itself is true. A promise that it does not make is not asked for."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from oncommit.errors import PublishRejected
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import acknowledged, check_all, check_once
from oncommit.testing.conformance.messages import Mint
from oncommit.testing.conformance.work import PATIENT, hangs_on, need, offered, opened

LATE = 0.03
MANY = 60


class Promises:
    """The capabilities."""

    lacks: ClassVar[frozenset[str]] = frozenset()
    """What the adapter does not promise, or the bench does not have; cases that hang on it are left out."""

    async def test_capabilities_are_known_beforehand(self, bench: Bench) -> None:
        """Before it is opened; only a limit that the server alone knows may come later."""
        broker = bench.broker(bench.url)
        told = broker.capabilities
        assert told.name
        assert told.acknowledged_means
        await broker.open()
        await broker.close()
        for name in ("name", "binding", "ordered_pipelining", "deduplicates", "transactional_batch"):
            assert getattr(broker.capabilities, name) == getattr(told, name)
        assert [name for name in self.lacks if offered(bench, name)] == [], "it has what the class says it lacks"

    @hangs_on("deduplicates")
    async def test_the_same_id_twice_arrives_once(self, bench: Bench) -> None:
        """In one batch, in the next one, and by way of another connection."""
        need(offered(bench, "deduplicates"), "deduplicates")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            messages = Mint(broker, topic).some(4, keys=4)
            twice = [*messages, messages[0]]
            check_all(twice, await broker.publish(twice, timeout=PATIENT))
            check_all(messages, await broker.publish(messages, timeout=PATIENT))
        async with opened(bench) as broker:
            check_all(messages, await broker.publish(messages, timeout=PATIENT))
        check_once(await bench.arrived(topic), messages)

    @hangs_on("ordered_pipelining")
    async def test_messages_of_one_key_fly_together(self, bench: Bench) -> None:
        """On a slow line many messages of one key take less than an answer's time each."""
        need(offered(bench, "ordered_pipelining"), "ordered_pipelining")
        topic = await bench.make_topic()
        with bench.proxied() as (proxy, url):
            async with opened(bench, url) as broker:
                mint = Mint(broker, topic)
                messages = mint.of_key("k", MANY)
                check_all(messages[:1], await broker.publish(messages[:1], timeout=PATIENT))
                proxy.delay(LATE)
                begun = asyncio.get_running_loop().time()
                check_all(messages[1:], await broker.publish(messages[1:], timeout=PATIENT))
                took = asyncio.get_running_loop().time() - begun
        assert took < MANY * 2 * LATE / 2

    @hangs_on("transactional_batch", "oversize")
    async def test_a_batch_is_accepted_as_a_whole(self, bench: Bench) -> None:
        """One that is refused keeps the others out."""
        need(offered(bench, "transactional_batch"), "transactional_batch")
        size = need(bench.oversize(), "oversize")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batch = [*mint.some(4, keys=4), mint.message(b"." * size, key="large")]
            assert acknowledged(batch, await broker.publish(batch, timeout=PATIENT)) == []
        assert await bench.arrived(topic) == []

    @hangs_on("max_message")
    async def test_the_limit_of_size_is_where_it_is_said_to_be(self, bench: Bench) -> None:
        """A payload above it is rejected, one well below it goes."""
        limit = need(bench.broker(bench.url).capabilities.max_message, "max_message")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            fits, not_so = mint.message(b"." * (limit - 4096), key="a"), mint.message(b"." * (limit + 1), key="b")
            outcomes = await broker.publish([fits, not_so], timeout=PATIENT)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], PublishRejected)
