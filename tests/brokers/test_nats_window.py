"""The window on a real JetStream: through the client's own buffer, and through its public face alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit.brokers.base import Message
from oncommit.brokers.nats import NatsBroker
from oncommit.errors import NotAttempted, PublishRejected, TopicUnavailable
from oncommit.testing.servers import AnyServer

COUNT = 6000
KEYS = 50


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="window", subjects=["window.>"])
    yield jetstream
    await jetstream.delete_stream("window")
    await client.close()


@pytest.fixture(params=["raw", "public"])
async def broker(request: pytest.FixtureRequest, oncommit_nats: AnyServer) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(oncommit_nats.url)
    await broker.open()
    assert broker._window is not None
    assert broker._window._raw, "this client has no buffer of its own any more: look at nats_window.py"
    broker._window._raw = request.param == "raw"
    yield broker
    await broker.close()


def message(number: int, *, key: str | None = None, body: bytes = b"{}", topic: str = "window.a") -> Message:
    return Message(f"id-{number}", topic, key, {"number": str(number)}, body, "application/json")


async def arrived(stream: JetStreamContext) -> list[int]:
    found = (await stream.stream_info("window")).state.messages
    subscription = await stream.subscribe("window.>", ordered_consumer=True)
    numbers = [int(((await subscription.next_msg(timeout=10)).headers or {})["number"]) for _ in range(found)]
    await subscription.unsubscribe()
    return numbers


async def test_more_than_a_window_arrives_in_the_order_of_its_keys(
    broker: NatsBroker, stream: JetStreamContext
) -> None:
    batch = [message(n, key=f"k{n % KEYS}" if n % 3 else None) for n in range(COUNT)]
    assert await broker.publish(batch, timeout=30) == [None] * COUNT
    numbers = await arrived(stream)
    assert sorted(numbers) == list(range(COUNT))
    for key in range(KEYS):
        of_key = [n for n in numbers if n % 3 and n % KEYS == key]
        assert of_key == sorted(of_key)


async def test_what_is_too_large_with_its_headers_costs_nobody_else_anything(
    broker: NatsBroker, stream: JetStreamContext
) -> None:
    # The body alone would pass; the server closes the connection over what is above its limit with headers.
    assert broker._client is not None
    large = b"x" * (broker._client.max_payload - 10)
    batch = [message(0, key="a"), message(1, key="a", body=large), message(2, key="a"), message(3, key="b")]
    outcomes = await broker.publish(batch, timeout=10)
    assert [type(outcome) for outcome in outcomes] == [type(None), PublishRejected, NotAttempted, type(None)]
    assert await arrived(stream) == [0, 3]
    assert await broker.publish([message(9)], timeout=10) == [None]


async def test_after_a_publish_was_given_up_its_answers_belong_to_nobody(
    broker: NatsBroker, stream: JetStreamContext
) -> None:
    outcomes = await broker.publish([message(n) for n in range(COUNT)], timeout=0.001)
    assert any(outcomes)
    assert broker._window is not None
    assert not broker._window._waiting
    assert await broker.publish([message(n) for n in range(COUNT)], timeout=30) == [None] * COUNT
    assert sorted(await arrived(stream)) == list(range(COUNT))


async def test_a_stream_that_is_full_is_no_fault_of_the_event(broker: NatsBroker, stream: JetStreamContext) -> None:
    await stream.add_stream(name="narrow", subjects=["narrow.>"], max_msgs=2, discard="new", max_msg_size=400)
    try:
        batch = [message(n, key="a", topic="narrow.a") for n in range(4)]
        outcomes = await broker.publish(batch, timeout=10)
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), TopicUnavailable, NotAttempted]
        large = message(7, body=b"x" * 500, topic="narrow.a")
        assert [type(outcome) for outcome in await broker.publish([large], timeout=10)] == [PublishRejected]
    finally:
        await stream.delete_stream("narrow")
