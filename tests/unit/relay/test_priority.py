"""Within a batch the higher priority goes first, and every key in its order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from oncommit.relay.priority import by_priority


@dataclass(frozen=True)
class Row:
    place: int
    ordering_key: str | None
    priority: int


BATCHES = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 9)), max_size=30).map(
    lambda rows: [Row(place, key, priority) for place, (key, priority) in enumerate(rows)]
)


def urgency(row: Row, batch: list[Row]) -> int:
    """Its own, or that of whoever waits behind it."""
    behind = [
        other.priority
        for other in batch
        if other.place > row.place and row.ordering_key is not None and other.ordering_key == row.ordering_key
    ]
    return max([row.priority, *behind])


@given(BATCHES)
def test_nothing_is_lost_and_keys_keep_their_order(batch: list[Row]) -> None:
    ordered = by_priority(batch)
    assert sorted(row.place for row in ordered) == [row.place for row in batch]
    for key in "abc":
        places = [row.place for row in ordered if row.ordering_key == key]
        assert places == sorted(places)


@given(BATCHES)
def test_the_more_urgent_goes_first_and_equals_stay(batch: list[Row]) -> None:
    seen = [(-urgency(row, batch), row.place) for row in by_priority(batch)]
    assert seen == sorted(seen)


def test_one_priority_costs_nothing() -> None:
    batch = [Row(place, None, 5) for place in range(5)]
    assert by_priority(batch) is batch


def test_what_stands_before_the_urgent_one_of_its_key_goes_with_it() -> None:
    batch = [Row(0, "a", 3), Row(1, "b", 0), Row(2, "b", 5), Row(3, "b", 1)]
    assert [row.place for row in by_priority(batch)] == [1, 2, 0, 3]
