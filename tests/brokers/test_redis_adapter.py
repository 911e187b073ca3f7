"""What is special to Redis: refusals within a batch, limits, options of the URL, Pub/Sub, and dropped connections."""

from __future__ import annotations

import asyncio
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from oncommit import Event
from oncommit.brokers import redis_wire
from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.redis import RedisBroker
from oncommit.brokers.registry import make_broker
from oncommit.cloudevents import REDIS, STRUCTURED, parse, to_binary
from oncommit.errors import (
    BrokerUnavailable,
    ConfigError,
    NotAttempted,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)
from oncommit.testing.servers import Server
from oncommit.testing.servers import redis as redis_server
from oncommit.testing.servers.ports import claim_port

LIMIT = 10.0
ACLS = {
    "scriptless": ("on", ">secret", "+xadd", "+publish", "~*", "&*"),
    "narrow": ("on", ">secret", "+xadd", "+publish", "+eval", "~open*", "&open*"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server(settings=["unixsocket {folder}/redis.sock"]) as server:
        yield server


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Any]:
    """A client of its own, and the server as it was when it started."""
    client = Redis.from_url(server.url, decode_responses=True)
    await client.flushall()
    for name, rules in ACLS.items():
        await client.execute_command("ACL", "SETUSER", name, *rules)
    yield client
    for name, value in {"maxmemory": "0", "maxmemory-policy": "noeviction", "min-replicas-to-write": "0"}.items():
        await client.config_set(name, value)
    await client.execute_command("REPLICAOF", "NO", "ONE")
    await client.aclose()


def url_of(server: Server, user: str | None = None, query: str = "") -> str:
    url = server.url.replace("://", f"://{user}:secret@") if user else server.url
    return f"{url}?{query}" if query else url


async def broker_at(url: str) -> RedisBroker:
    broker = RedisBroker(url)
    await broker.open()
    return broker


@pytest.fixture
async def broker(server: Server, redis: Any) -> AsyncIterator[RedisBroker]:
    broker = await broker_at(server.url)
    yield broker
    await broker.close()


def message(topic: str = "open", key: str | None = "k", **given: Any) -> Message:
    event = Event("order.placed", key=key, **({"payload": {"n": 1}} | given))
    wire = to_binary(event, source="/shop", time=datetime.now(UTC), binding=REDIS)
    return Message(str(event.id), topic, key, wire.headers, wire.body, wire.content_type)


async def ids(redis: Any, stream: str) -> list[str]:
    return [fields["message_id"] for _, fields in await redis.xrange(stream)]


def kinds(outcomes: Any) -> list[type | None]:
    return [None if outcome is None else type(outcome) for outcome in outcomes]


def text(outcome: Outcome) -> str:
    assert outcome is not None
    return str(outcome)


# -- Order behind a refusal


@pytest.mark.parametrize("user", [None, "scriptless"], ids=["script", "waves"])
async def test_nothing_of_a_key_passes_a_refusal(server: Server, redis: Any, user: str | None) -> None:
    """In a pipeline, or in a transaction, the third would be taken."""
    await redis.set("wrong", "a string")
    broker = await broker_at(url_of(server, user))
    first, refused, passed = message("open"), message("wrong"), message("other")
    stranger, last = message("other", key="another"), message("open", key="another")
    outcomes = await broker.publish([first, stranger, refused, passed, last], timeout=LIMIT)
    await broker.close()
    assert kinds(outcomes) == [None, None, TopicUnavailable, NotAttempted, None]
    assert await ids(redis, "open") == [first.message_id, last.message_id]
    assert await ids(redis, "other") == [stranger.message_id]


@pytest.mark.parametrize("user", [None, "scriptless"], ids=["script", "waves"])
async def test_a_long_batch_of_few_keys_keeps_their_order(server: Server, redis: Any, user: str | None) -> None:
    broker = await broker_at(url_of(server, user))
    batch = [message(key=f"k{number % 7}") for number in range(900)]
    assert kinds(await broker.publish(batch, timeout=LIMIT)) == [None] * 900
    await broker.close()
    arrived = [(fields["ce-partitionkey"], fields["message_id"]) for _, fields in await redis.xrange("open")]
    for key in {one.key for one in batch}:
        assert [found for of, found in arrived if of == key] == [one.message_id for one in batch if one.key == key]


async def test_what_cannot_be_sent_holds_its_key_back(server: Server, redis: Any) -> None:
    broker = await broker_at(url_of(server, query="max_message=5000"))
    batch = [
        message(payload={"text": "x" * 5000}),
        message(),
        message(key=None, payload=b"x" * 6000),
        message("other", "o"),
    ]
    outcomes = await broker.publish(batch, timeout=LIMIT)
    assert kinds(outcomes) == [PublishRejected, NotAttempted, PublishRejected, None]
    await broker.close()


async def test_a_message_with_too_many_headers_spoils_no_other(broker: RedisBroker, redis: Any) -> None:
    """One that Lua cannot hand on would end the script half-way."""
    good = message()
    most = Message("m", "open", "other", {f"h{n}": "" for n in range(redis_wire.MOST_FIELDS)}, b"", "text/plain")
    many = Message("m", "open", None, {f"h{n}": "" for n in range(redis_wire.MOST_FIELDS + 1)}, b"", None)
    assert kinds(await broker.publish([good, most, many], timeout=LIMIT)) == [None, None, PublishRejected]
    assert await redis.xlen("open") == 2


async def test_headers_that_are_no_unicode_are_refused(broker: RedisBroker) -> None:
    odd = Message("m", "open", None, {"x": "\ud800"}, b"", None)
    assert kinds(await broker.publish([odd], timeout=LIMIT)) == [PublishRejected]


# -- What the server may not let us do


async def test_a_forbidden_stream_is_not_the_others_fault(server: Server, redis: Any) -> None:
    broker = await broker_at(url_of(server, "narrow"))
    batch = [message("open"), message("closed"), message("open:2"), message("open", key="other")]
    outcomes = await broker.publish(batch, timeout=LIMIT)
    assert kinds(outcomes) == [None, TopicUnavailable, NotAttempted, None]
    batch = [message("pubsub://closed"), message("open"), message("pubsub://open", key="other")]
    assert kinds(await broker.publish(batch, timeout=LIMIT)) == [TopicUnavailable, NotAttempted, None]
    await broker.ping()  # that it may not write to the key it asks about says nothing
    await broker.close()


async def test_memory_that_is_full_costs_no_attempt(broker: RedisBroker, redis: Any) -> None:
    await redis.config_set("maxmemory", "1")
    assert kinds(await broker.publish([message(), message()], timeout=LIMIT)) == [BrokerUnavailable, NotAttempted]
    with pytest.raises(BrokerUnavailable, match="memory is full"):  # or its circuit would close and open for ever
        await broker.ping()
    await redis.config_set("maxmemory", "0")
    await broker.ping()
    assert kinds(await broker.publish([message(), message()], timeout=LIMIT)) == [None, None]
    assert await redis.xlen("open") == 2
    assert await redis.exists("oncommit:probe") == 0


async def test_a_replica_takes_nothing(broker: RedisBroker, redis: Any) -> None:
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
    with pytest.raises(BrokerUnavailable, match="replica"):
        await broker.ping()
    await redis.config_set("replica-serve-stale-data", "no")
    assert kinds(await broker.publish([message(), message()], timeout=LIMIT)) == [BrokerUnavailable, NotAttempted]
    await redis.config_set("replica-serve-stale-data", "yes")


async def test_too_few_replicas_take_nothing(broker: RedisBroker, redis: Any) -> None:
    await redis.config_set("min-replicas-to-write", "1")
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
    with pytest.raises(BrokerUnavailable):
        await broker.ping()


async def test_a_wrong_login_is_said_without_the_password(server: Server, redis: Any) -> None:
    broker = RedisBroker(server.url.replace("://", "://narrow:hush-hush@"))
    with pytest.raises(BrokerUnavailable, match="NOAUTH") as caught:
        await broker.open()
    assert "hush" not in str(caught.value)
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
    await broker.close()


async def test_a_login_that_is_taken_away(server: Server, redis: Any) -> None:
    """The server cuts the connection, and lets nobody in again."""
    broker = await broker_at(url_of(server, "narrow"))
    await redis.execute_command("ACL", "DELUSER", "narrow")
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
    await broker.close()


async def test_eviction_is_warned_of(server: Server, redis: Any, caplog: pytest.LogCaptureFixture) -> None:
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    await (await broker_at(server.url)).close()
    assert "allkeys-lru" in caplog.text


# -- Options


async def test_streams_are_not_made_where_that_is_asked_for(server: Server, redis: Any) -> None:
    for user in (None, "scriptless"):
        broker = await broker_at(url_of(server, user, "create=no"))
        (outcome,) = await broker.publish([message("missing")], timeout=LIMIT)
        assert isinstance(outcome, TopicUnavailable)
        assert "no such stream" in text(outcome)
        await redis.xgroup_create("there", "consumers", mkstream=True)
        assert kinds(await broker.publish([message("there")], timeout=LIMIT)) == [None]
        await redis.delete("there")
        await broker.close()


async def test_streams_are_trimmed_where_that_is_asked_for(server: Server, redis: Any) -> None:
    broker = await broker_at(url_of(server, query="maxlen=100&create=no"))
    await redis.xgroup_create("open", "consumers", mkstream=True)
    await broker.publish([message(key=None) for _ in range(1000)], timeout=LIMIT)
    await broker.close()
    assert 100 <= await redis.xlen("open") < 300  # `~`: Redis drops whole nodes


async def test_an_acknowledgement_waits_for_replicas(server: Server, redis: Any) -> None:
    broker = RedisBroker(url_of(server, query="replicas=1"))
    with pytest.raises(BrokerUnavailable, match="0 of 1"):
        await broker.open()
    with pytest.raises(BrokerUnavailable, match="0 of 1"):
        await broker.ping()
    outcomes = await broker.publish([message(), message()], timeout=1.0)
    assert kinds(outcomes) == [BrokerUnavailable, BrokerUnavailable]
    with redis_server(settings=[f"replicaof 127.0.0.1 {server.port}"]) as replica:
        copy = Redis.from_url(replica.url, decode_responses=True)
        async with asyncio.timeout(30):
            while (await copy.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.05)
        await broker.ping()
        again = [message("again"), message("again")]
        assert kinds(await broker.publish(again, timeout=LIMIT)) == [None, None]
        assert await ids(copy, "again") == [one.message_id for one in again]
        await copy.aclose()
    await broker.close()


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("maxlen=0", "maxlen"),
        ("maxlen=ten", "maxlen"),
        ("replicas=-1", "replicas"),
        ("max_message=", "max_message"),
        ("create=maybe", "create"),
        ("maxlenn=5", "maxlenn"),
        ("db=first", "form"),
        ("a", "cannot be read"),
    ],
)
def test_a_wrong_option_is_named(query: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        make_broker(f"redis://app:hush@localhost:6379/0?{query}")
    assert "hush" not in str(caught.value)


def test_the_url_decides() -> None:
    for url in (
        "redis://localhost:6379/0",
        "rediss://localhost:6379?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=1",
    ):
        assert make_broker(url).capabilities.name == "redis"


async def test_a_unix_socket(server: Server, redis: Any) -> None:
    broker = make_broker(f"unix://{server.home.folder}/redis.sock")
    await broker.open()
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [None]
    await broker.close()


async def test_tls(tmp_path: Path) -> None:
    """The certificate is checked, unless the URL says otherwise."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    port = claim_port()
    files = [f"tls-cert-file {certificate}", f"tls-key-file {key}", f"tls-ca-cert-file {certificate}"]
    with redis_server(settings=[f"tls-port {port.number}", "tls-auth-clients no", *files]) as server:
        secure = f"rediss://127.0.0.1:{port.number}/0"
        with pytest.raises(BrokerUnavailable, match="certificate"):
            await RedisBroker(secure).open()
        for query in (f"ssl_ca_certs={certificate}", "ssl_cert_reqs=none"):
            broker = await broker_at(f"{secure}?{query}&maxlen=1000")
            assert kinds(await broker.publish([message()], timeout=LIMIT)) == [None]
            await broker.close()
        async with Redis.from_url(server.url) as client:
            assert await client.xlen("open") == 2
    port.release()


# -- Pub/Sub


async def test_a_channel_hears_of_it_and_nothing_is_stored(broker: RedisBroker, redis: Any) -> None:
    async with redis.pubsub() as listening:
        await listening.subscribe("room.42")
        assert (await listening.get_message(timeout=5))["type"] == "subscribe"
        json, octets = message("pubsub://room.42"), message("pubsub://room.42", payload=b"\x00\xff")
        lying = Message("m", "pubsub://room.42", "k", json.headers, b'1},"id":"x', "application/json")
        nothing = message("pubsub://room.42", payload=None)
        batch = [json, message("open"), octets, lying, nothing]
        assert kinds(await broker.publish(batch, timeout=LIMIT)) == [None] * 5
        heard = [(await listening.get_message(timeout=5))["data"].encode() for _ in range(4)]
    # Bytes that lie about their content type stay inside their member of the document.
    assert msgspec.json.decode(heard[2])["id"] == json.message_id
    assert b64decode(msgspec.json.decode(heard[2])["data_base64"]) == lying.body
    parsed = [parse({"content-type": STRUCTURED}, body, REDIS).event for body in (heard[0], heard[1], heard[3])]
    assert [str(event.id) for event in parsed] == [one.message_id for one in (json, octets, nothing)]
    assert [event.payload for event in parsed] == [{"n": 1}, b"\x00\xff", None]
    assert await redis.keys() == ["open"]


# -- Connections


async def test_a_hung_server_costs_the_connection_and_no_answer_is_misread(server: Server, redis: Any) -> None:
    broker = await broker_at(server.url)
    server.pause()
    early = [message(), message()]
    outcomes = await broker.publish(early, timeout=0.3)
    server.resume()
    assert kinds(outcomes) == [BrokerUnavailable, NotAttempted]
    await redis.set("wrong", "a string")
    assert kinds(await broker.publish([message("wrong")], timeout=LIMIT)) == [TopicUnavailable]
    assert kinds(await broker.publish(early, timeout=LIMIT)) == [None, None]
    first = list(dict.fromkeys(await ids(redis, "open")))
    assert first == [one.message_id for one in early]
    await broker.close()


async def test_a_cancelled_publish_leaves_no_answers_behind(server: Server, redis: Any) -> None:
    broker = await broker_at(server.url)
    await redis.set("wrong", "a string")
    server.pause()
    publishing = asyncio.create_task(broker.publish([message("wrong")], timeout=LIMIT))
    await asyncio.wait({publishing}, timeout=0.2)
    publishing.cancel()
    await asyncio.wait({publishing}, timeout=2)
    assert publishing.cancelled()
    server.resume()
    assert kinds(await broker.publish([message("open")], timeout=LIMIT)) == [None]
    await broker.close()


async def test_a_slow_server_is_no_outage(server: Server, redis: Any) -> None:
    """It answers others meanwhile: only what waits spends an attempt."""
    broker = await broker_at(server.url)
    await redis.client_pause(700)  # commands that write wait; the question whether it is there does, too
    outcomes = await broker.publish([message(), message()], timeout=0.4)
    assert kinds(outcomes) == [PublishFailed, NotAttempted]
    await broker.close()


async def test_many_publishes_at_once_share_few_connections(server: Server, redis: Any) -> None:
    broker = await broker_at(server.url)
    results = await asyncio.gather(*[broker.publish([message(key=str(n))], timeout=LIMIT) for n in range(100)])
    assert [kinds(outcomes) for outcomes in results] == [[None]] * 100
    assert len([client for client in await redis.client_list() if client["name"] == ""]) <= 10
    await broker.close()


async def test_without_a_server(server: Server) -> None:
    broker = RedisBroker("redis://127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        await broker.open()
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
    await broker.close()
    assert kinds(await broker.publish([message()], timeout=LIMIT)) == [BrokerUnavailable]
