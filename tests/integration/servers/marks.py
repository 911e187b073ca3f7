"""Leaving one word in a server and reading it again, over a bare socket: tests of restarts need no more."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from oncommit.testing.servers import Server
from oncommit.testing.servers.sql import execute, fetch_value
from oncommit.testing.servers.wire import Wire, wire


@dataclass(frozen=True)
class Mark:
    leave: Callable[[Server, str], None]
    read: Callable[[Server], str]


def leave_in_postgres(server: Server, word: str) -> None:
    execute(server.dsn, "create table if not exists mark (word text)")
    execute(server.dsn, "truncate mark")
    # Written by a cheap synchronous commit; `durable` is on in these tests.
    fetch_value(server.dsn, "insert into mark values ($1) returning word", word)


def read_from_postgres(server: Server) -> str:
    return str(fetch_value(server.dsn, "select word from mark"))


def redis_command(server: Server, *words: str) -> str:
    with wire(server.url) as connection:
        parts = [word.encode() for word in words]
        connection.send(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        head = connection.line()
        return connection.read(int(head[1:])).decode() if head.startswith("$") else head


def nats_request(connection: Wire, subject: str, body: bytes) -> dict[str, object]:
    connection.send(b"CONNECT {}\r\nSUB _INBOX.mark 1\r\n")
    connection.send(f"PUB {subject} _INBOX.mark {len(body)}\r\n".encode() + body + b"\r\n")
    while True:
        words = connection.line().split()
        if words[0] == "MSG":
            answer: dict[str, object] = json.loads(connection.read(int(words[-1])))
            return answer


def leave_in_nats(server: Server, word: str) -> None:
    stream = json.dumps({"name": "MARK", "subjects": ["mark"]}).encode()
    with wire(server.url) as connection:
        nats_request(connection, "$JS.API.STREAM.CREATE.MARK", stream)
    with wire(server.url) as connection:
        acknowledged = nats_request(connection, "mark", word.encode())
        assert acknowledged["stream"] == "MARK"


def read_from_nats(server: Server) -> str:
    import base64

    with wire(server.url) as connection:
        found = nats_request(connection, "$JS.API.STREAM.MSG.GET.MARK", b'{"last_by_subj": "mark"}')
    message = found["message"]
    assert isinstance(message, dict)
    return base64.b64decode(message["data"]).decode()


# Kafka's data of interest here is its cluster metadata: a topic whose name has the word's checksum.


def kafka_request(server: Server, key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", key, version, 7, -1) + body
    with wire(server.url) as connection:
        connection.send(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", connection.read(4))
        return connection.read(size)


def kafka_topic(word: str) -> bytes:
    name = f"mark-{zlib.crc32(word.encode())}".encode()
    return struct.pack(">h", len(name)) + name


KAFKA_WORDS = ["before the kill", "before the restart"]


def leave_in_kafka(server: Server, word: str) -> None:
    # CreateTopics 4: one topic, one partition, one replica, no assignments or settings, 5 s, for real.
    topic = kafka_topic(word) + struct.pack(">ihii", 1, 1, 0, 0)
    answer = kafka_request(server, 19, 4, struct.pack(">i", 1) + topic + struct.pack(">iB", 5000, 0))
    error = answer[8 + 4 + len(kafka_topic(word)) :][:2]
    assert struct.unpack(">h", error) == (0,), answer


def read_from_kafka(server: Server) -> str:
    every_topic = kafka_request(server, 3, 4, struct.pack(">iB", -1, 0))
    return [word for word in KAFKA_WORDS if kafka_topic(word) in every_topic][-1]


# RabbitMQ: a durable queue, whose passive declaration fails where it isn't there.


def amqp_method(connection: Wire, channel: int, method: bytes) -> None:
    connection.send(struct.pack(">BHI", 1, channel, len(method)) + method + b"\xce")


def amqp_answer(connection: Wire) -> bytes:
    _kind, _channel, size = struct.unpack(">BHI", connection.read(7))
    return connection.read(size + 1)[:-1]


def amqp_declare(server: Server, word: str, *, passive: bool) -> bool:
    with wire(server.url) as connection:
        connection.send(b"AMQP\x00\x00\x09\x01")
        amqp_answer(connection)
        login = b"\x00guest\x00guest"
        amqp_method(
            connection,
            0,
            struct.pack(">HHI", 10, 11, 0) + b"\x05PLAIN" + struct.pack(">I", len(login)) + login + b"\x05en_US",
        )
        amqp_answer(connection)  # tune
        amqp_method(connection, 0, struct.pack(">HHHIH", 10, 31, 10, 131072, 0))
        amqp_method(connection, 0, struct.pack(">HH", 10, 40) + b"\x01/\x00\x00")
        amqp_answer(connection)  # open-ok
        amqp_method(connection, 1, struct.pack(">HH", 20, 10) + b"\x00")
        amqp_answer(connection)  # channel open-ok
        name = word.encode()
        flags = 0b11 if passive else 0b10
        declare = struct.pack(">HHHB", 50, 10, 0, len(name)) + name + struct.pack(">BI", flags, 0)
        amqp_method(connection, 1, declare)
        declared = struct.unpack(">HH", amqp_answer(connection)[:4]) == (50, 11)
        amqp_method(connection, 0, struct.pack(">HHHBHH", 10, 50, 200, 0, 0, 0))
        amqp_answer(connection)  # close-ok
        return declared


RABBITMQ_WORDS = ["number 0", "number 1", *KAFKA_WORDS]


MARKS = {
    "postgres": Mark(leave_in_postgres, read_from_postgres),
    "redis": Mark(
        lambda server, word: assert_equal(redis_command(server, "SET", "mark", word), "+OK"),
        lambda server: redis_command(server, "GET", "mark"),
    ),
    "nats": Mark(leave_in_nats, read_from_nats),
    "kafka": Mark(leave_in_kafka, read_from_kafka),
    "rabbitmq": Mark(
        lambda server, word: assert_equal(amqp_declare(server, word, passive=False), True),  # noqa: FBT003
        lambda server: [word for word in RABBITMQ_WORDS if amqp_declare(server, word, passive=True)][-1],
    ),
}


def assert_equal(one: object, other: object) -> None:
    assert one == other
