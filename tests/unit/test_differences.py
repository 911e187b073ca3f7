"""What a failed ``assert_added`` tells: the nearest event, and where it differs."""

from __future__ import annotations

from typing import Any

import pytest

from oncommit import Event
from oncommit.testing.differences import Wanted, complaint, differences, matching

PLACED: Event[Any] = Event("order.placed", aggregate=("order", "1"), payload={"total": 5, "lines": [{"sku": "a"}]})
BILLED: Event[Any] = Event("order.billed", aggregate=("order", "1"), key="k", topic="t", headers={"x": "1"})


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), [PLACED, BILLED]),
        (Wanted(type="order.placed"), [PLACED]),
        (Wanted(aggregate=("order", "1")), [PLACED, BILLED]),
        (Wanted(aggregate=("order", "2")), []),
        (Wanted(payload={"lines": [{"sku": "a"}], "total": 5}), [PLACED]),
        (Wanted(payload={"total": 5}), []),
        (Wanted(payload=None), [BILLED]),
        (Wanted(key="k", topic="t", headers={"x": "1"}), [BILLED]),
        (Wanted(headers={"x": "2"}), []),
    ],
)
def test_what_is_like_it(wanted: Wanted, expected: list[Event[Any]]) -> None:
    assert matching(wanted, [PLACED, BILLED]) == expected


@pytest.mark.parametrize(
    ("payload", "lines"),
    [
        (
            {"total": 6, "lines": [{"sku": "b"}]},
            ["payload.total: expected 6, found 5", "payload.lines[0].sku: expected 'b', found 'a'"],
        ),
        ({"lines": [{"sku": "a"}]}, ["payload.total: 5 was not expected"]),
        ({"total": 5, "lines": [{"sku": "a"}], "x": None}, ["payload.x: expected None, and it is missing"]),
        ({"total": 5, "lines": []}, ["payload.lines: expected [], found [{'sku': 'a'}]"]),
        ([], ["payload: expected [], found {'total': 5, 'lines': [{'sku': 'a'}]}"]),
    ],
)  # fmt: skip
def test_differences_go_down_to_the_value(payload: object, lines: list[str]) -> None:
    assert list(differences(Wanted(payload=payload), PLACED)) == lines


@pytest.mark.parametrize(("one", "other"), [(True, 1), (0, False)])
def test_true_is_no_one(one: object, other: object) -> None:
    assert list(differences(Wanted(payload=[one]), Event("a", payload=[other])))


def test_the_message_names_the_nearest() -> None:
    events = [BILLED, PLACED, Event("order.placed", aggregate=("order", "2"))]
    said = complaint(Wanted(type="order.placed", aggregate=("order", "1"), payload={"total": 6}), 1, [], events)
    assert said.splitlines() == [
        "expected 1 event with type='order.placed', aggregate=('order', '1'), payload={'total': 6}; found 0 among 3",
        f"the nearest, order.placed of order:1 ({PLACED.id}), differs:",
        "  payload.total: expected 6, found 5",
        "  payload.lines: [{'sku': 'a'}] was not expected",
        "all that were added:",
        f"  order.billed of order:1 ({BILLED.id}) None",
        f"  order.placed of order:1 ({PLACED.id}) {{'total': 5, 'lines': [{{'sku': 'a'}}]}}",
        f"  order.placed of order:2 ({events[2].id}) None",
    ]


def test_the_message_for_too_many_and_for_none() -> None:
    said = complaint(Wanted(type="order.placed"), 0, [PLACED], [PLACED, BILLED])
    assert said.startswith("expected 0 events with type='order.placed'; found 1 among 2\nthese are like it:\n")
    assert "nothing was added" in complaint(Wanted(), None, [], [])


def test_the_message_stays_short() -> None:
    many = [Event("a", payload="x" * 10_000) for _ in range(500)]
    said = complaint(Wanted(type="b", payload="y" * 10_000), 1, [], many)
    assert len(said) < 10_000
    assert "and 480 more" in said
