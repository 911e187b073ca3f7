"""Where events go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncommit.errors import ConfigError
from oncommit.message import Event
from oncommit.topics import TEMPLATES, Destination, TopicRules, default_rules

PLACED = Event("order.placed", aggregate=("order", 42))
LONELY = Event("clock.struck")


def test_without_a_word_it_is_the_type_behind_events() -> None:
    assert TopicRules().resolve(PLACED) == "events.order.placed"
    assert TopicRules().resolve(LONELY) == "events.clock.struck"


def test_the_order_of_the_rules() -> None:
    everything = TopicRules(
        by_type={"order.placed": "from.the.map"}, function=lambda event: f"asked.{event.type}", template="t.{type}"
    )
    assert everything.resolve(Event("order.placed", topic="its.own")) == "its.own"
    assert everything.resolve(PLACED) == "from.the.map"
    assert everything.resolve(LONELY) == "asked.clock.struck"
    assert TopicRules(by_type={"order.placed": "from.the.map"}, template="t.{type}").resolve(LONELY) == "t.clock.struck"


def test_all_fields_of_a_template() -> None:
    rules = TopicRules(template="{sink}-{aggregate_type}-{aggregate_id}-{type}")
    assert rules.resolve(Event("placed", aggregate=("order", 42), sink="audit")) == "audit-order-42-placed"
    assert TopicRules(template="one-for-all").resolve(PLACED) == "one-for-all"


@pytest.mark.parametrize(
    "kind", ["Order Placed", "order/placed", "ORDER_PLACED", "bestellung.geändert", "a.{type}", "%s"]
)
def test_a_type_is_never_rewritten(kind: str) -> None:
    assert TopicRules().resolve(Event(kind)) == f"events.{kind}"
    assert default_rules("nats").resolve(Event(kind, aggregate=("{sink}", "x"))) == f"events.{{sink}}.{kind}"


def test_an_event_of_no_aggregate_has_a_template_of_its_own() -> None:
    assert default_rules("nats").resolve(PLACED) == "events.order.order.placed"
    assert default_rules("nats").resolve(LONELY) == "events.clock.struck"
    rules = TopicRules(template="{aggregate_id}", without_aggregate="misc.{type}")
    assert rules.resolve(LONELY) == "misc.clock.struck"
    # It is not asked where the template needs no aggregate.
    assert TopicRules(template="t.{type}", without_aggregate="misc.{type}").resolve(LONELY) == "t.clock.struck"


def test_defaults_per_broker() -> None:
    assert default_rules("kafka") == TopicRules()
    assert default_rules("redis").template == "events.{type}"
    for broker, template in TEMPLATES.items():
        assert default_rules(broker).template == template


def test_rabbitmq_gets_exchange_and_routing_key_apart() -> None:
    rules = default_rules("rabbitmq")
    assert rules.destination(PLACED) == Destination("events/order.placed", "events", "order.placed")
    # A type with a stroke goes into the routing key whole.
    assert rules.destination(Event("order/placed")).routing_key == "order/placed"


def test_an_exchange_alone_takes_the_type_as_routing_key() -> None:
    assert default_rules("rabbitmq").destination(Event("order.placed", topic="shop")) == Destination(
        "shop", "shop", "order.placed"
    )


def test_the_default_exchange_reaches_a_queue_by_its_name() -> None:
    destination = default_rules("rabbitmq").destination(Event("order.placed", topic="/billing"))
    assert (destination.exchange, destination.routing_key) == ("", "billing")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("", "is empty"),
        (None, "must be text"),
        ("events.{type", "unmatched brace"),
        ("events.type}", "unmatched brace"),
        ("events.{}", r"has \{\}"),
        ("events.{0}", r"has \{0\}"),
        ("events.{payload}", r"has \{payload\}; there can be only \{type\}, \{aggregate_type\}"),
        ("events.{type.__class__}", r"has \{type.__class__\}"),
        ("events.{type[0]}", r"has \{type\[0\]\}"),
        ("events.{type!r}", r"has \{type!r\}"),
        ("events.{type:>80}", r"has \{type:>80\}"),
        ("events.{type:{sink}}", "there can be only"),
        ("events.{{type}}", "doubled brace"),
        ("events.\n{type}", r"U\+000A"),
        ("e" * 256, "the limit is 255"),
    ],
)
def test_a_template_is_checked_when_it_is_given(template: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"template.*{complaint}"):
        TopicRules(template=template)


def test_the_other_template_cannot_ask_for_an_aggregate() -> None:
    with pytest.raises(ConfigError, match=r"without_aggregate.*can be only"):
        TopicRules(without_aggregate="{aggregate_type}")


@pytest.mark.parametrize("by_type", [{"": "x"}, {"order.placed": ""}, {"order.placed": None}, {7: "x"}, ["x"]])
def test_the_map_is_checked_when_it_is_given(by_type: Any) -> None:
    with pytest.raises(ConfigError, match="by_type"):
        TopicRules(by_type=by_type)


def test_the_map_is_ours_from_then_on() -> None:
    mine = {"order.placed": "shop"}
    rules = TopicRules(by_type=mine)
    mine["order.placed"] = ""
    assert rules.resolve(PLACED) == "shop"
    with pytest.raises(TypeError):
        rules.by_type["order.placed"] = ""  # type: ignore[index]


def test_the_function_must_be_one() -> None:
    with pytest.raises(ConfigError, match="function must be callable"):
        TopicRules(function="events")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "", 7, b"events", "a\nb", "x" * 256])
def test_a_function_that_gives_no_topic_is_an_error(given: Any) -> None:
    function: Callable[[Any], Any] = lambda _event: given  # noqa: E731
    with pytest.raises(ConfigError, match=r"topic function .*lambda.* for 'order.placed'"):
        TopicRules(function=function).resolve(PLACED)


def test_a_function_that_fails_is_an_error_with_its_cause() -> None:
    def route(event: Event[Any]) -> str:
        return str(event.headers["region"])

    with pytest.raises(ConfigError, match=r"topic function .*route failed for 'order.placed': KeyError") as failed:
        TopicRules(function=route).resolve(PLACED)
    assert isinstance(failed.value.__cause__, KeyError)
