"""AMQP frames written by hand, read by pamqp; what comes in, in any pieces; URLs."""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from oncommit.brokers.amqp.address import parse_address
from oncommit.brokers.amqp.channel import Channel, Closed, Closure
from oncommit.brokers.amqp.frames import MalformedFrame, Target, publish_frames, take_frames, target_of
from oncommit.brokers.base import Message
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.brokers.registry import make_broker
from oncommit.errors import ConfigError, PublishRejected

short = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def read(data: bytes) -> list[object]:
    """What pamqp makes of it."""
    frames: list[object] = []
    while data:
        size, channel, frame = pamqp.frame.unmarshal(data)
        assert channel == 5
        frames.append(frame)
        data = data[size:]
    return frames


@given(
    exchange=short,
    routing_key=short,
    headers=st.dictionaries(
        short.filter(lambda name: name not in ("CC", "BCC")), st.text(st.characters(codec="utf-8"))
    ),
    body=st.binary(max_size=300),
    content_type=st.none() | short,
)
def test_pamqp_reads_what_is_written(
    exchange: str, routing_key: str, headers: dict[str, str], body: bytes, content_type: str | None
) -> None:
    message = Message(str(uuid4()), "", None, headers, body, content_type)
    try:
        data = publish_frames(5, Target(exchange, routing_key), message, 4096)
    except PublishRejected:
        assert sum(len(name.encode()) + len(value.encode()) + 6 for name, value in headers.items()) > 3500
        return
    method, header, *bodies = read(data)
    assert isinstance(method, commands.Basic.Publish)
    assert isinstance(header, ContentHeader)
    assert (method.exchange, method.routing_key, method.mandatory) == (exchange, routing_key, True)
    properties = header.properties
    assert (properties.delivery_mode, properties.message_id) == (2, message.message_id)
    assert (properties.headers or {}) == headers
    assert (properties.content_type or "") == (content_type or "")
    assert header.body_size == len(body)
    assert b"".join(piece.value for piece in bodies if isinstance(piece, ContentBody)) == body


def test_a_body_is_cut_into_frames_as_agreed() -> None:
    message = Message("a", "", None, {}, bytes(10_000), None)
    _, _, *bodies = read(publish_frames(5, Target("", "q"), message, 4096))
    assert [len(body.value) for body in bodies if isinstance(body, ContentBody)] == [4088, 4088, 1824]


@pytest.mark.parametrize(
    ("topic", "target"),
    [("shop/a.b/c", ("shop", "a.b/c")), ("shop", ("shop", "t")), ("/queue", ("", "queue")), ("shop/", ("shop", ""))],
)
def test_a_topic_taken_apart(topic: str, target: tuple[str, str]) -> None:
    assert target_of(Message("a", topic, None, {"cloudEvents_type": "t"}, b"", None)) == target


@pytest.mark.parametrize("header", [{"a": "\ud800"}, {"\ud800": "a"}])
def test_what_is_no_utf8_is_rejected(header: dict[str, str]) -> None:
    with pytest.raises(PublishRejected):
        publish_frames(1, Target("", ""), Message("a", "", None, header, b"", None), 4096)


# ── What comes in ────────────────────────────────────────────────────────────────────────────────


def ack(tag: int, *, multiple: bool = False, nack: bool = False) -> bytes:
    return pamqp.frame.marshal((commands.Basic.Nack if nack else commands.Basic.Ack)(tag, multiple), 5)


def returned(id_: str, body: bytes) -> bytes:
    properties = commands.Basic.Properties(message_id=id_, headers={"a": "b"})
    return b"".join(
        pamqp.frame.marshal(frame, 5)
        for frame in (
            commands.Basic.Return(312, "NO_ROUTE", "shop", "key"),
            ContentHeader(body_size=len(body), properties=properties),
            *([ContentBody(body)] if body else []),
        )
    )


def feed(channel: Channel, data: bytes, cuts: list[int] = ()) -> None:  # type: ignore[assignment]
    buffer = bytearray()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        buffer += data[start:end]
        for frame in take_frames(buffer, 4096):
            channel.receive(frame)
    assert not buffer


@given(
    answers=st.lists(st.tuples(st.integers(1, 25), st.booleans(), st.booleans())),
    cuts=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_each_message_is_answered_once_as_a_plain_table_says(
    answers: list[tuple[int, bool, bool]], cuts: list[int]
) -> None:
    channel = Channel(5)
    for name in range(20):
        channel.sends(100 + name)
    waiting = list(range(1, 21))
    taken, refused = [], []
    for tag, multiple, nack in answers:
        for one in [other for other in waiting if other == tag or (multiple and other <= tag)]:
            waiting.remove(one)
            (refused if nack else taken).append(99 + one)
    feed(channel, b"".join(ack(tag, multiple=many, nack=nack) for tag, many, nack in answers), cuts)
    assert (sorted(channel.taken), sorted(channel.refused)) == (sorted(taken), sorted(refused))
    assert sorted(channel.under_way) == waiting


@given(body=st.binary(max_size=100), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_what_comes_back_is_read_in_any_pieces(body: bytes, cuts: list[int]) -> None:
    channel = Channel(5)
    channel.sends(7)
    feed(channel, returned("id", body) + ack(1), cuts)
    ((id_, target, text),) = channel.returned
    assert (id_, target, text, channel.taken) == ("id", ("shop", "key"), "NO_ROUTE", [7])


async def test_whoever_waits_on_a_channel_hears_of_its_end() -> None:
    channel = Channel(5)
    channel.end(Closure(404, "gone"))
    channel.end(Closure(0, "later"))
    for _ in range(2):
        with pytest.raises(Closed, match="gone"):
            await channel.reply()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x01\x00\x05\x7f\xff\xff\xff",
        b"\x01\x00\x05\x00\x00\x00\x04\x00\x3c\x00\x50\x00",
        b"\x01\x00\x05\x00\x00\x00\x04\x00\x3c\x00\x50\xce",
        b"\x01\x00\x05\x00\x00\x00\x04\xff\xff\xff\xff\xce",
        b"\x02\x00\x05\x00\x00\x00\x0c" + bytes(12) + b"\xce",
        b"\x03\x00\x05\x00\x00\x00\x01\x00\xce",
    ],
    ids=["http", "too large", "no end", "short ack", "unknown method", "stray header", "stray body"],
)
def test_what_is_no_amqp_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        feed(Channel(5), data + b"\0")


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_url_taken_apart() -> None:
    address = parse_address("amqps://us%40er:p%2Fw@mq.example:5999/my%2Fhost?cafile=/ca.pem")
    assert (address.host, address.port, address.vhost) == ("mq.example", 5999, "my/host")
    assert (address.user, address.password, address.cafile) == ("us@er", "p/w", "/ca.pem")
    assert address.credentials() == ("PLAIN", "\0us@er\0p/w")
    assert parse_address("amqp://mq").credentials() == ("PLAIN", "\0guest\0guest")
    assert [parse_address(url).port for url in ("amqp://mq", "amqps://mq")] == [5672, 5671]
    assert [parse_address(f"amqp://mq{path}").vhost for path in ("", "/", "/a")] == ["/", "/", "a"]


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:hidden@mq:port/",
        "amqp://u:hidden@mq:99999/",
        "amqp://u:hidden@mq/?cafile=x",
        "amqps://u:hidden@mq/?no_verify_ssl=1",
        "amqps://u:hidden@mq/?cafile",
        "amqp://u:hidden@[mq/",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_broker(url)
    assert "hidden" not in str(caught.value)


def test_no_password_is_shown() -> None:
    broker = make_broker("amqp://user:hidden@mq/")
    assert isinstance(broker, RabbitBroker)
    assert "hidden" not in repr(broker)
    assert "hidden" not in repr(parse_address("amqp://user:hidden@mq/"))
