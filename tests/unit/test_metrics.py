"""Counters and histograms in memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.metrics import (
    ATTEMPTS,
    CLAIMED,
    DEFINITIONS,
    DELAY,
    DELAYS,
    MOST_VALUES,
    OTHER,
    PUBLISH_SECONDS,
    PUBLISHED,
    Metrics,
)


def test_counters_count_by_label() -> None:
    metrics = Metrics()
    metrics.add(CLAIMED, 7)
    metrics.add(PUBLISHED, 2, "a")
    metrics.add(PUBLISHED, 3, "b")
    metrics.add(PUBLISHED, 4, "a")
    found = metrics.snapshot()
    assert found[CLAIMED.name][()].value == 7
    assert {labels: series.value for labels, series in found[PUBLISHED.name].items()} == {("a",): 6, ("b",): 3}


@given(st.lists(st.floats(0, 5000)))
def test_many_at_once_fall_into_the_buckets_of_each_alone(values: list[float]) -> None:
    once, alone = Metrics(), Metrics()
    once.observe_all(DELAY, values)
    for value in values:
        alone.observe(DELAY, value)
    if values:
        found, wanted = once.snapshot()[DELAY.name][()], alone.snapshot()[DELAY.name][()]
        assert found.counts == wanted.counts
        assert found.count == len(values)
        assert found.value == pytest.approx(wanted.value)


def test_a_value_on_the_edge_belongs_below_it_and_one_above_all_has_a_bucket() -> None:
    metrics = Metrics()
    metrics.observe(DELAY, DELAYS[0], 3)
    metrics.observe_all(DELAY, [DELAYS[0], 1e9])
    counts = metrics.snapshot()[DELAY.name][()].counts
    assert (counts[0], counts[-1]) == (4, 1)


def test_types_that_anybody_may_write_do_not_fill_the_memory() -> None:
    metrics = Metrics()
    for number in range(MOST_VALUES + 50):
        metrics.observe(PUBLISH_SECONDS, 0.1, 1, f"t{number}")
    metrics.observe(PUBLISH_SECONDS, 0.1, 1, "t0")
    found = metrics.snapshot()[PUBLISH_SECONDS.name]
    assert len(found) == MOST_VALUES + 1
    assert found[OTHER,].count == 50
    assert found["t0",].count == 2


def test_a_snapshot_stays_as_it_is() -> None:
    metrics = Metrics()
    metrics.observe(DELAY, 1.0)
    before = metrics.snapshot()
    metrics.observe(DELAY, 1.0)
    assert before[DELAY.name][()].count == 1


def test_labels_are_those_of_the_definition() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Metrics().add(ATTEMPTS, 1)
    for name, definition in DEFINITIONS.items():
        assert name == definition.name
        assert name.endswith("_total") != bool(definition.buckets)


def test_the_guide_has_every_metric() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/telemetry.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.*) \|$", guide, re.MULTILINE)
    assert told == [
        (name, ", ".join(f"`{label}`" for label in one.labels), one.help) if one.labels else (name, "", one.help)
        for name, one in DEFINITIONS.items()
    ]
