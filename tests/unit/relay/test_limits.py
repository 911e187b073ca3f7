"""How much is read at once: within both limits, also before anything is known, and shared by who has a backlog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.relay.limits import IDLE, Limits
from oncommit.relay.share import is_urgent

LANES = list(range(72))
MEGABYTE = 1024 * 1024


def drained(limits: Limits, sizes: dict[int, list[int]]) -> list[int]:
    """Read everything; what was unpacked each time for it."""
    unpacked: list[int] = []
    while any(sizes.values()):
        asked = limits.ask(LANES)
        shown = {lane: sizes[lane][:most] for lane, most in asked.items() if sizes.get(lane)}
        unpacked.append(sum(map(sum, shown.values())))
        counts: dict[int, int] = {}
        taken = 0
        for nth in range(max(map(len, shown.values()), default=0)):  # row by row of each lane, as fetch.sql cuts
            for lane, rows in shown.items():
                if nth < len(rows) and taken <= limits.budget:
                    taken += rows[nth]
                    counts[lane] = counts.get(lane, 0) + 1
        for lane, count in counts.items():
            del sizes[lane][:count]
        limits.found(asked, counts, taken, cut=sum(counts.values()) < sum(map(len, shown.values())))
        assert len(unpacked) < 100_000
    return unpacked


def test_a_first_read_of_large_rows_is_small() -> None:
    limits = Limits(rows=5000, budget=8 * MEGABYTE)
    assert max(drained(limits, {lane: [MEGABYTE] * 20 for lane in LANES})) <= 128 * MEGABYTE


def test_large_rows_are_asked_for_about_as_many_as_fit() -> None:
    limits = Limits(rows=5000, budget=8 * MEGABYTE)
    unpacked = drained(limits, {lane: [MEGABYTE] * 20 for lane in LANES})
    assert max(unpacked[1:]) <= 8 * MEGABYTE


def test_small_rows_soon_fill_a_batch() -> None:
    limits = Limits(rows=5000, budget=8 * MEGABYTE)
    unpacked = drained(limits, {lane: [500] * 1000 for lane in LANES[:64]})
    assert max(unpacked) <= 5000 * 500
    assert len(unpacked) <= 64 * 1000 / 5000 + 6


def test_one_busy_lane_may_have_nearly_all() -> None:
    limits = Limits(rows=5000, budget=8 * MEGABYTE)
    drained(limits, {lane: [500] for lane in LANES})
    unpacked = drained(limits, {7: [500] * 50_000})
    assert len(unpacked) <= 50_000 / 5000 + 3


def test_every_lane_gets_its_turn_when_only_a_few_rows_fit() -> None:
    limits = Limits(rows=5, budget=8 * MEGABYTE)
    seen: set[int] = set()
    for _ in range(64):  # of five rows, one is for the 64 lanes that are not urgent
        asked = limits.ask(LANES)
        limits.found(asked, dict.fromkeys(asked, 1), 500 * len(asked), cut=False)
        seen |= asked.keys()
    assert seen == set(LANES)


@given(
    rows=st.integers(1, 6000),
    lanes=st.integers(1, 72),
    reads=st.lists(st.tuples(st.integers(0, 200), st.integers(200, 2_000_000)), max_size=20),
)
def test_what_is_asked_for_stays_within_the_rows(rows: int, lanes: int, reads: list[tuple[int, int]]) -> None:
    limits = Limits(rows=rows, budget=8 * MEGABYTE)
    for count, size in reads:
        asked = limits.ask(LANES[:lanes])
        assert asked
        assert all(most >= 1 for most in asked.values())
        assert sum(asked.values()) <= rows + lanes * IDLE
        counts = {lane: min(count, most) for lane, most in asked.items()}
        limits.found(asked, counts, sum(counts.values()) * size, cut=False)


@given(rows=st.integers(1, 3000), large=st.booleans())
def test_a_flood_of_either_kind_leaves_the_other_its_share(rows: int, large: bool) -> None:
    """Four reads on end, with a backlog in every lane: three quarters for the urgent ones, a quarter for the rest."""
    size = 8 * MEGABYTE // rows if large else 100
    limits = Limits(rows=rows, budget=8 * MEGABYTE, guess=size)
    urgent = rest = 0
    for _ in range(4):
        asked = limits.ask(LANES)
        limits.found(asked, asked, sum(asked.values()) * size, cut=False)
        urgent += sum(most for lane, most in asked.items() if is_urgent(lane))
        rest += sum(most for lane, most in asked.items() if not is_urgent(lane))
    assert rest >= (urgent + rest) // 8
    assert urgent >= (urgent + rest) // 2


@pytest.mark.parametrize("rows", [1, 3, 100, 2000])
def test_what_is_urgent_is_read_at_once_behind_any_backlog(rows: int) -> None:
    limits = Limits(rows=rows, budget=8 * MEGABYTE, guess=100)
    for _ in range(20):
        asked = limits.ask(LANES)
        limits.found(asked, {lane: most for lane, most in asked.items() if not is_urgent(lane)}, 100, cut=False)
    reads = [limits.ask(LANES) for _ in range(8)]
    assert {lane for asked in reads for lane in asked if is_urgent(lane)} == set(LANES[64:])
    assert all(any(is_urgent(lane) for lane in asked) for asked in reads)
    whole = rows // 64 * 64 or rows  # the same for each lane
    assert all(sum(most for lane, most in asked.items() if not is_urgent(lane)) == whole for asked in reads)
