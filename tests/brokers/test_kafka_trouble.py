"""What could lose, repeat or overtake on Kafka in particular."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from uuid import uuid4

import pytest

from oncommit.brokers import kafka
from oncommit.brokers.base import Message
from oncommit.brokers.kafka import KafkaBroker
from oncommit.errors import NotAttempted, PublishRejected, TopicUnavailable
from oncommit.testing.conformance.checks import acknowledged, check_all, check_once, check_order, check_there
from oncommit.testing.conformance.messages import Mint, without
from oncommit.testing.conformance.work import opened, publish_all, until_it_answers
from tests.brokers.kafkas import KafkaBench

SMALL = {"max.message.bytes": "20000"}
TOO_LARGE, LARGE = 30_000, 9_000


@pytest.fixture
def bench(kafka_bench: KafkaBench) -> KafkaBench:
    return kafka_bench


def topic(bench: KafkaBench, **config: str) -> str:
    name = f"t-{uuid4().hex}"
    bench.make(name, **config)
    return name


def blob(mint: Mint, size: int, key: str) -> Message:
    return mint.message(os.urandom(size), key=key)


async def test_nothing_goes_behind_what_the_broker_refuses_while_it_flies(bench: KafkaBench) -> None:
    # Each message is a request of its own, five are in flight: behind the refused one others were on their way.
    broker = KafkaBroker(bench.url, settings={"batch.num.messages": 1, "linger.ms": 0})
    await broker.open()
    mint = Mint(broker, topic(bench, **SMALL))
    key = [blob(mint, 500, "a") for _ in range(8)]
    key[3] = blob(mint, TOO_LARGE, "a")
    others = mint.some(40, keys=40)
    outcomes = await broker.publish([*key, *others], timeout=20)
    await broker.close()
    assert list(outcomes[:3]) == [None] * 3
    assert isinstance(outcomes[3], PublishRejected)
    assert [type(outcome) for outcome in outcomes[4:8]] == [NotAttempted] * 4
    assert list(outcomes[8:]) == [None] * 40
    arrived = await bench.arrived(mint.topic)
    check_there(arrived, [*key[:3], *others])
    check_order(arrived, [*key, *others])
    assert not {one.message_id for one in arrived} & {message.message_id for message in key[3:]}


async def test_a_batch_that_is_too_large_is_no_message_s_fault(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint = Mint(broker, topic(bench, **SMALL))
        messages = [blob(mint, LARGE, f"key {number % 3}") for number in range(12)]
        check_all(messages, await broker.publish(messages, timeout=20))
    arrived = await bench.arrived(mint.topic)
    check_there(arrived, messages)
    check_order(arrived, messages)


async def test_headers_count_as_well(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint = Mint(broker, topic(bench))
        heavy = mint.message(b"." * 990_000, headers={"x-long": "." * 15_000})
        light = mint.some(3)
        outcomes = await broker.publish([*light, heavy], timeout=20)
        assert isinstance(broker, KafkaBroker)
        assert broker._line is not None
        assert not broker._line.broken, "refused by the broker, with all that was in flight"
    assert list(outcomes[:3]) == [None] * 3
    assert isinstance(outcomes[3], PublishRejected)
    check_once(await bench.arrived(mint.topic), light)


async def test_a_topic_that_is_deleted_is_seen_soon(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint, gone = Mint(broker, topic(bench)), topic(bench)
        before = [mint.message({}, key="a", topic=gone), mint.message({}, key="b")]
        check_all(before, await broker.publish(before, timeout=20))
        for done in bench.admin.delete_topics([gone]).values():
            await asyncio.to_thread(done.result)
        batch = [
            mint.message({}, key="a", topic=gone),
            mint.message({}, key="a"),
            mint.message({}, key="a", topic=gone),
            mint.message({}, key="b"),
        ]
        async with asyncio.timeout(10):
            outcomes = await broker.publish(batch, timeout=20)
    assert isinstance(outcomes[0], TopicUnavailable)
    assert [type(outcome) for outcome in outcomes[1:3]] == [NotAttempted] * 2
    assert outcomes[3] is None
    check_once(await bench.arrived(mint.topic), [before[1], batch[3]])


async def test_the_first_messages_of_a_new_topic_are_written(bench: KafkaBench) -> None:
    # The first of a partition may fail for a moment while the second is taken: librdkafka then calls both written.
    for _ in range(10):
        broker = KafkaBroker(bench.url, settings={"batch.num.messages": 1, "linger.ms": 0})
        await broker.open()
        mint = Mint(broker, topic(bench))
        messages = mint.some(60, keys=20)
        check_all(messages, await broker.publish(messages, timeout=20))
        await broker.close()
        arrived = await bench.arrived(mint.topic)
        check_there(arrived, messages)
        check_order(arrived, messages)


async def test_one_s_poison_costs_the_others_nothing_but_time(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint, small = Mint(broker, topic(bench)), topic(bench, **SMALL)
        batches = [mint.of_key(f"key {number}", 50) for number in range(6)]
        poison = mint.message(os.urandom(TOO_LARGE), key="poison", topic=small)
        *outcomes, refused = await asyncio.gather(
            *(broker.publish(batch, timeout=20) for batch in batches), broker.publish([poison], timeout=20)
        )
    assert isinstance(refused[0], PublishRejected)
    arrived = await bench.arrived(mint.topic)
    for batch, given in zip(batches, outcomes, strict=True):
        check_all(batch, given)
        check_there(arrived, batch)
        check_order(arrived, batch)


async def test_one_who_gives_up_takes_nothing_from_the_others(bench: KafkaBench) -> None:
    with bench.proxied() as (proxy, url):
        async with opened(bench, url) as broker:
            mint = Mint(broker, topic(bench))
            warm = mint.of_key("warm", 1)
            check_all(warm, await broker.publish(warm, timeout=20))
            proxy.delay(0.1)
            mine, other = mint.of_key("mine", 10), mint.of_key("other", 10)
            staying = asyncio.create_task(broker.publish(mine, timeout=20))
            leaving = asyncio.create_task(broker.publish(other, timeout=20))
            await asyncio.wait({leaving}, timeout=0.05)
            leaving.cancel()
            await asyncio.wait({leaving})
            assert leaving.cancelled()
            check_all(mine, await staying)
            proxy.heal()
            await publish_all(broker, other, within=20)
    arrived = await bench.arrived(mint.topic)
    check_there(arrived, [*mine, *other])
    check_order(arrived, [*mine, *other])


async def test_silence_after_some_answers_ends_it_early(bench: KafkaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # One partition that nobody leads must not hold up the others of a sink for the whole time limit.
    monkeypatch.setattr(kafka, "STALL", 0.5)
    with bench.proxied() as (proxy, url):
        async with opened(bench, url) as broker:
            mint, other = Mint(broker, topic(bench)), topic(bench)
            chain = [mint.message({"n": n}, key="a", topic=other if n % 2 else None) for n in range(400)]
            publishing = asyncio.create_task(broker.publish(chain, timeout=60))
            while not bench.messages(other):  # noqa: ASYNC110 - Kafka has no event for it
                await asyncio.sleep(0.01)
            proxy.hold()
            async with asyncio.timeout(10):
                done = acknowledged(chain, await publishing)
            proxy.heal()
            assert 0 < len(done) < len(chain)
            assert done == chain[: len(done)]
            await until_it_answers(broker, within=20)
            await publish_all(broker, chain[len(done) :], within=20)
    check_there([*await bench.arrived(mint.topic), *await bench.arrived(other)], chain)


async def test_more_than_the_client_has_room_for(bench: KafkaBench) -> None:
    broker = KafkaBroker(bench.url, settings={"queue.buffering.max.messages": 50})
    await broker.open()
    mint = Mint(broker, topic(bench))
    messages = mint.some(600, keys=30)
    check_all(messages, await broker.publish(messages, timeout=20))
    await broker.close()
    arrived = await bench.arrived(mint.topic)
    check_once(arrived, messages)
    check_order(arrived, messages)


async def test_a_key_that_goes_from_topic_to_topic_keeps_its_order(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint, other = Mint(broker, topic(bench)), topic(bench)
        batch = [mint.message({"n": n}, key="a", topic=other if n % 3 == 2 else None) for n in range(12)]
        check_all(batch, await broker.publish(batch, timeout=20))
    found = {one.headers["message_id"]: one for one in await bench.arrived(mint.topic)}
    elsewhere = {one.headers["message_id"]: one for one in await bench.arrived(other)}
    assert [message.message_id in elsewhere for message in batch] == [n % 3 == 2 for n in range(12)]
    assert len(found) + len(elsewhere) == 12


async def test_what_cannot_be_carried_raises_nothing(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint = Mint(broker, topic(bench))
        good = mint.message({}, key="good")
        odd: list[Any] = [
            Message("1", mint.topic, "a", {"x": "\ud800"}, b"{}", "application/json"),
            Message("2", mint.topic, "\ud800", {}, b"{}", "application/json"),
            Message("3", "no\0name", "b", {}, b"{}", "application/json"),
            Message("4", "no name!", "c", {}, b"{}", "application/json"),
        ]
        outcomes = await broker.publish([*odd, good], timeout=20)
    assert [type(outcome) for outcome in outcomes[:4]] == [PublishRejected] * 4
    assert outcomes[4] is None
    check_once(await bench.arrived(mint.topic), [good])


async def test_no_payload_is_a_tombstone_and_an_empty_one_is_not(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint = Mint(broker, topic(bench))
        messages = [mint.message(None), mint.message(b"")]
        check_all(messages, await broker.publish(messages, timeout=20))
    assert [one.value() for one in bench.messages(mint.topic)] == [None, b""]


async def test_a_key_is_where_the_java_client_looks_for_it(bench: KafkaBench) -> None:
    async with opened(bench) as broker:
        mint = Mint(broker, topic(bench))
        messages = [mint.message({}, key=f"ключ {number}") for number in range(40)]
        check_all(messages, await broker.publish(messages, timeout=20))
    for one in bench.messages(mint.topic):
        key = one.key()
        assert isinstance(key, bytes)
        assert one.partition() == (murmur2(key) & 0x7FFFFFFF) % 4


async def test_a_kill_while_it_tries_one_by_one(bench: KafkaBench) -> None:
    """The second attempt is hurt as well; whatever is then acknowledged is there, and no key was overtaken."""
    with bench.proxied() as (proxy, url):
        async with opened(bench, url) as broker:
            mint = Mint(broker, topic(bench, **SMALL))
            messages = [blob(mint, LARGE, f"key {number % 4}") for number in range(24)]
            proxy.delay(0.05)
            publishing = asyncio.create_task(broker.publish(messages, timeout=15))
            while not bench.messages(mint.topic):  # noqa: ASYNC110 - the first of those that go one by one
                await asyncio.sleep(0.01)
            proxy.cut()
            done = acknowledged(messages, await publishing)
            proxy.heal()
            check_there(await bench.arrived(mint.topic), done)
            await until_it_answers(broker, within=20)
            await publish_all(broker, without(messages, done), within=20)
    arrived = await bench.arrived(mint.topic)
    check_there(arrived, messages)
    check_order(arrived, messages)


def murmur2(data: bytes) -> int:
    """As in Kafka's own client (org.apache.kafka.common.utils.Utils.murmur2)."""
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for place in range(0, whole, 4):
        part = int.from_bytes(data[place : place + 4], "little") * mix & mask
        part = (part ^ (part >> 24)) * mix & mask
        value = (value * mix & mask) ^ part
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * mix & mask
    value = (value ^ (value >> 13)) * mix & mask
    return value ^ (value >> 15)
