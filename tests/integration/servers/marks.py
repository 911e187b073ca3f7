"""Leaving one word in a server and reading it again, over a bare socket: tests of restarts need no more."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from oncommit.testing.servers import Server
from oncommit.testing.servers.sql import execute, fetch_value
from oncommit.testing.servers.wire import Wire, wire


@dataclass(frozen=True)
class Mark:
    leave: Callable[[Server, str], None]
    read: Callable[[Server], str]
    before_crash: Callable[[Server], None] = lambda _server: None


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


# RabbitMQ: a persistent message, confirmed, in a durable queue.

BASIC, QUEUE, CONFIRM = 60, 50, 85


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def amqp_frame(connection: Wire, channel: int, payload: bytes, kind: int = 1) -> None:
    connection.send(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")


def amqp_answer(connection: Wire, *expected: tuple[int, int]) -> tuple[tuple[int, int], bytes]:
    """The next frame: its method, if it is one that is expected here, and all of it."""
    _kind, _channel, size = struct.unpack(">BHI", connection.read(7))
    payload = connection.read(size + 1)[:-1]
    method = struct.unpack(">HH", payload[:4])
    assert not expected or method in expected, payload
    return method, payload


@contextmanager
def amqp_channel(server: Server) -> Iterator[Wire]:
    """A connection with channel 1 open, and the durable queue "mark" declared."""
    with wire(server.url) as connection:
        connection.send(b"AMQP\x00\x00\x09\x01")
        amqp_answer(connection, (10, 10))
        login = b"\x00guest\x00guest"
        start_ok = struct.pack(">HHI", 10, 11, 0) + short("PLAIN") + struct.pack(">I", len(login)) + login
        amqp_frame(connection, 0, start_ok + short("en_US"))
        amqp_answer(connection, (10, 30))
        amqp_frame(connection, 0, struct.pack(">HHHIH", 10, 31, 10, 131072, 0))
        amqp_frame(connection, 0, struct.pack(">HH", 10, 40) + short("/") + b"\x00\x00")
        amqp_answer(connection, (10, 41))
        amqp_frame(connection, 1, struct.pack(">HH", 20, 10) + b"\x00")
        amqp_answer(connection, (20, 11))
        durable = 0b10
        amqp_frame(connection, 1, struct.pack(">HHH", QUEUE, 10, 0) + short("mark") + struct.pack(">BI", durable, 0))
        amqp_answer(connection, (QUEUE, 11))
        yield connection
        amqp_frame(connection, 0, struct.pack(">HHHBHH", 10, 50, 200, 0, 0, 0))
        amqp_answer(connection, (10, 51))


def settle_rabbitmq(server: Server) -> None:
    """See `rabbitmq`: the queue must be there since before the last restart to outlive a kill for sure."""
    with amqp_channel(server):
        pass
    server.restart()


def leave_in_rabbitmq(server: Server, word: str) -> None:
    with amqp_channel(server) as connection:
        amqp_frame(connection, 1, struct.pack(">HHB", CONFIRM, 10, 0))
        amqp_answer(connection, (CONFIRM, 11))
        amqp_frame(connection, 1, struct.pack(">HHH", BASIC, 40, 0) + short("") + short("mark") + b"\x00")
        has_delivery_mode, persistent = 0x1000, 2
        header = struct.pack(">HHQHB", BASIC, 0, len(word), has_delivery_mode, persistent)
        amqp_frame(connection, 1, header, kind=2)
        amqp_frame(connection, 1, word.encode(), kind=3)
        amqp_answer(connection, (BASIC, 80))


def read_from_rabbitmq(server: Server) -> str:
    """The last message; all go back into the queue, since none is acknowledged."""
    last = ""
    with amqp_channel(server) as connection:
        while True:
            amqp_frame(connection, 1, struct.pack(">HHH", BASIC, 70, 0) + short("mark") + b"\x00")
            method, _ = amqp_answer(connection, (BASIC, 71), (BASIC, 72))
            if method == (BASIC, 72):
                return last
            amqp_answer(connection)
            last = amqp_answer(connection)[1].decode()


MARKS = {
    "postgres": Mark(leave_in_postgres, read_from_postgres),
    "redis": Mark(
        lambda server, word: assert_equal(redis_command(server, "SET", "mark", word), "+OK"),
        lambda server: redis_command(server, "GET", "mark"),
    ),
    "nats": Mark(leave_in_nats, read_from_nats),
    "kafka": Mark(leave_in_kafka, read_from_kafka),
    "rabbitmq": Mark(leave_in_rabbitmq, read_from_rabbitmq, settle_rabbitmq),
}


def assert_equal(one: object, other: object) -> None:
    assert one == other
