"""Flows to a real JetStream: in order, up to the first that is refused, and the rest one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.brokers.nats_flow import Flow
from oncommit.errors import NotAttempted, PublishRejected
from oncommit.testing.servers import AnyServer

COUNT = 3500
KEYS = 40


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="flow", subjects=["flow.>"], allow_batched=True, max_msg_size=2000)
    yield jetstream
    await jetstream.delete_stream("flow")
    await client.close()


@pytest.fixture
async def broker(oncommit_nats: AnyServer, stream: JetStreamContext) -> AsyncIterator[NatsBroker]:
    assert stream
    broker = NatsBroker(oncommit_nats.url)
    await broker.open()
    assert broker._streams is not None
    assert broker._streams.stream_of("flow.a") is None, "nobody has asked yet"
    await broker._streams.settled()
    assert broker._streams.stream_of("flow.a") == "flow"
    yield broker
    await broker.close()


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[Flow]:
    """Those that were sent."""
    sent: list[Flow] = []
    fly = Flow.fly

    async def noted(self: Flow, outcomes: list[Outcome]) -> list[int]:
        sent.append(self)
        return await fly(self, outcomes)

    monkeypatch.setattr(Flow, "fly", noted)
    return sent


def message(number: int, *, body: bytes = b"{}") -> Message:
    return Message(f"id-{number}", "flow.a", f"k{number % KEYS}", {"number": str(number)}, body, "application/json")


async def arrived(stream: JetStreamContext) -> list[int]:
    found = (await stream.stream_info("flow")).state.messages
    subscription = await stream.subscribe("flow.>", ordered_consumer=True)
    numbers = [int(((await subscription.next_msg(timeout=10)).headers or {})["number"]) for _ in range(found)]
    await subscription.unsubscribe()
    return numbers


def assert_keys_in_order(numbers: list[int]) -> None:
    for key in range(KEYS):
        of_key = [n for n in numbers if n % KEYS == key]
        assert of_key == sorted(of_key)


async def test_many_messages_are_one_flow(broker: NatsBroker, stream: JetStreamContext, flows: list[Flow]) -> None:
    assert await broker.publish([message(n) for n in range(COUNT)], timeout=30) == [None] * COUNT
    numbers = await arrived(stream)
    assert sorted(numbers) == list(range(COUNT))
    assert_keys_in_order(numbers)
    assert [len(flow.sent) for flow in flows] == [COUNT]
    assert flows[0].refusal is None


@pytest.mark.parametrize("size", [1990, 9 * 1024 * 1024], ids=["for the stream", "for the server"])
async def test_one_that_is_too_large_holds_up_its_key_alone(
    broker: NatsBroker, stream: JetStreamContext, flows: list[Flow], size: int
) -> None:
    bad = 1000
    batch = [message(n, body=b"x" * size if n == bad else b"{}") for n in range(COUNT)]
    outcomes = await broker.publish(batch, timeout=30)
    behind = {n for n in range(bad + 1, COUNT) if n % KEYS == bad % KEYS}
    assert isinstance(outcomes[bad], PublishRejected)
    assert {n for n, outcome in enumerate(outcomes) if isinstance(outcome, NotAttempted)} == behind
    numbers = await arrived(stream)
    assert sorted(numbers) == [n for n in range(COUNT) if n != bad and n not in behind]
    assert_keys_in_order(numbers)
    assert flows


async def test_what_the_stream_has_already_is_not_stored_again(
    broker: NatsBroker, stream: JetStreamContext, flows: list[Flow]
) -> None:
    assert await broker.publish([message(7)], timeout=30) == [None]
    assert await broker.publish([message(n) for n in range(COUNT)], timeout=30) == [None] * COUNT
    numbers = await arrived(stream)
    assert sorted(numbers) == list(range(COUNT))
    assert flows


async def test_a_stream_that_allows_no_flows_any_more_gets_single_messages(
    broker: NatsBroker, stream: JetStreamContext, flows: list[Flow]
) -> None:
    await stream.delete_stream("flow")
    await stream.add_stream(name="flow", subjects=["flow.>"])
    assert await broker.publish([message(n) for n in range(COUNT)], timeout=30) == [None] * COUNT
    assert flows
    flows.clear()
    assert await broker.publish([message(n + COUNT) for n in range(COUNT)], timeout=30) == [None] * COUNT
    assert flows == []
    assert_keys_in_order(await arrived(stream))


async def test_after_a_flow_was_given_up_its_answer_belongs_to_nobody(
    broker: NatsBroker, stream: JetStreamContext
) -> None:
    outcomes = await broker.publish([message(n) for n in range(COUNT)], timeout=0.001)
    assert any(outcomes)
    assert broker._window is not None
    assert not broker._window._flows
    assert await broker.publish([message(n) for n in range(COUNT)], timeout=30) == [None] * COUNT
    numbers = await arrived(stream)
    assert sorted(numbers) == list(range(COUNT))
