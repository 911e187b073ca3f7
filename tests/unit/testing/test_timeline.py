"""What rates are told from."""

from __future__ import annotations

import pytest

from oncommit.errors import ConfigError
from oncommit.testing.bench.relay.plan import Plan, fitting_events
from oncommit.testing.bench.relay.results import compared
from oncommit.testing.bench.relay.rounds import in_rotation
from oncommit.testing.bench.relay.timeline import Arrival, Mark, TooShort, arrival_rate, rate, typical_batch


def test_the_first_batch_is_neither_in_the_events_nor_in_the_time() -> None:
    assert rate([Mark(10.0, 5000), Mark(11.0, 100), Mark(12.0, 300)]) == 200


@pytest.mark.parametrize("marks", [[], [Mark(1.0, 10)], [Mark(1.0, 10), Mark(1.0, 10)]])
def test_one_moment_tells_no_rate(marks: list[Mark]) -> None:
    with pytest.raises(TooShort):
        rate(marks)


def test_the_brokers_own_times_count_where_it_keeps_some() -> None:
    marks = [Mark(0.0, 1), Mark(1.0, 9)]
    assert arrival_rate(Arrival(101, 5.0, 7.0), marks) == 50
    assert arrival_rate(Arrival(10), marks) == 9
    with pytest.raises(TooShort):
        arrival_rate(Arrival(10, 5.0, 5.0), marks)


def test_the_typical_batch_is_that_of_the_middle_event() -> None:
    assert typical_batch([Mark(1, 2000), Mark(2, 2000), Mark(3, 1), Mark(4, 1), Mark(5, 1)]) == 2000


def test_sides_take_turns_in_going_first() -> None:
    assert [side for _, side in in_rotation(("a", "b", "c"), 3)] == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


def test_a_ratio_is_of_pairs_and_not_of_medians() -> None:
    assert compared([100, 50, 10], [90, 50, 8]) == (0.9, (0.8, 1.0))


def test_sides_follow_from_conditions() -> None:
    assert Plan(broker="nats").going == ("direct", "adapter", "database", "relay", "reference")
    assert Plan(broker="nats", relays=2, delayed=5).going == ("plain", "relay")
    assert Plan(broker="nats", sides=("relay", "direct")).going == ("direct", "relay")
    assert Plan(broker="nats", waiting=7, open_transaction=True).conditions == ["7 waiting", "a transaction left open"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"sides": ("plain",)}, "the sides of this run"),
        ({"keys": "many"}, "keys are"),
        ({"payload": 20}, "300 bytes or more"),
        ({"payload": 1_000_000}, "--events 200"),
    ],
)
def test_a_plan_is_checked(told: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(broker="nats", **told)  # type: ignore[arg-type]


def test_large_payloads_are_fewer() -> None:
    assert fitting_events(300) == 100_000
    assert fitting_events(1_000_000) == 200
