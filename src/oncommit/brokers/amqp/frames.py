"""AMQP 0-9-1 on the wire: the frames that every message costs, written and read by hand. Pure.

A publish is three frames (method, header, body), its answer is one. Those are hot: through the objects of pamqp they
take four times as long. All other frames come once a connection and are pamqp's. A test reads with pamqp what is
written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Final, NamedTuple

from oncommit.brokers.base import Message
from oncommit.cloudevents import AMQP
from oncommit.errors import PublishRejected

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
ACK: Final = b"\x00\x3c\x00\x50"
NACK: Final = b"\x00\x3c\x00\x78"
RETURN: Final = b"\x00\x3c\x00\x32"

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
LARGEST_NAME: Final = 255
OVERHEAD: Final = 8
"""Bytes of a frame besides its payload."""

_TYPE: Final = AMQP.prefix + "type"
_END: Final = b"\xce"
_START: Final = Struct(">BHI")
_LENGTH: Final = Struct(">I")
_BODY_SIZE: Final = Struct(">HHQ")
_ANSWER: Final = Struct(">QB")
_BASIC: Final = 60
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = b"\x02"
# Which properties follow: content type, headers, delivery mode, message id.
_WITH_CONTENT_TYPE: Final = b"\xb0\x80"
_WITHOUT_CONTENT_TYPE: Final = b"\x30\x80"
# RabbitMQ takes these for further routing keys, to be given as a list; text there ends the channel.
_NOT_FOR_USERS: Final = ("CC", "BCC")


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    channel: int
    payload: bytes


class MalformedFrame(Exception):
    """What came is no AMQP, or more than was agreed."""


class Target(NamedTuple):
    """A topic, taken apart."""

    exchange: str
    routing_key: str


def target_of(message: Message) -> Target:
    """Exchange and routing key: the topic, parted at its first stroke; without one, the type is the routing key."""
    exchange, stroke, routing_key = message.topic.partition("/")
    return Target(exchange, routing_key if stroke else message.headers.get(_TYPE, ""))


def publish_frames(channel: int, target: Target, message: Message, frame_max: int) -> bytes:
    """What publishes a message: persistent, mandatory. Raises ``PublishRejected`` where AMQP cannot carry it."""
    for name in _NOT_FOR_USERS:
        if name in message.headers:
            raise PublishRejected(f"RabbitMQ routes by a header {name!r}, so an event cannot have one: rename it")
    try:
        method = _PUBLISH + _short(target.exchange) + _short(target.routing_key) + _MANDATORY
        properties = _properties(message)
    except UnicodeEncodeError as error:
        raise PublishRejected(f"AMQP carries UTF-8, and this is none: {error}") from error
    if len(properties) + _BODY_SIZE.size + OVERHEAD > frame_max:
        raise PublishRejected(f"its headers are {len(properties)} bytes; RabbitMQ's frame_max is {frame_max}")
    body = message.body
    header = _BODY_SIZE.pack(_BASIC, 0, len(body)) + properties
    parts = [
        _START.pack(METHOD, channel, len(method)), method, _END,
        _START.pack(HEADER, channel, len(header)), header, _END,
    ]  # fmt: skip
    most = frame_max - OVERHEAD
    for start in range(0, len(body), most):
        piece = body if len(body) <= most else body[start : start + most]
        parts += (_START.pack(BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)


def _properties(message: Message) -> bytes:
    """Their flags, then those that are there."""
    fields: list[bytes] = []
    for name, value in message.headers.items():
        encoded = value.encode()
        fields += (_short(name), b"S", _LENGTH.pack(len(encoded)), encoded)
    table = b"".join(fields)
    rest = _LENGTH.pack(len(table)) + table + _PERSISTENT + _short(message.message_id)
    if message.content_type is None:
        return _WITHOUT_CONTENT_TYPE + rest
    return _WITH_CONTENT_TYPE + _short(message.content_type) + rest


def _short(text: str) -> bytes:
    """A short string: its length in one byte, and itself."""
    encoded = text.encode()
    if len(encoded) > LARGEST_NAME:
        raise PublishRejected(f"AMQP ends names at {LARGEST_NAME} bytes, this one has {len(encoded)}: {text[:40]!r}…")
    return len(encoded).to_bytes(1, "big") + encoded


def read_answer(payload: bytes) -> tuple[int, bool]:
    """Of an ack or nack: up to which message, and whether all before it are meant too."""
    try:
        tag, bits = _ANSWER.unpack_from(payload, 4)
    except StructError as error:
        raise MalformedFrame("an answer cut short") from error
    return tag, bool(bits & 1)


def body_size(payload: bytes) -> int:
    """How many bytes of body follow a header frame."""
    try:
        size: int = _BODY_SIZE.unpack_from(payload)[2]
    except StructError as error:
        raise MalformedFrame("a content header cut short") from error
    return size


def take_frames(buffer: bytearray, largest: int) -> Iterator[Frame]:
    """Take whole frames off the front of what came. Raises ``MalformedFrame``, also for one above ``largest`` bytes."""
    at, end = 0, len(buffer)
    try:
        while end - at >= OVERHEAD:
            kind, channel, size = _START.unpack_from(buffer, at)
            if size + OVERHEAD > largest or kind not in (METHOD, HEADER, BODY, HEARTBEAT):
                raise MalformedFrame(f"a frame of kind {kind} with {size} bytes")
            if end - at < size + OVERHEAD:
                break
            if buffer[at + 7 + size] != _END[0]:
                raise MalformedFrame("a frame without its end")
            payload = bytes(buffer[at + 7 : at + 7 + size])
            at += size + OVERHEAD
            yield Frame(kind, channel, payload)
    finally:
        del buffer[:at]
