"""What RabbitMQ's refusals say about a message. Pure."""

from __future__ import annotations

from typing import Final

from oncommit.brokers.amqp.channel import Closure
from oncommit.brokers.base import Message
from oncommit.errors import BrokerError, PublishFailed, PublishRejected, TopicUnavailable

NOT_FOUND: Final = 404
REFUSED: Final = 403
_PRECONDITION: Final = 406


def closed_for(message: Message, closure: Closure) -> BrokerError:
    """It was alone on the channel that was closed."""
    topic, said = message.topic, closure.text
    if closure.code == NOT_FOUND:
        return TopicUnavailable(f"there is no exchange for {topic!r} ({said}): declare it")
    if closure.code == REFUSED:
        return TopicUnavailable(f"we may not publish to {topic!r} ({said}): grant this user the right")
    if closure.code == _PRECONDITION:
        return PublishRejected(f"RabbitMQ does not take it: {said}")
    return PublishFailed(f"RabbitMQ closed the channel: {said} ({closure.code})")


def came_back(message: Message, said: str) -> BrokerError:
    """No queue wanted it."""
    exchange = message.topic.partition("/")[0]
    where = f"bind one to the exchange {exchange!r}" if exchange else "declare that queue"
    return TopicUnavailable(f"no queue takes {message.topic!r} ({said}): {where}")


def refused(message: Message) -> BrokerError:
    """A queue said no: never for anything about the message."""
    return TopicUnavailable(f"RabbitMQ refused it for {message.topic!r}: a queue is full or not to be had")
