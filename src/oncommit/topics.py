"""Where an event goes: its own topic, else a map of types, else the user's function, else a template.

Pure. A type is put into a topic as it is, never rewritten: who listens to ``order.placed`` must find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from oncommit import checks
from oncommit.errors import ConfigError

# ruff: noqa: D102 - what Routable asks for is what Event has, and is described there

DEFAULT_TEMPLATE: Final = "events.{type}"

TEMPLATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nats": "events.{aggregate_type}.{type}",
        # Before the stroke the exchange, behind it the routing key.
        "rabbitmq": "events/{type}",
    }
)
"""Where a broker's habits ask for something else than ``events.{type}``."""

FIELDS: Final = ("type", "aggregate_type", "aggregate_id", "sink")


class Routable(Protocol):
    """What is asked of an event to find its topic: an ``Event`` has it, and so can a row that a relay has read."""

    @property
    def type(self) -> str: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def sink(self) -> str: ...
    @property
    def aggregate_type(self) -> str | None: ...
    @property
    def aggregate_id(self) -> str | None: ...


class Destination(msgspec.Struct, frozen=True):
    """A topic as RabbitMQ needs it, in two parts."""

    topic: str
    exchange: str
    routing_key: str


class TopicRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one sink, checked on construction."""

    template: str = DEFAULT_TEMPLATE
    """Text with the fields ``{type}``, ``{aggregate_type}``, ``{aggregate_id}`` and ``{sink}``."""

    without_aggregate: str = DEFAULT_TEMPLATE
    """The template for events that belong to no aggregate, where ``template`` asks for one."""

    by_type: Mapping[str, str] = {}
    """Topics of single types."""

    function: Callable[[Any], str] | None = None
    """Called with the event; gives its topic. Then the templates are not asked."""

    def __post_init__(self) -> None:
        _check_template("template", self.template, FIELDS)
        _check_template("without_aggregate", self.without_aggregate, ("type", "sink"))
        if not isinstance(self.by_type, Mapping):
            raise ConfigError(f"by_type must map types to topics, not be a {type(self.by_type).__name__}")
        for kind, topic in self.by_type.items():
            for text in (kind, topic):
                if problem := checks.problem_of_text(text, checks.MAX_TOPIC):
                    raise ConfigError(f"by_type[{kind!r}]: {text!r} {problem}")
        if self.function is not None and not callable(self.function):
            raise ConfigError(f"function must be callable with an event, not a {type(self.function).__name__}")
        # A copy of our own: what the caller does to his mapping afterwards has not been checked.
        msgspec.structs.force_setattr(self, "by_type", MappingProxyType(dict(self.by_type)))

    def resolve(self, event: Routable) -> str:
        """The topic. Raises ``ConfigError`` where the user's function gives none."""
        if event.topic:
            return event.topic
        if (mapped := self.by_type.get(event.type)) is not None:
            return mapped
        if self.function is not None:
            return _ask(self.function, event)
        kind, identity = event.aggregate_type, event.aggregate_id
        if kind is not None and identity is not None:
            return self.template.format(type=event.type, sink=event.sink, aggregate_type=kind, aggregate_id=identity)
        bare = self.without_aggregate if "{aggregate_" in self.template else self.template
        return bare.format(type=event.type, sink=event.sink)

    def destination(self, event: Routable) -> Destination:
        """Exchange and routing key: the topic, parted at its first stroke; without one, the type is the routing key."""
        topic = self.resolve(event)
        exchange, stroke, routing_key = topic.partition("/")
        return Destination(topic, exchange, routing_key if stroke else event.type)


def default_rules(broker: str) -> TopicRules:
    """The rules for a kind of broker where the user has said nothing."""
    return TopicRules(template=TEMPLATES.get(broker, DEFAULT_TEMPLATE))


def _check_template(name: str, template: object, fields: tuple[str, ...]) -> None:
    """Plain field names only: ``{type.__class__}`` and the like would reach into our objects."""
    if problem := checks.problem_of_text(template, checks.MAX_TOPIC):
        raise ConfigError(f"{name}: {template!r} {problem}")
    known = ", ".join(f"{{{field}}}" for field in fields)
    try:
        parts = list(Formatter().parse(str(template)))
    except ValueError as error:
        raise ConfigError(f"{name}: {template!r} has an unmatched brace; the fields are {known}") from error
    if any("{" in literal or "}" in literal for literal, *_ in parts):
        raise ConfigError(f"{name}: {template!r} has a doubled brace; a topic has none")
    for _, field, layout, conversion in parts:
        if field is not None and (field not in fields or layout or conversion):
            found = "{" + field + (f"!{conversion}" if conversion else "") + (f":{layout}" if layout else "") + "}"
            raise ConfigError(f"{name}: {template!r} has {found}; there can be only {known}")


def _ask(function: Callable[[Any], str], event: Routable) -> str:
    who = getattr(function, "__qualname__", repr(function))
    try:
        topic = function(event)
    except Exception as error:
        raise ConfigError(f"the topic function {who} failed for {event.type!r}: {error!r}") from error
    if problem := checks.problem_of_text(topic, checks.MAX_TOPIC):
        raise ConfigError(f"the topic function {who} gave {topic!r:.80} for {event.type!r}, which {problem}")
    return topic
