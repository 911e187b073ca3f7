"""What is written to NATS byte by byte: nothing that a message says can end a line, or cost the connection."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.js.errors import APIError, NoStreamResponseError

from oncommit.brokers.base import Message
from oncommit.brokers.nats_window import Flight, encode, problem_of
from oncommit.errors import PublishRejected

MESSAGE = Message("id-1", "events.a", "k", {"ce-type": "a.b"}, b"\r\nPUB x 0\r\n", "application/json")
LIMIT = 1000


def changed(**fields: Any) -> Message:
    return msgspec.structs.replace(MESSAGE, **fields)


def test_a_message_is_written_as_the_protocol_says() -> None:
    head = b"NATS/1.0\r\nNats-Msg-Id: id-1\r\nce-type: a.b\r\n\r\n"
    size = len(head) + len(MESSAGE.body)
    command = b"HPUB events.a _INBOX.1 %d %d\r\n" % (len(head), size)
    assert encode(MESSAGE, "_INBOX.1", LIMIT) == command + head + MESSAGE.body + b"\r\n"


@pytest.mark.parametrize(
    "topic", ["", "events a", "events\ta", "events.a\r\nPUB x 0\r\n", "events\x00a", "events\u2028a"]
)
def test_a_subject_ends_no_line(topic: str) -> None:
    with pytest.raises(PublishRejected, match="is no subject"):
        encode(changed(topic=topic), "_INBOX.1", LIMIT)


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "x\r\nNats-Rollup: all"},
        {"a": "x\ny"},
        {"a": "x\ry"},
        {"a": "x\x00y"},
        {"a: b\r\nc": "x"},
        {"a b": "x"},
        {"a:b": "x"},
        {"": "x"},
        {"ü": "x"},
    ],
)
def test_a_header_ends_no_line(headers: dict[str, str]) -> None:
    with pytest.raises(PublishRejected, match="header"):
        encode(changed(headers=headers), "_INBOX.1", LIMIT)


def test_the_limit_counts_the_headers() -> None:
    written = encode(MESSAGE, "_INBOX.1", LIMIT)
    size = int(written.split(b"\r\n", 1)[0].rsplit(b" ", 1)[1])
    assert encode(MESSAGE, "_INBOX.1", size)
    with pytest.raises(PublishRejected, match="max_payload"):
        encode(MESSAGE, "_INBOX.1", size - 1)


def test_the_messages_of_a_key_follow_each_other() -> None:
    keys = ["a", None, "b", "a", "b", None, "a"]
    flight = Flight([changed(key=key) for key in keys])
    assert flight.heads == [0, 1, 2, 5]
    assert flight.next == [3, 0, 4, 6, 0, 0, 0]


@pytest.mark.parametrize(
    ("data", "status", "expected"),
    [
        (b'{"stream":"events","seq":7}', None, type(None)),
        (b'{"stream":"events","seq":7,"duplicate":true}', None, type(None)),
        (b'{"type":"x","stream":"events","seq":7}', None, type(None)),
        (b'{"error":{"code":400,"err_code":10054,"description":"too large"},"stream":"e","seq":0}', None, APIError),
        (b'{"stream":"e","error":{"code":503,"err_code":10077,"description":"full"},"seq":0}', None, APIError),
        (b"", "503", NoStreamResponseError),
        (b"", None, Exception),
        (b"[]", None, Exception),
        (b"hello", None, Exception),
        (b'{"seq":1,"stream":""}', None, Exception),
    ],
)
def test_only_an_acknowledgement_counts_as_one(data: bytes, status: str | None, expected: type) -> None:
    answer = Msg(_client=None, data=data, headers={"Status": status} if status else None)  # type: ignore[arg-type]
    assert isinstance(problem_of(answer), expected)
