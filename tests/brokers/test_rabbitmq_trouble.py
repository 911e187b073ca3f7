"""A RabbitMQ of the test's own, in trouble: killed, paused, out of memory, with rights withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from oncommit.brokers.amqp import connection as amqp_connection
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.errors import BrokerUnavailable
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import ServerUnavailable, rabbitmq
from oncommit.testing.servers.server import Server
from tests.brokers.rabbit import (
    EXCHANGE,
    QUEUE,
    TOPIC,
    Rabbit,
    connected,
    ids,
    kinds,
    message,
    opened,
    rabbitmqctl,
    resume_queue,
    suspend_queue,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with rabbitmq() as server:
            yield server
    except ServerUnavailable as error:
        not_to_be_had(error)


@pytest.fixture
async def rabbit(server: Server) -> AsyncIterator[Rabbit]:
    async with connected(server.url) as rabbit:
        yield rabbit


def as_user(server: Server, name: str) -> str:
    return server.url.replace("guest:guest", f"{name}:word")


# ── Rights ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_refused_login_is_an_unavailable_broker(server: Server) -> None:
    broker = RabbitBroker(server.url.replace("guest:guest", "guest:hidden"))
    with pytest.raises(BrokerUnavailable, match="ACCESS_REFUSED") as caught:
        await broker.open()
    assert "hidden" not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_a_host_that_is_not_there_is_an_unavailable_broker(server: Server) -> None:
    with pytest.raises(BrokerUnavailable, match="vhost nowhere"):
        await RabbitBroker(server.url + "/nowhere").open()


async def test_an_exchange_that_we_may_not_write_to_harms_no_other(server: Server, rabbit: Rabbit) -> None:
    queue = await rabbit.queue()
    await rabbit.queue("secrets", "secret")
    rabbitmqctl(server, "add_user", "clerk", "word")
    rabbitmqctl(server, "set_permissions", "clerk", "^$", EXCHANGE, "^$")
    async with opened(as_user(server, "clerk")) as broker:
        for _ in range(2):
            batch = [message("secret/x" if number % 4 == 1 else TOPIC, f"k{number}") for number in range(40)]
            outcomes = kinds(await broker.publish(batch, timeout=10))
            assert outcomes == ["TopicUnavailable" if one.topic != TOPIC else "sent" for one in batch]
            assert await rabbit.counted(queue) == dict.fromkeys(ids([one for one in batch if one.topic == TOPIC]), 1)


async def test_a_routing_key_that_we_may_not_use_harms_no_other(server: Server, rabbit: Rabbit) -> None:
    queue = await rabbit.queue()
    rabbitmqctl(server, "add_user", "trainee", "word")
    rabbitmqctl(server, "set_permissions", "trainee", "^$", EXCHANGE, "^$")
    rabbitmqctl(server, "set_topic_permissions", "trainee", EXCHANGE, "^order", "^$")
    async with opened(as_user(server, "trainee")) as broker:
        await broker.publish([message()], timeout=10)
        await rabbit.arrived(queue, 1)
        for most in (2, 1):  # the second time it is known who may be refused
            batch = [message(f"{EXCHANGE}/salary" if number % 9 == 5 else TOPIC, f"k{number}") for number in range(60)]
            outcomes = kinds(await broker.publish(batch, timeout=10))
            assert outcomes == ["TopicUnavailable" if one.topic != TOPIC else "sent" for one in batch]
            found = await rabbit.counted(queue)
            assert set(found) == set(ids([one for one in batch if one.topic == TOPIC]))
            assert max(found.values()) <= most
        rabbitmqctl(server, "clear_topic_permissions", "trainee")
    async with opened(as_user(server, "trainee")) as broker:
        assert kinds(await broker.publish([message(f"{EXCHANGE}/salary")], timeout=10)) == ["sent"]


async def test_a_message_above_the_brokers_limit_harms_no_other(server: Server, rabbit: Rabbit) -> None:
    queue = await rabbit.queue()
    rabbitmqctl(server, "eval", "application:set_env(rabbit, max_message_size, 200000).")
    try:
        async with opened(server.url) as broker:
            for _ in range(2):
                sizes = {20: 150_000, 30: 300_000, 35: 200_001, 40: 200_000}
                batch = [message(key=f"k{number}", body=bytes(sizes.get(number, 10))) for number in range(60)]
                outcomes = kinds(await broker.publish(batch, timeout=10))
                assert outcomes == ["PublishRejected" if number in (30, 35) else "sent" for number in range(60)]
                sent = [one for one, outcome in zip(batch, outcomes, strict=True) if outcome == "sent"]
                assert await rabbit.counted(queue) == dict.fromkeys(ids(sent), 1)
    finally:
        rabbitmqctl(server, "eval", "application:unset_env(rabbit, max_message_size).")


async def test_a_limit_that_is_unusually_low_costs_the_others_a_second_delivery_at_most(
    server: Server, rabbit: Rabbit
) -> None:
    queue = await rabbit.queue()
    rabbitmqctl(server, "eval", "application:set_env(rabbit, max_message_size, 10000).")
    try:
        async with opened(server.url) as broker:
            batch = [message(key=f"k{number}", body=bytes(20_000 if number == 30 else 10)) for number in range(60)]
            outcomes = kinds(await broker.publish(batch, timeout=10))
    finally:
        rabbitmqctl(server, "eval", "application:unset_env(rabbit, max_message_size).")
    assert outcomes == ["PublishRejected" if number == 30 else "sent" for number in range(60)]
    found = await rabbit.counted(queue)
    assert set(found) == set(ids([*batch[:30], *batch[31:]]))
    assert max(found.values()) <= 2


# ── Trouble ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_that_does_not_answer_is_one_attempt_of_its_events(server: Server, rabbit: Rabbit) -> None:
    await rabbit.queue()
    async with opened(server.url) as broker:
        assert kinds(await broker.publish([message()], timeout=10)) == ["sent"]
        suspend_queue(server, QUEUE)
        try:
            batch = [message(key="a"), message(key="a"), message("nowhere/x")]
            outcomes = kinds(await broker.publish(batch, timeout=0.5))
        finally:
            resume_queue(server, QUEUE)
        assert outcomes == ["PublishFailed", "NotAttempted", "TopicUnavailable"]
        assert kinds(await broker.publish(batch[:2], timeout=10)) == ["sent", "sent"]


async def test_a_broker_without_memory_is_waited_for_on_the_same_connection(server: Server, rabbit: Rabbit) -> None:
    queue = await rabbit.queue()
    async with opened(server.url) as broker:
        assert kinds(await broker.publish([message()], timeout=10)) == ["sent"]
        await rabbit.arrived(queue, 1)
        connection = broker._connection
        rabbitmqctl(server, "set_vm_memory_high_watermark", "absolute", "1")
        try:
            caught = [message(key="a"), message(key="a")]
            assert kinds(await broker.publish(caught, timeout=0.5)) == ["BrokerUnavailable", "NotAttempted"]
            for _ in range(3):
                with pytest.raises(BrokerUnavailable, match="low on memory"):
                    await broker.ping()
                later = await broker.publish([message()], timeout=0.5)
                assert kinds(later) == ["BrokerUnavailable"]
        finally:
            rabbitmqctl(server, "set_vm_memory_high_watermark", "0.6")
        async with asyncio.timeout(20):
            while connection.blocked:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        await broker.ping()
        assert broker._connection is connection
        assert kinds(await broker.publish(caught, timeout=10)) == ["sent", "sent"]
        found = await rabbit.counted(queue)
        # What was under way came twice, since it was taken in the end. Nothing else was ever sent.
        assert found == {caught[0].message_id: 2, caught[1].message_id: 1}


async def test_a_killed_broker_costs_no_attempt_and_is_reached_again(server: Server) -> None:
    async with connected(server.url) as rabbit:
        await rabbit.queue()
        rabbit.forget()
    await asyncio.to_thread(server.restart)  # so that the definitions are on disk
    async with opened(server.url) as broker, asyncio.timeout(60):
        batch = [message(key=f"k{number % 50}") for number in range(2000)]
        publishing = asyncio.create_task(broker.publish(batch, timeout=30))
        connection = broker._connection
        while not any(channel.under_way for channel in connection._channels.values()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        server.kill()
        outcomes = await publishing
        assert set(kinds(outcomes)) <= {"sent", "BrokerUnavailable", "NotAttempted"}
        assert "BrokerUnavailable" in kinds(outcomes)
        with pytest.raises(BrokerUnavailable):
            await broker.ping()
        assert set(kinds(await broker.publish(batch[:1], timeout=5))) == {"BrokerUnavailable"}
        await asyncio.to_thread(server.start)
        rest = [one for one, outcome in zip(batch, outcomes, strict=True) if outcome is not None]
        assert set(kinds(await broker.publish(rest, timeout=30))) == {"sent"}
    async with connected(server.url) as rabbit:
        queue = await rabbit.queue()
        found = await rabbit.arrived(queue, await rabbit.waiting(queue))
        order = [one.message_id for one in found]
        assert set(order) == set(ids(batch))
        for key in {one.key for one in batch}:
            mine = ids([one for one in batch if one.key == key])
            wanted = set(mine)
            assert list(dict.fromkeys(one for one in order if one in wanted)) == mine


async def test_a_broker_that_hangs_is_given_up_and_costs_no_attempt(server: Server, rabbit: Rabbit) -> None:
    await rabbit.queue()
    async with opened(server.url) as broker:
        assert kinds(await broker.publish([message()], timeout=10)) == ["sent"]
        server.pause()
        try:
            async with asyncio.timeout(5):
                assert kinds(await broker.publish([message()], timeout=0.5)) == ["BrokerUnavailable"]
        finally:
            server.resume()
        assert kinds(await broker.publish([message()], timeout=30)) == ["sent"]


async def test_silence_is_noticed_without_a_publish(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_connection, "HEARTBEAT", 1)
    async with opened(server.url) as broker, asyncio.timeout(20):
        connection = broker._connection
        server.pause()
        try:
            await connection._gone.wait()
        finally:
            server.resume()
        assert "nothing was heard" in connection.closure.text
        await broker.ping()


async def test_heartbeats_keep_an_idle_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_connection, "HEARTBEAT", 1)
    async with opened(server.url) as broker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await broker._connection._gone.wait()
        await broker.ping()
