"""Share, lease, circuit, outcomes, late commits, suspects: each alone."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.brokers.circuit import Circuit
from oncommit.brokers.row import FetchedRow
from oncommit.errors import (
    BrokerUnavailable,
    ConfigError,
    NotAttempted,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)
from oncommit.relay.lane import Lane
from oncommit.relay.late import LateCommits
from oncommit.relay.lease import Lease
from oncommit.relay.outcomes import MAX_ERROR, error_text, judge
from oncommit.relay.settings import RelaySettings
from oncommit.relay.share import ALL_LANES, LANES, fair_share
from oncommit.relay.store import LeftClaim
from oncommit.relay.suspects import WHOLE, in_turn, next_stretch
from oncommit.retry import Backoff, RetryPolicy


def row(place: int = 1, headers: str = "{}", attempts: int = 0, max_attempts: int | None = None) -> FetchedRow:
    return FetchedRow(
        "main", 0, 1, place, UUID(int=place), "t",
        None, None, None, "application/json", None, None, None,
        1, 5, attempts, 0, max_attempts,
        datetime(2026, 1, 1, tzinfo=UTC), "k", 0.0, headers, b"{}", True, 10,
    )  # fmt: skip


def longest(_low: float, high: float) -> float:
    return high


# ── Share ─────────────────────────────────────────────────────────────────────────────────────────


@given(relays=st.integers(1, 80))
def test_everybody_s_share_together_covers_all_lanes_and_nobody_has_to_give_what_was_taken(relays: int) -> None:
    share = fair_share((), relays)
    assert share.take * relays >= LANES
    assert share.take_urgent * relays >= ALL_LANES - LANES
    taken = [*range(share.take), *range(LANES, LANES + share.take_urgent)]
    again = fair_share(taken, relays)
    assert (again.take, again.take_urgent, again.give_back) == (0, 0, ())


@given(owned=st.sets(st.integers(0, ALL_LANES - 1)), relays=st.integers(1, 80))
def test_what_is_given_back_is_owned_and_the_rest_is_within_the_share(owned: set[int], relays: int) -> None:
    share = fair_share(owned, relays)
    assert set(share.give_back) <= owned
    kept = owned - set(share.give_back)
    assert sum(lane < LANES for lane in kept) <= -(-LANES // relays)


# ── Lease ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_counts_from_the_sending() -> None:
    clock = [100.0]
    lease = Lease(10.0, clock=lambda: clock[0])
    assert not lease.is_ours
    sent = lease.sending()
    clock[0] += 4.0  # the answer takes its time
    lease.renewed(sent)
    assert lease.left == 6.0
    clock[0] += 6.0
    assert not lease.is_ours


def test_an_old_answer_shortens_nothing_and_a_lost_row_ends_it() -> None:
    lease = Lease(10.0, clock=lambda: 100.0)
    lease.renewed(100.0)
    lease.renewed(95.0)
    assert lease.left == 10.0
    lease.lost()
    assert not lease.is_ours
    lease.renewed(100.0)
    assert lease.term == 1, "who began before it can tell"


# ── Circuit ───────────────────────────────────────────────────────────────────────────────────────


def test_a_circuit_opens_longer_each_time_and_closes_at_once() -> None:
    circuit = Circuit(Backoff(base=1.0, cap=4.0), longest)
    waits = []
    for _ in range(4):
        circuit.failed(0.0, "gone")
        waits.append(circuit.wait(0.0))
    assert waits == [1.0, 2.0, 4.0, 4.0]
    assert circuit.is_open
    assert circuit.wait(4.0) == 0.0
    circuit.worked()
    assert not circuit.is_open
    assert circuit.wait(0.0) == 0.0


# ── Outcomes ──────────────────────────────────────────────────────────────────────────────────────


def test_outcomes_are_sorted_by_what_follows() -> None:
    rows = [row(n) for n in range(1, 7)] + [row(7, attempts=1)]
    outcomes = [
        None, NotAttempted("x"), BrokerUnavailable("x"), TopicUnavailable("x"), PublishRejected("x"),
        PublishFailed("x"), PublishFailed("x"),
    ]  # fmt: skip
    policy = RetryPolicy(max_attempts=2, backoff=Backoff(base=3.0, cap=9.0))
    published = [(one, "t", outcome) for one, outcome in zip(rows, outcomes, strict=True)]
    verdict = judge(published, lambda _type: policy, longest)
    assert [one.place for one in verdict.sent] == [1]
    assert [one.place for one in verdict.waiting] == [2]
    assert [one.place for one in verdict.unavailable] == [3]
    assert {topic: [one.place for one in found] for topic, found in verdict.topics.items()} == {"t": [4]}
    assert [(one.place, burial.reason) for one, burial in verdict.burials] == [(5, "permanent"), (7, "exhausted")]
    assert [(one.place, failure.attempts, failure.delay) for one, failure in verdict.failures] == [(6, 0, 3.0)]


def test_the_event_s_own_limit_goes_before_the_policy_s() -> None:
    published = [(row(max_attempts=1), "t", PublishFailed("x"))]
    assert judge(published, lambda _type: RetryPolicy(), longest).burials


def test_what_is_written_of_an_error_is_bounded_and_can_be_stored() -> None:
    text = error_text(PublishFailed("a\0b\ud800" + "x" * 5000))
    assert len(text) <= MAX_ERROR
    assert "\0" not in text
    text.encode()


@pytest.mark.parametrize("headers", ['{"a": 1e999}', '{"a": "\\ud800"}', "[1]", '{"a":' * 5000 + "1" + "}" * 5000])
def test_headers_that_cannot_be_read_are_a_problem_of_their_row_alone(headers: str) -> None:
    assert row(headers=headers).problem


# ── Late commits ──────────────────────────────────────────────────────────────────────────────────


def test_a_region_is_read_again_when_a_holder_has_left_and_only_then() -> None:
    late = LateCommits()
    assert late.look(10, ["3/1", "3/2"]) == []
    late.was_read()
    assert (late.sure, late.noted) == (0, 10)
    assert late.look(10, ["3/1", "3/2", "3/3"]) == []
    assert late.look(10, ["3/1"]) == [(0, 10)]
    assert late.look(10, ["3/1"]) == [(0, 10)], "until it has been read"
    late.was_read()
    assert late.look(10, ["3/1"]) == []
    assert late.look(12, []) == [(0, 10)]
    late.was_read()
    assert late.is_quiet
    assert late.sure == 12


def test_neighbours_that_wait_for_the_same_become_one() -> None:
    late = LateCommits()
    for value in range(1, 100):
        late.look(value, ["idle"])
        late.was_read()
    assert late._regions[0].low == 0
    assert len(late._regions) == 1


def test_a_prepared_holder_takes_the_place_of_who_has_left() -> None:
    late = LateCommits()
    late.look(10, ["3/1"])
    late.was_read()
    assert late.look(10, ["-1/9"]) == [(0, 10)]
    late.was_read()
    assert not late.is_quiet
    assert late.look(10, []) == [(0, 10)]
    late.was_read()
    assert late.is_quiet


def test_a_holder_that_shows_under_both_names_once_is_not_lost() -> None:
    late = LateCommits()
    late.look(10, ["3/1"])
    late.was_read()
    late.look(10, ["3/1", "-1/9"])
    late.was_read()
    late.look(10, ["-1/9"])
    late.was_read()
    assert not late.is_quiet, "it can still commit"


# ── Suspects ──────────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_claim_of_suspects_comes_first_so_that_they_become_fewer() -> None:
    whole, half, quarter = LeftClaim(0, 1, 31, 31, False), LeftClaim(0, 1, 15, 15, True), LeftClaim(0, 1, 7, 7, True)
    assert in_turn([whole, half, quarter]) == [quarter, half, whole]
    sizes = []
    claims = [LeftClaim(0, 1, 1000, 1000, False)]
    while not (claims[-1].alone and claims[-1].rows == 1):
        lane = Lane(0, 1, 0, most_blocked=10)
        lane.suspects = in_turn(claims)
        stretch = next_stretch(lane)
        assert stretch is not None
        sizes.append(stretch[1])
        claims.append(LeftClaim(0, 1, stretch[1], stretch[1], stretch[2]))  # and that kills us again
    assert sizes == [500, 250, 125, 62, 31, 15, 7, 3, 1]


def test_what_lies_below_the_suspects_is_read_first_and_is_not_suspected() -> None:
    lane = Lane(0, 1, 0, most_blocked=10)
    lane.suspects = in_turn([LeftClaim(0, 11, 20, 10, False)])
    assert next_stretch(lane) == (10, WHOLE, False)
    lane.order.floor = 10
    assert next_stretch(lane) == (20, 5, True)
    lane.order.floor = 20
    assert next_stretch(lane) is None
    assert lane.suspects == []


# ── Settings ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"lease": 0.0}, "lease"), ({"statement_timeout": 10.0}, "lease"), ({"poll_busy": 2.0}, "poll_idle"),
     ({"batch_rows": 0}, "batch_rows")],
)  # fmt: skip
def test_settings_that_cannot_be_say_which(changes: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        RelaySettings(**changes)
