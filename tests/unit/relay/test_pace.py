"""How rarely a relay may look: pure, with times that the test gives."""

from __future__ import annotations

import pytest

from oncommit.relay.pace import DISTRUST, GRACE, Pace
from oncommit.relay.wake_list import read_entry, write_entry


def test_the_pause_grows_with_the_silence() -> None:
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    pauses = [pace.pause(now, listening=False) for now in (0.0, 0.2, 2.0, 5.0, 60.0)]
    assert pauses == pytest.approx([0.05, 0.05, 0.2, 0.5, 1.0])
    pace.found(60.0)
    assert pace.pause(60.0, listening=False) == 0.05


def told(pace: Pace, now: float) -> None:
    pace.woke(now)
    pace.found(now)


def untold(pace: Pace, now: float) -> None:
    pace.waited()
    pace.found(now)


def test_wake_ups_are_trusted_once_they_were_seen_to_work() -> None:
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    assert pace.pause(0.0, listening=True) == 0.05  # nobody has told of anything yet
    told(pace, 1.0)
    assert pace.pause(1.0, listening=True) == 5.0
    assert pace.pause(1.0, listening=False) == 0.05  # who should tell?


def test_how_long_a_wake_up_took() -> None:
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    pace.woke(1.0)
    assert pace.found(1.25) == 0.25
    assert pace.found(1.5) is None
    pace.waited()
    assert pace.found(9.0) is None


def test_a_writer_who_tells_nothing_is_not_left_waiting_again() -> None:
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    told(pace, 1.0)
    untold(pace, 6.0)
    assert pace.pause(6.0, listening=True) == 0.05
    assert pace.pause(6.0 + GRACE, listening=True) == 0.05
    told(pace, 10.0)
    assert pace.pause(10.0, listening=True) == 0.05
    told(pace, 6.0 + DISTRUST)
    assert pace.pause(6.0 + DISTRUST, listening=True) == 5.0


def test_a_wake_up_that_was_only_late_is_trusted() -> None:
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    untold(pace, 6.0)
    pace.woke(6.01)
    assert pace.pause(6.02, listening=True) == 5.0


def test_what_follows_without_a_pause_says_nothing() -> None:
    """Nor does a row that was due, or one found behind another."""
    pace = Pace(0.05, 1.0, 5.0, 0.0)
    told(pace, 1.0)
    pace.found(1.1)
    pace.found(9.0)
    assert pace.pause(9.0, listening=True) == 5.0


@pytest.mark.parametrize(
    ("entry", "read"),
    [
        (b"", ([], None)),
        (b"main audit", (["main", "audit"], None)),
        (b"main\n2", (["main"], 2)),
        (b"\n0", ([], 0)),
        (b"main\nmany", (["main"], None)),
        (b"main\n99999", (["main"], None)),
        (b"main\n9999", (["main"], 1000)),
        (b"\xff" * 5000, ([], 0)),
    ],
)
def test_entries_of_the_list_may_be_anybodys(entry: bytes, read: object) -> None:
    assert read_entry(entry) == read


def test_an_entry_is_passed_on_so_often() -> None:
    assert read_entry(write_entry(["main", "audit"], 3)) == (["main", "audit"], 3)
