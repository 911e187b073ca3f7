"""What Kafka's errors mean for an event. Pure."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from oncommit.brokers.base import Message
from oncommit.errors import BrokerError, BrokerUnavailable, PublishFailed, PublishRejected, TopicUnavailable

_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REJECTED: Final = _TOO_LARGE | {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
)
_TOPIC: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION})
_LOGIN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - so they are called
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_AWAY: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._SSL, KafkaError._RESOLVE}  # noqa: SLF001
)


def refuses_login(error: KafkaError) -> bool:
    """Whether it is about who we are."""
    return error.code() in _LOGIN


def is_line(error: KafkaError) -> bool:
    """Whether it is about the connection, and so says nothing of a message or topic."""
    return error.code() in _AWAY or refuses_login(error)


def ends_all(error: KafkaError) -> bool:
    """Whether the producer takes nothing more."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - so it is called


def cause_of(error: KafkaError, message: Message) -> BrokerError | None:
    """What an error says of this message itself; nothing if it may have suffered for the sake of another.

    A broker refuses whole batches, and a producer that is at its end drops everything.
    """
    topical = error.code() in _MISSING or error.code() in _TOPIC
    return error_of(error, message) if topical or is_line(error) else None


def error_of(error: KafkaError, message: Message) -> BrokerError:
    """What an error says of the message that got it alone."""
    code = error.code()
    if code in _TOO_LARGE:
        return PublishRejected(f"{size_of(message)} bytes are more than the topic's max.message.bytes allows")
    if code in _REJECTED:
        return PublishRejected(f"Kafka will never take it: {error.str()}")
    if code in _MISSING:
        return TopicUnavailable(f"Kafka has no topic {message.topic!r}: create it")
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return TopicUnavailable(f"Kafka forbids this login to write to the topic {message.topic!r}: grant WRITE on it")
    if is_line(error):
        return BrokerUnavailable(away(error))
    return PublishFailed(f"Kafka did not take it: {error.str()} ({error.name()})")


def away(error: KafkaError) -> str:
    """Why there is no broker."""
    if refuses_login(error):
        return "Kafka refuses the login: check user, password and mechanism (sasl=…) of the URL"
    return f"Kafka cannot be reached: {error.str()}"


def size_of(message: Message) -> int:
    """Bytes of a message, headers included, as Kafka counts them, and a few more."""
    headers = sum(len(name.encode()) + len(value.encode()) + 6 for name, value in message.headers.items())
    return len(message.body) + len((message.key or "").encode()) + headers + 64
