"""From a URL to what librdkafka is told, and what its errors mean."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from oncommit.brokers.base import Message
from oncommit.brokers.kafka import KafkaBroker
from oncommit.brokers.kafka_errors import cause_of, error_of
from oncommit.brokers.kafka_settings import careful, settings_of
from oncommit.brokers.registry import make_broker
from oncommit.errors import BrokerUnavailable, ConfigError, PublishFailed, PublishRejected, TopicUnavailable

MESSAGE = Message("1", "orders", "k", {"ce_id": "1"}, b"{}", "application/json")


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://mq", "mq:9092"),
        ("kafka://mq:19092/", "mq:19092"),
        ("kafka://a:1,b, c:3", "a:1,b:9092,c:3"),
        ("kafka://[::1]:1,[::2]", "[::1]:1,[::2]:9092"),
    ],
)
def test_where_the_brokers_are(url: str, servers: str) -> None:
    assert settings_of(url)["bootstrap.servers"] == servers


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = settings_of("kafka://mq")
    wanted = {
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "max.in.flight.requests.per.connection": 5,
        "compression.type": "lz4",
        "linger.ms": 5,
        "request.timeout.ms": 30_000,
        "partitioner": "murmur2_random",
        "message.timeout.ms": 0,
    }
    assert {name: settings[name] for name in wanted} == wanted
    assert "security.protocol" not in settings
    assert settings_of("kafka://mq?max_message=5000000")["message.max.bytes"] == 5_000_000


def test_a_login() -> None:
    settings = settings_of("kafka://us%40er:p%3Aw%2Fd@a,b:1?sasl=scram-sha-512&tls=true&ca=/etc/ca.pem")
    assert settings["bootstrap.servers"] == "a:9092,b:1"
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("us@er", "p:w/d")
    assert settings["ssl.ca.location"] == "/etc/ca.pem"
    assert settings_of("kafka://u:p@a?sasl=PLAIN")["security.protocol"] == "SASL_PLAINTEXT"
    assert settings_of("kafka://a?ca=/etc/ca.pem")["security.protocol"] == "SSL"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kafka://", "kafka://host:9092"),
        ("kafka://a,,b", "kafka://host:9092"),
        ("kafka://a/topic", "kafka://host:9092"),
        ("kafka://u:secret@a", "sasl="),
        ("kafka://u:secret@a?sasl=GSSAPI", "SCRAM-SHA-512"),
        ("kafka://a?sasl=PLAIN", "needs a login"),
        ("kafka://u:secret@a?sasl=PLAIN&tls=maybe", "tls"),
        ("kafka://u:secret@a?linger=5", "no option 'linger'"),
        ("kafka://a?max_message=-1", "number of bytes"),
    ],
)
def test_what_cannot_be_is_told_without_the_password(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of(url)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_the_promises_rest_on_cannot_be_changed() -> None:
    with pytest.raises(ConfigError, match=r"enable\.gapless\.guarantee"):
        settings_of("kafka://a", {"enable.gapless.guarantee": False})
    assert settings_of("kafka://a", {"linger.ms": 20})["linger.ms"] == 20


async def test_a_setting_that_the_client_does_not_know_is_told() -> None:
    with pytest.raises(ConfigError, match=r"lingr\.ms"):
        await KafkaBroker("kafka://127.0.0.1:1", settings={"lingr.ms": 20}).open()


def test_one_by_one_a_message_is_a_batch() -> None:
    settings = careful(settings_of("kafka://a"))
    assert settings["batch.num.messages"] == 1
    assert not settings["enable.idempotence"]
    assert settings["acks"] == "all"


def test_the_registry_makes_it_and_it_shows_no_password() -> None:
    broker = make_broker("kafka://u:secret@a?sasl=PLAIN")
    assert broker.capabilities.name == "kafka"
    assert "secret" not in repr(broker)


@pytest.mark.parametrize(
    ("code", "kind", "alone"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, PublishRejected, True),
        (KafkaError.INVALID_RECORD, PublishRejected, True),
        (KafkaError.TOPIC_EXCEPTION, PublishRejected, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicUnavailable, False),
        (KafkaError._UNKNOWN_PARTITION, TopicUnavailable, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicUnavailable, False),
        (KafkaError._TRANSPORT, BrokerUnavailable, False),
        (KafkaError._AUTHENTICATION, BrokerUnavailable, False),
        (KafkaError.NOT_LEADER_FOR_PARTITION, PublishFailed, True),
        (KafkaError._PURGE_INFLIGHT, PublishFailed, True),
    ],
)
def test_what_an_error_says(code: int, kind: type[Exception], alone: bool) -> None:
    error = KafkaException(KafkaError(code)).args[0]
    assert isinstance(error_of(error, MESSAGE), kind)
    # What may have hit a message for the sake of another says something only of one that stood alone.
    assert (cause_of(error, MESSAGE) is None) == alone
