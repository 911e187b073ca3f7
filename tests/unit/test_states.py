"""The table of moves against L1, its guards and its hooks."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from oncommit import states
from oncommit.errors import IllegalMove
from oncommit.states import By, Change, Circumstances, State, allowed_from, can_move, move

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "states.md"

# L1 in its own words, written down a second time on purpose.
LEGAL = {
    ("pending", "optimistic", "sender"),
    ("optimistic", "sent", "sender"),
    ("optimistic", "pending", "sender"),
    ("optimistic", "pending", "clock"),
    ("pending", "claimed", "relay"),
    ("claimed", "sent", "relay"),
    ("claimed", "failed", "relay"),
    ("claimed", "dead_letter", "relay"),
    ("claimed", "pending", "relay"),
    ("failed", "pending", "clock"),
    ("failed", "dead_letter", "relay"),
    ("pending", "dead_letter", "operator"),
    ("failed", "dead_letter", "operator"),
    ("dead_letter", "pending", "operator"),
}

# Circumstances under which each guard holds, and under which it does not.
HOLDS = {
    "attempts left": Circumstances(attempts=9, max_attempts=10),
    "attempts spent": Circumstances(attempts=10, max_attempts=10),
    "due": Circumstances(available_at=NOON, now=NOON),
    "reason given": Circumstances(reason="the topic was wrong"),
}
REFUSES = {
    "attempts left": [Circumstances(attempts=10, max_attempts=10), Circumstances(attempts=1, permanent=True)],
    "attempts spent": [Circumstances(attempts=9, max_attempts=10)],
    "due": [
        Circumstances(available_at=NOON, now=NOON - timedelta(microseconds=1)),
        Circumstances(now=NOON),
        Circumstances(available_at=NOON),
    ],
    "reason given": [Circumstances(), Circumstances(reason=""), Circumstances(reason=" \n")],
}


def guarded(guard: states.Guard | None) -> Circumstances:
    return HOLDS[guard.name] if guard else Circumstances()


def test_the_states_are_those_of_the_specification() -> None:
    assert [str(state) for state in State] == ["pending", "optimistic", "claimed", "sent", "failed", "dead_letter"]


@pytest.mark.parametrize(("origin", "target", "by"), [*product(State, State, By)])
def test_each_move_is_there_exactly_if_the_specification_has_it(origin: State, target: State, by: By) -> None:
    legal = (str(origin), str(target), str(by)) in LEGAL
    assert can_move(origin, target, by) is legal
    if legal:
        (line,) = [line for line in states.MOVES if (line.origin, line.target, line.by) == (origin, target, by)]
        assert move(origin, target, by, guarded(line.guard)) is line
    else:
        for circumstances in [Circumstances(), *HOLDS.values()]:
            with pytest.raises(IllegalMove, match=f"cannot go from {origin} to {target} by the {by}"):
                move(origin, target, by, circumstances)


def test_no_line_stands_twice() -> None:
    assert len({(line.origin, line.target, line.by) for line in states.MOVES}) == len(states.MOVES)


def test_can_move_without_a_name_means_anybody() -> None:
    assert can_move(State.PENDING, State.DEAD_LETTER)
    assert not can_move(State.PENDING, State.SENT)


def test_sent_is_final_and_nothing_else_is() -> None:
    assert [state for state in State if states.is_final(state)] == [State.SENT]
    assert allowed_from(State.SENT) == ()
    assert not any(line.origin == State.SENT for line in states.MOVES)
    with pytest.raises(IllegalMove, match="from sent leads: nothing: it is final"):
        move(State.SENT, State.PENDING, By.OPERATOR, Circumstances(reason="again"))


def test_allowed_from() -> None:
    assert set(allowed_from(State.CLAIMED)) == {State.SENT, State.FAILED, State.DEAD_LETTER, State.PENDING}
    assert allowed_from(State.DEAD_LETTER) == (State.PENDING,)
    with pytest.raises(ValueError, match="limbo"):
        allowed_from("limbo")  # type: ignore[arg-type]


def test_every_state_can_be_reached_and_can_end() -> None:
    reached = set(states.BIRTHS)
    for _ in State:
        reached |= {target for state in reached for target in allowed_from(state)}
    assert reached == set(State)
    for state in State:
        ends = {state}
        for _ in State:
            ends |= {target for end in ends for target in allowed_from(end)}
        assert State.SENT in ends, state


def test_every_move_of_an_operator_and_of_the_clock_is_guarded() -> None:
    for line in states.MOVES:
        if line.by == By.OPERATOR:
            assert line.guard is states.REASON_GIVEN
        if line.by == By.CLOCK:
            assert line.guard is states.DUE


@pytest.mark.parametrize(
    "line", [line for line in states.MOVES if line.guard], ids=lambda line: f"{line.origin}-{line.target}-{line.by}"
)
def test_a_guard_that_does_not_hold_blocks(line: states.Move) -> None:
    assert line.guard is not None
    called: list[Change] = []
    for circumstances in REFUSES[line.guard.name]:
        with pytest.raises(IllegalMove, match=line.guard.name) as refused:
            move(line.origin, line.target, line.by, circumstances, hooks=[called.append])
        assert line.guard.refusal in str(refused.value)
    assert called == []


def test_without_circumstances_the_guards_refuse() -> None:
    with pytest.raises(IllegalMove, match="due"):
        move(State.FAILED, State.PENDING, By.CLOCK)
    with pytest.raises(IllegalMove, match="reason given"):
        move(State.DEAD_LETTER, State.PENDING, By.OPERATOR)


def test_a_refusal_comes_before_whatever_follows() -> None:
    published: list[str] = []

    def publish_claimed(state: State) -> None:
        move(state, State.CLAIMED, By.RELAY)
        published.append("sent it")

    for state in State:
        if state != State.PENDING:
            with pytest.raises(IllegalMove):
                publish_claimed(state)
    assert published == []
    publish_claimed(State.PENDING)
    assert published == ["sent it"]


def test_hooks_see_the_move_in_their_order() -> None:
    seen: list[tuple[str, Change]] = []
    event_id, circumstances = uuid4(), Circumstances(attempts=1)
    made = move(
        State.CLAIMED,
        State.FAILED,
        By.RELAY,
        circumstances,
        event_id=event_id,
        hooks=[lambda change: seen.append(("first", change)), lambda change: seen.append(("second", change))],
    )
    change = Change(event_id, made, circumstances)
    assert seen == [("first", change), ("second", change)]


def test_a_hook_that_fails_is_logged_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Change) -> None:
        raise RuntimeError("the metrics server is away")

    seen: list[Change] = []
    with caplog.at_level(logging.ERROR, logger="oncommit.states"):
        made = move(State.PENDING, State.CLAIMED, By.RELAY, hooks=[broken, seen.append])
    assert made.target == State.CLAIMED
    assert len(seen) == 1
    assert "a hook failed after an event went from pending to claimed" in caplog.text
    assert "the metrics server is away" in caplog.text


def test_hooks_are_not_called_for_a_move_that_is_not_there() -> None:
    seen: list[Change] = []
    with pytest.raises(IllegalMove):
        move(State.SENT, State.CLAIMED, By.RELAY, hooks=[seen.append])
    assert seen == []


def test_the_table_cannot_be_changed() -> None:
    assert isinstance(states.MOVES, tuple)
    with pytest.raises(AttributeError):
        states.MOVES[0].target = State.SENT  # type: ignore[misc]
    with pytest.raises(TypeError):
        states._TABLE[State.SENT, State.PENDING, By.RELAY] = states.MOVES[0]  # type: ignore[index]


def test_claimed_and_sent_are_never_stored() -> None:
    assert set(State) - set(states.STORED) == {State.CLAIMED, State.SENT}
    assert set(states.BIRTHS) <= set(states.STORED)
    assert {(str(a), str(b)) for a, b in states.table_updates()} == {
        ("pending", "optimistic"),
        ("optimistic", "pending"),
        ("pending", "failed"),
        ("pending", "dead_letter"),
        ("failed", "pending"),
        ("failed", "dead_letter"),
        ("dead_letter", "pending"),
    }


def test_the_diagram_has_every_line_of_the_table() -> None:
    arrows = [line.strip() for line in states.mermaid().splitlines()[1:]]
    assert len(arrows) == len(states.BIRTHS) + len(states.MOVES) + 1
    for line in states.MOVES:
        assert any(arrow.startswith(f"{line.origin} --> {line.target}: {line.by}, ") for arrow in arrows)
    assert "sent --> [*]" in arrows
    # Mermaid ends a label at a second colon or at a semicolon.
    assert all(arrow.count(":") <= 1 and ";" not in arrow for arrow in arrows)


def test_the_page_shows_the_table_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == states.refresh(page), "run: python -m oncommit.states docs/concepts/states.md"


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="lacks its markers"):
        states.refresh("# A page\n")
