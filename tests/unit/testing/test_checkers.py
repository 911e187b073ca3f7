"""Each checker can say no, and says yes to what is allowed."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from oncommit.ops.stats import ClaimStats, RelayStats, SinkStats, Stats
from oncommit.testing.checkers import (
    SHOWN,
    Duplicates,
    bounded_duplicates,
    drained,
    duplicates,
    in_order,
    no_loss,
    no_phantom,
)
from oncommit.testing.ledger import Entry, Outcome, Written

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def ledger(*rows: tuple[str, str | None, int, Outcome]) -> dict[str, Written]:
    return {event: Written(Entry(event, line, sequence), outcome) for event, line, sequence, outcome in rows}


THREE = ledger(("a1", "a", 1, COMMITTED), ("a2", "a", 2, COMMITTED), ("b1", "b", 1, COMMITTED))


# ── G1 ────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_sent_or_dead_is_no_loss() -> None:
    assert no_loss(THREE, delivered={"a1", "b1"}, sent=["a1", "b1"], dead={"a2"}) == []


def test_delivered_and_dead_is_a_lost_answer_and_no_loss() -> None:
    assert no_loss(THREE, delivered={"a1", "a2", "b1"}, sent=["a1", "b1"], dead={"a2"}) == []


def test_what_did_not_commit_need_not_arrive() -> None:
    written = ledger(("x", "k", 1, ABORTED), ("y", "k", 1, UNKNOWN))
    assert no_loss(written, delivered=set(), sent=[], dead=set()) == []


def test_neither_sent_nor_dead_is_a_loss() -> None:
    (fault,) = no_loss(THREE, delivered={"a1", "b1"}, sent=["a1", "b1"], dead=set())
    assert "a2 (number 2 of a) committed" in fault


def test_delivered_and_not_on_record_is_a_loss_too() -> None:
    (fault,) = no_loss(THREE, delivered={"a1", "a2", "b1"}, sent=["a1", "b1"], dead=set())
    assert "although the broker has it" in fault


def test_on_record_as_sent_and_not_at_the_broker_is_a_loss() -> None:
    (fault,) = no_loss(THREE, delivered={"a1", "b1"}, sent=["a1", "a2", "b1"], dead=set())
    assert "a2 is on record as sent, and the broker" in fault


def test_on_record_twice() -> None:
    everything = {"a1", "a2", "b1"}
    (fault,) = no_loss(THREE, delivered=everything, sent=["a1", "a2", "b1", "b1"], dead=set())
    assert "2 times" in fault
    (fault,) = no_loss(THREE, delivered=everything, sent=["a1", "a2", "b1"], dead={"b1"})
    assert "sent and as dead" in fault


# ── G2 ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_committed_or_may_have_is_no_phantom() -> None:
    assert no_phantom(ledger(("a", "k", 1, COMMITTED), ("b", "k", 2, UNKNOWN)), ["a", "b", "a"]) == []


def test_what_was_rolled_back_is_a_phantom() -> None:
    (fault,) = no_phantom(ledger(("a", "k", 1, ABORTED)), ["a", "a"])
    assert "rolled back" in fault


def test_what_nobody_wrote_is_a_phantom() -> None:
    (fault,) = no_phantom({}, ["a"])
    assert "nobody wrote it" in fault


# ── G3 ────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_in_order_each_on_its_own() -> None:
    assert in_order(THREE, ["b1", "a1", "a2"]) == []
    assert in_order(THREE, ["a1", "b1", "a2"]) == []


def test_a_duplicate_may_come_late() -> None:
    assert in_order(THREE, ["a1", "a2", "a1", "b1"]) == []


def test_gaps_are_not_its_business() -> None:
    assert in_order(ledger(("a1", "a", 1, COMMITTED), ("a9", "a", 9, COMMITTED)), ["a1", "a9"]) == []


def test_events_without_a_line_have_no_order() -> None:
    assert in_order(ledger(("a", None, 2, COMMITTED), ("b", None, 1, COMMITTED)), ["a", "b"]) == []


@pytest.mark.parametrize("order", [["a2", "a1"], ["a2", "b1", "a1"], ["a2", "a1", "a2"]])
def test_a_first_delivery_behind_a_later_one_is_out_of_order(order: list[str]) -> None:
    (fault,) = in_order(THREE, order)
    assert "a1 (number 1 of a)" in fault
    assert "after number 2 (a2), delivery 1" in fault


def test_two_with_one_number_cannot_both_have_committed() -> None:
    assert len(in_order(ledger(("x", "a", 1, COMMITTED), ("y", "a", 1, UNKNOWN)), ["x", "y"])) == 1


# ── G5 ────────────────────────────────────────────────────────────────────────────────────────────


def test_duplicates_are_counted() -> None:
    assert duplicates(["a", "b"]) == Duplicates(0, 0, 0)
    assert duplicates(["a", "b", "a", "a", "b"]) == Duplicates(3, 2, 2)


def test_duplicates_have_a_bound() -> None:
    assert bounded_duplicates(["a", "b", "a", "b"], interruptions=1, in_flight=2) == []
    (fault,) = bounded_duplicates(["a", "b", "a", "b"], interruptions=1, in_flight=1)
    assert "2 duplicates" in fault
    assert bounded_duplicates(["a", "a"], interruptions=0, in_flight=100)


# ── G7 ────────────────────────────────────────────────────────────────────────────────────────────


def stats(*sinks: SinkStats, claims: list[ClaimStats] | None = None) -> Stats:
    relay = RelayStats(
        relay_id=uuid4(), name="r", version="1", sinks=["main"], started_at=datetime.now(UTC), heartbeat_age_seconds=0.0
    )
    return Stats(sinks=list(sinks), relays=[relay], claims=claims or [], other_dead_letters={})


def test_nothing_waiting_is_drained() -> None:
    assert drained(stats(SinkStats(sink="main", dead_letters=3, delayed=2))) == []


@pytest.mark.parametrize("field", ["pending", "in_flight", "delayed_due"])
def test_something_waiting_is_not(field: str) -> None:
    (fault,) = drained(stats(SinkStats(sink="audit"), SinkStats(sink="main", **{field: 2})))  # type: ignore[arg-type]
    assert "sink main has 2" in fault


def test_a_claim_left_behind_is_not() -> None:
    left = ClaimStats(sink="main", relay_id=uuid4(), batch=1, lanes=1, rows=3, left_behind=3, age_seconds=9.0)
    assert len(drained(stats(claims=[left]))) == 1


def test_a_flood_of_faults_is_cut_short() -> None:
    found = no_phantom({}, map(str, range(100)))
    assert len(found) == SHOWN + 1
    assert found[-1] == "… and 90 more"
