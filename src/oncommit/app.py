"""From settings to loops that can run: the one place where everything is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncommit.brokers.registry import make_broker
from oncommit.relay.relay import Relay
from oncommit.relay.wake_ups import WakeUps
from oncommit.topics import TopicRules, default_rules

if TYPE_CHECKING:
    from oncommit.brokers.base import Broker
    from oncommit.config import Settings, SinkSettings


def make_relay(settings: Settings) -> Relay:
    """A relay for the sinks that these settings name, not started yet.

    Raises:
        ConfigError: No database, no sink, or a sink without a broker; a broker of a kind that nobody knows.
        MissingDependency: The client of a broker is not installed.
    """
    database = settings.require_database()
    sinks = settings.served()
    brokers = {name: make_broker(sink.broker or "") for name, sink in sinks.items()}
    topics = {name: _rules(sink, brokers[name]) for name, sink in sinks.items()}
    program = settings.program
    return Relay(
        database,
        brokers,
        schema=settings.schema,
        settings=settings.relay,
        topics=topics,
        name=program.name,
        wake_ups=WakeUps(listen_database=program.listen_database, redis=program.wake_redis, service=program.service),
    )


def _rules(sink: SinkSettings, broker: Broker) -> TopicRules:
    usual = default_rules(broker.capabilities.name)
    return TopicRules(
        template=sink.topic or usual.template, without_aggregate=sink.without_aggregate, by_type=sink.topics
    )
