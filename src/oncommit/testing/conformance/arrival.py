"""What is published arrives, as it was."""

from __future__ import annotations

from typing import Any

import pytest

from oncommit.cloudevents import parse
from oncommit.testing.conformance.bench import Arrived, Bench
from oncommit.testing.conformance.checks import check_all, check_equal, check_once, check_order
from oncommit.testing.conformance.messages import SOURCE, TYPE, Mint
from oncommit.testing.conformance.work import PATIENT, opened

BODIES = {
    "json": ({"text": 'ß😀 "quoted" \\ %41', "numbers": [1, 2.5, None, True]}, None),
    "bytes": (bytes(range(256)), None),
    "avro": (b"\x00\xff\r\n\x00", "application/avro"),
    "empty": (b"", "application/octet-stream"),
    "nothing": (None, None),
    "large": (b"0123456789abcdef" * 12_500, None),
}
HEADERS = {
    "plain": {"x-tenant": "acme"},
    "unicode": {"x-city": "Zürich 😀 東京"},
    "punctuation": {"x-odd": 'a "b" c: d; e=f, 100% %41 \\'},
    "empty": {"x-empty": ""},
    "long": {"x-long": "0123456789abcdef" * 500},
    "many": {f"x-{number}": str(number) for number in range(40)},
}


class Arrival:
    """Everything arrives once, byte for byte."""

    @pytest.mark.parametrize("name", BODIES)
    async def test_a_body_arrives_as_it_is(self, bench: Bench, name: str) -> None:
        """The bytes are those that were written, and our own reader makes the same event of them."""
        payload, content_type = BODIES[name]
        found = await self._one(bench, payload, content_type=content_type)
        received = parse(found.headers, found.body, self._binding(bench), content_type=found.content_type)
        assert received.event.type == TYPE
        assert received.event.payload == payload

    @pytest.mark.parametrize("name", HEADERS)
    async def test_headers_arrive_as_they_are(self, bench: Bench, name: str) -> None:
        """Names and values; what the protocol cannot carry as it is comes encoded, and our own reader decodes it."""
        found = await self._one(bench, {"a": 1}, headers=HEADERS[name])
        received = parse(found.headers, found.body, self._binding(bench), content_type=found.content_type)
        assert dict(received.event.headers).items() >= HEADERS[name].items()

    async def test_a_message_without_a_key_arrives(self, bench: Bench) -> None:
        """Not every event belongs to something."""
        found = await self._one(bench, {"a": 1}, key=None)
        assert found.key is None

    @pytest.mark.parametrize("key", ["order:42", "ключ 😀", "k" * 300])
    async def test_a_key_arrives(self, bench: Bench, key: str) -> None:
        """Whatever text it is."""
        found = await self._one(bench, {"a": 1}, key=key)
        received = parse(found.headers, found.body, self._binding(bench), content_type=found.content_type)
        assert received.event.key == key

    async def test_a_large_batch_arrives_once_and_in_order(self, bench: Bench) -> None:
        """Two thousand messages of fifty keys in one call."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            messages = Mint(broker, topic).some(2000, keys=50)
            check_all(messages, await broker.publish(messages, timeout=PATIENT))
        arrived = await bench.arrived(topic)
        check_once(arrived, messages)
        check_order(arrived, messages)

    async def test_an_empty_batch_is_nothing(self, bench: Bench) -> None:
        """No message, no outcome."""
        async with opened(bench) as broker:
            assert list(await broker.publish([], timeout=PATIENT)) == []

    async def test_the_official_sdk_reads_it(self, bench: Bench) -> None:
        """Where CloudEvents has a binding for this protocol; elsewhere the prefix is what the documentation says."""
        found = await self._one(bench, {"text": "ß"}, headers={"x-tenant": "acme"})
        binding = self._binding(bench)
        assert found.headers[f"{binding.prefix}id"] == found.message_id
        assert found.headers[f"{binding.prefix}specversion"] == "1.0"
        if binding.name == "kafka":
            event = _read_kafka(found)
        elif binding.name == "amqp":
            event = _read_amqp(found)
        else:
            return
        assert event.get_id() == found.message_id
        assert event.get_type() == TYPE
        assert event.get_source() == SOURCE
        assert event.get_data() == {"text": "ß"}

    @staticmethod
    def _binding(bench: Bench) -> Any:
        return bench.broker(bench.url).capabilities.binding

    @staticmethod
    async def _one(bench: Bench, payload: Any, **given: Any) -> Arrived:
        """Publish one, and see that it is what arrived."""
        topic = await bench.make_topic()
        async with opened(bench) as broker:
            message = Mint(broker, topic).message(payload, **given)
            check_all([message], await broker.publish([message], timeout=PATIENT))
        (found,) = await bench.arrived(topic)
        check_equal(found, message, carries_key=bench.carries_key)
        return found


def _read_kafka(found: Arrived) -> Any:
    kafka = pytest.importorskip("cloudevents.core.bindings.kafka")
    headers = {name: value.encode() for name, value in found.headers.items()}
    return kafka.from_kafka_event(kafka.KafkaMessage(headers, found.key, found.body))


def _read_amqp(found: Arrived) -> Any:
    amqp = pytest.importorskip("cloudevents.core.bindings.amqp")
    properties = {"content-type": found.content_type} if found.content_type else {}
    return amqp.from_amqp_event(amqp.AMQPMessage(properties, dict(found.headers), found.body))
