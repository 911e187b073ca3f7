"""The life of an event: one table of moves, and nothing moves but by it.

Pure: no I/O, no state. Who wants to change an event's state asks ``move``; it answers with the move that was made or
raises ``IllegalMove``, so that nothing after it (a publish, a settle) can happen on a refusal. The database has the
same list in triggers, for those who come by SQL; a test compares the two.

``claimed`` and ``sent`` are never written into the outbox: an event is *claimed* while its lane is held and it lies in
a batch in flight, and *sent* once it has left for the archive.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec

from oncommit.errors import IllegalMove

_log: Final = logging.getLogger(__name__)


class State(StrEnum):
    """Where an event is in its life."""

    PENDING = "pending"
    OPTIMISTIC = "optimistic"
    CLAIMED = "claimed"
    SENT = "sent"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"


class By(StrEnum):
    """Who makes a move."""

    SENDER = "sender"
    """The process that wrote the event and tries to send it right after its commit."""
    RELAY = "relay"
    CLOCK = "clock"
    """Nobody: a time has come, and the event counts as moved without a write."""
    OPERATOR = "operator"


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What the guards look at. Only what the move in question needs has to be given."""

    attempts: int = 0
    """Spent so far, this one included."""
    max_attempts: int = 10
    permanent: bool = False
    """The error will be the same next time, or the event has killed its relay too often."""
    available_at: datetime | None = None
    now: datetime | None = None
    """The database's time, which ``available_at`` is compared with."""
    reason: str | None = None
    """An operator's."""


def _spent(at: Circumstances) -> bool:
    return at.permanent or at.attempts >= at.max_attempts


def _not_spent(at: Circumstances) -> bool:
    return not _spent(at)


def _due(at: Circumstances) -> bool:
    return at.available_at is not None and at.now is not None and at.now >= at.available_at


def _reasoned(at: Circumstances) -> bool:
    return bool(at.reason and at.reason.strip())


class Guard(msgspec.Struct, frozen=True):
    """A condition of a move: a pure predicate, with a name and what to say when it does not hold."""

    name: str
    holds: Callable[[Circumstances], bool]
    refusal: str


ATTEMPTS_LEFT: Final = Guard(
    "attempts left", _not_spent, "its attempts are spent or the error is permanent; it is a dead letter"
)
ATTEMPTS_SPENT: Final = Guard(
    "attempts spent", _spent, "it has attempts left and the error may pass; it has failed for now"
)
DUE: Final = Guard("due", _due, "its time has not come; give the database's time as now")
REASON_GIVEN: Final = Guard("reason given", _reasoned, "an operator has to say why")


class Move(msgspec.Struct, frozen=True):
    """One line of the table."""

    origin: State
    target: State
    by: By
    note: str
    guard: Guard | None = None


MOVES: Final[tuple[Move, ...]] = (
    Move(State.PENDING, State.OPTIMISTIC, By.SENDER, "reserved for the sender"),
    Move(State.OPTIMISTIC, State.SENT, By.SENDER, "acknowledged in time"),
    Move(State.OPTIMISTIC, State.PENDING, By.SENDER, "not sent, left to the relay"),
    Move(State.OPTIMISTIC, State.PENDING, By.CLOCK, "the reservation has lapsed", DUE),
    Move(State.PENDING, State.CLAIMED, By.RELAY, "fetched into a batch"),
    Move(State.CLAIMED, State.SENT, By.RELAY, "acknowledged"),
    Move(State.CLAIMED, State.FAILED, By.RELAY, "refused, to be tried again", ATTEMPTS_LEFT),
    Move(State.CLAIMED, State.DEAD_LETTER, By.RELAY, "refused for good", ATTEMPTS_SPENT),
    Move(State.CLAIMED, State.PENDING, By.RELAY, "lease lost, circuit opened or handed back: no attempt spent"),
    Move(State.FAILED, State.PENDING, By.CLOCK, "the back-off has passed", DUE),
    Move(State.FAILED, State.DEAD_LETTER, By.RELAY, "its attempts are spent", ATTEMPTS_SPENT),
    Move(State.PENDING, State.DEAD_LETTER, By.OPERATOR, "parked", REASON_GIVEN),
    Move(State.FAILED, State.DEAD_LETTER, By.OPERATOR, "parked", REASON_GIVEN),
    Move(State.DEAD_LETTER, State.PENDING, By.OPERATOR, "replayed", REASON_GIVEN),
)

BIRTHS: Final = (State.PENDING, State.OPTIMISTIC)
"""What an event can be inserted as."""

STORED: Final = (State.PENDING, State.OPTIMISTIC, State.FAILED, State.DEAD_LETTER)
"""What the outbox table can hold."""

_TABLE: Final[Mapping[tuple[State, State, By], Move]] = MappingProxyType(
    {(move.origin, move.target, move.by): move for move in MOVES}
)


class Change(msgspec.Struct, frozen=True):
    """A move that was made, as hooks see it."""

    event_id: UUID | None
    move: Move
    circumstances: Circumstances


Hook = Callable[[Change], None]
"""An observer. It is called after the move and cannot stop it; what it raises is logged."""


def allowed_from(state: State) -> tuple[State, ...]:
    """Where an event in this state can go, in the order of the table; nowhere from a final state."""
    known = State(state)
    return tuple(dict.fromkeys(move.target for move in MOVES if move.origin == known))


def can_move(origin: State, target: State, by: By | None = None) -> bool:
    """Whether the table has this move, by anybody or by the one named. Its guard may still refuse."""
    return any(move.origin == origin and move.target == target and by in (None, move.by) for move in MOVES)


def is_final(state: State) -> bool:
    """Whether nothing leads out of this state."""
    return not allowed_from(state)


def table_updates() -> frozenset[tuple[State, State]]:
    """The moves that can appear as an UPDATE of ``state`` in the outbox table.

    ``claimed`` is never stored, so a claim and its outcome are one update: pending→claimed→failed is pending→failed.
    """
    steps = {(move.origin, move.target) for move in MOVES}
    into_claim = {origin for origin, target in steps if target == State.CLAIMED}
    outcomes = {target for origin, target in steps if origin == State.CLAIMED}
    steps |= {(origin, target) for origin in into_claim for target in outcomes}
    return frozenset((a, b) for a, b in steps if a in STORED and b in STORED and a != b)


def move(
    origin: State,
    target: State,
    by: By,
    circumstances: Circumstances | None = None,
    *,
    event_id: UUID | None = None,
    hooks: Iterable[Hook] = (),
) -> Move:
    """Make a move, or raise ``IllegalMove``. Whatever depends on the move comes after this call."""
    circumstances = circumstances or Circumstances()
    found = _TABLE.get((origin, target, by))
    which = f"event {event_id}" if event_id else "an event"
    if found is None:
        names = ", ".join(allowed_from(origin)) or "nothing: it is final"
        raise IllegalMove(f"{which} cannot go from {origin} to {target} by the {by}; from {origin} leads: {names}")
    if found.guard is not None and not found.guard.holds(circumstances):
        guard = found.guard
        raise IllegalMove(f"{which} may not go from {origin} to {target} ({guard.name}): {guard.refusal}")
    change = Change(event_id, found, circumstances)
    for hook in hooks:
        try:
            hook(change)
        except Exception:  # noqa: BLE001 - an observer's failure is its own: the move was made
            _log.exception("a hook failed after %s went from %s to %s", which, origin, target)
    return found


# ── The picture in the documentation: python -m oncommit.states docs/concepts/states.md ──────────────

BEGIN: Final = "<!-- moves: begin -->\n"
END: Final = "<!-- moves: end -->\n"


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in BIRTHS]
    for found in MOVES:
        guard = f" [{found.guard.name}]" if found.guard else ""
        # A colon ends a Mermaid label.
        lines.append(f"    {found.origin} --> {found.target}: {found.by}, {found.note.replace(':', ',')}{guard}")
    lines += [f"    {state} --> [*]" for state in State if is_final(state)]
    return "\n".join(lines) + "\n"


def page_part() -> str:
    """What stands between the markers of the page: the diagram, and the table for those who read it as text."""
    rows = ["| from | to | by | what happened | only when |", "| --- | --- | --- | --- | --- |"]
    for found in MOVES:
        guard = found.guard.name if found.guard else ""
        rows.append(f"| `{found.origin}` | `{found.target}` | {found.by} | {found.note} | {guard} |")
    table = "\n".join(rows)
    return f"\n```mermaid\n{mermaid()}```\n\n{table}\n\n"


def refresh(page: str) -> str:
    """The page with what stands between its markers made new."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks its markers: {BEGIN.strip()} … {END.strip()}")
    return f"{head}{begin}{page_part()}{end}{tail}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.stdout.write(mermaid())
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(refresh(file.read_text(encoding="utf-8")), encoding="utf-8")
