"""Were the promises kept? From the ledger, and from what the broker and the database have, to a list of faults.

Pure. Each checker answers for one guarantee of the design (G1, G2 …), takes plain ids and returns sentences, of which
an empty list is the good news. They say no more than ``SHOWN`` times the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from oncommit.ops.stats import Stats
from oncommit.testing.ledger import Outcome, Written

SHOWN: Final = 10

Ledger = Mapping[str, Written]


class Duplicates(msgspec.Struct, frozen=True):
    """Deliveries beyond the first of each event."""

    total: int
    events: int
    most: int
    """Of one event."""


def no_loss(ledger: Ledger, *, delivered: Collection[str], sent: Collection[str], dead: Collection[str]) -> list[str]:
    """G1: what committed is on record as sent or dead, not both, and the broker has what is on record as sent.

    Args:
        ledger: What the writers know.
        delivered: What the broker has.
        sent: What the archive has.
        dead: What is among the dead letters.
    """
    faults = [
        f"G1: {_name(written)} committed, and is neither sent nor dead"
        + (", although the broker has it" if event in delivered else "")
        for event, written in ledger.items()
        if written.outcome is Outcome.COMMITTED and event not in sent and event not in dead
    ]
    faults += [
        f"G1: {event} is on record as sent, and the broker does not have it" for event in sent if event not in delivered
    ]
    faults += [f"G1: {event} is on record as sent and as dead" for event in sent if event in dead]
    faults += [f"G1: {event} is on record as sent {count} times" for event, count in Counter(sent).items() if count > 1]
    return _few(faults)


def no_phantom(ledger: Ledger, delivered: Iterable[str]) -> list[str]:
    """G2: nothing was delivered whose transaction did not commit, or that nobody wrote."""
    faults: list[str] = []
    for event in dict.fromkeys(delivered):
        if event not in ledger:
            faults.append(f"G2: {event} was delivered, and nobody wrote it")
        elif ledger[event].outcome is Outcome.ABORTED:
            faults.append(f"G2: {_name(ledger[event])} was delivered, and its transaction was rolled back")
    return _few(faults)


def in_order(ledger: Ledger, delivered: Iterable[str]) -> list[str]:
    """G3: the first deliveries of each line come in the order in which they were written.

    Args:
        ledger: What the writers know.
        delivered: In the order in which the broker took them.
    """
    latest: dict[str, tuple[int, str, int]] = {}
    faults: list[str] = []
    for place, event in _firsts(delivered):
        written = ledger.get(event)
        if written is None or written.entry.line is None:
            continue
        line, sequence = written.entry.line, written.entry.sequence
        highest, other, before = latest.get(line, (-1, "", 0))
        if sequence <= highest:
            faults.append(
                f"G3: {_name(written)}, delivery {place}, came after number {highest} ({other}), delivery {before}"
            )
        else:
            latest[line] = (sequence, event, place)
    return _few(faults)


def duplicates(delivered: Iterable[str]) -> Duplicates:
    """G5: how much came more than once."""
    repeated = [count - 1 for count in Counter(delivered).values() if count > 1]
    return Duplicates(sum(repeated), len(repeated), max(repeated, default=0))


def bounded_duplicates(delivered: Iterable[str], *, interruptions: int, in_flight: int) -> list[str]:
    """G5: at most what was in flight came again, once an interruption (a crash, a lost lease, a lost answer)."""
    found = duplicates(delivered)
    if found.total <= interruptions * in_flight:
        return []
    return [f"G5: {found.total} duplicates of {found.events} events, from {interruptions} interruptions at {in_flight}"]


def drained(stats: Stats) -> list[str]:
    """G7: nothing waits, nothing is in flight, nothing was left behind."""
    faults: list[str] = []
    for sink in stats.sinks:
        faults += [
            f"G7: sink {sink.sink} has {count} {what}"
            for what, count in (("pending", sink.pending), ("in flight", sink.in_flight), ("due", sink.delayed_due))
            if count
        ]
    faults += [f"G7: a claim of {claim.rows} rows was left behind" for claim in stats.claims if claim.left_behind]
    return faults


def _firsts(delivered: Iterable[str]) -> Iterable[tuple[int, str]]:
    seen: set[str] = set()
    for place, event in enumerate(delivered, start=1):
        if event not in seen:
            seen.add(event)
            yield place, event


def _name(written: Written) -> str:
    entry = written.entry
    return f"{entry.event} (number {entry.sequence} of {entry.line})" if entry.line else entry.event


def _few(faults: Sequence[str]) -> list[str]:
    if len(faults) <= SHOWN:
        return list(faults)
    return [*faults[:SHOWN], f"… and {len(faults) - SHOWN} more"]
