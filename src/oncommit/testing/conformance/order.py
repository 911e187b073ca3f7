"""Of one key nothing overtakes."""

from __future__ import annotations

import asyncio

from oncommit.brokers.base import Message
from oncommit.errors import NotAttempted, TopicUnavailable
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.checks import acknowledged, check_all, check_once, check_order
from oncommit.testing.conformance.messages import Mint, ids
from oncommit.testing.conformance.work import PATIENT, hangs_on, need, opened


class Order:
    """The contract of ``publish``: a later message of a key is accepted only if every earlier one was."""

    async def test_a_key_keeps_its_order_from_batch_to_batch(self, bench: Bench) -> None:
        """Many small batches, one after the other."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            messages = Mint(broker, topic).some(300, keys=3)
            for begin in range(0, 300, 10):
                batch = messages[begin : begin + 10]
                check_all(batch, await broker.publish(batch, timeout=PATIENT))
        arrived = await bench.arrived(topic)
        check_once(arrived, messages)
        check_order(arrived, messages)

    async def test_one_key_alone_keeps_its_order(self, bench: Bench) -> None:
        """Everything in one batch is of one key."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            messages = Mint(broker, topic).of_key("only", 300)
            check_all(messages, await broker.publish(messages, timeout=PATIENT))
        assert [one.message_id for one in await bench.arrived(topic)] == ids(messages)

    @hangs_on("oversize")
    async def test_behind_one_that_is_refused_its_key_waits(self, bench: Bench) -> None:
        """One of the first key is too large: what comes after it of that key does not go, everything else does."""
        size = need(bench.oversize(), "oversize")
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            first, others = mint.of_key("refused", 6), mint.some(60, keys=6)
            first[2] = mint.message(b"." * size, key="refused")
            batch = _mixed(first, others)
            outcomes = dict(zip(ids(batch), await broker.publish(batch, timeout=PATIENT), strict=True))
        assert [outcomes[message.message_id] for message in (*first[:2], *others)] == [None] * 62
        assert outcomes[first[2].message_id] is not None
        for message in first[3:]:
            assert isinstance(outcomes[message.message_id], NotAttempted)
        arrived = await bench.arrived(topic)
        check_once(arrived, [*first[:2], *others])
        check_order(arrived, batch)

    async def test_a_key_waits_also_where_it_changes_its_topic(self, bench: Bench) -> None:
        """The second of three goes to a topic that is missing, the third to one that is not."""
        topic, other = await bench.make_topic(), await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batch = [
                mint.message({"number": 0}, key="moving"),
                mint.message({"number": 1}, key="moving", topic=bench.missing_topic()),
                mint.message({"number": 2}, key="moving", topic=other),
                mint.message({"number": 3}, key="moving"),
                mint.message({"number": 4}, key="resting"),
            ]
            outcomes = await broker.publish(batch, timeout=PATIENT)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], TopicUnavailable)
        assert isinstance(outcomes[2], NotAttempted)
        assert isinstance(outcomes[3], NotAttempted)
        assert outcomes[4] is None
        check_once(await bench.arrived(topic), [batch[0], batch[4]])
        check_once(await bench.arrived(other), [])

    async def test_several_can_publish_at_once(self, bench: Bench) -> None:
        """A relay does one batch after the other; senders right after a commit don't wait for each other."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            mint = Mint(broker, topic)
            batches = [mint.of_key(f"sender {number}", 20) for number in range(20)]
            bad = mint.message({}, key="astray", topic=bench.missing_topic())
            *outcomes, astray = await asyncio.gather(
                *(broker.publish(batch, timeout=PATIENT) for batch in batches), broker.publish([bad], timeout=PATIENT)
            )
        messages: list[Message] = []
        for batch, given in zip(batches, outcomes, strict=True):
            check_all(batch, given)
            messages += batch
        assert acknowledged([bad], astray) == []
        arrived = await bench.arrived(topic)
        check_once(arrived, messages)
        check_order(arrived, messages)


def _mixed(first: list[Message], others: list[Message]) -> list[Message]:
    """The first among the others, each in its order."""
    step = len(others) // len(first)
    mixed: list[Message] = []
    for number, message in enumerate(first):
        mixed += [message, *others[number * step : (number + 1) * step]]
    return mixed
