"""From moments at which batches were done to a rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Mark(NamedTuple):
    """A batch that was done."""

    at: float
    """In seconds, on whichever clock."""
    events: int


class Arrival(NamedTuple):
    """What came to the broker in a round, on the broker's clock."""

    messages: int
    first: float | None = None
    """When the first came, in seconds; nothing where the broker keeps no times."""
    last: float | None = None


class TooShort(ValueError):
    """Not enough batches to tell a rate from."""


def rate(marks: Sequence[Mark]) -> float:
    """Events a second from the end of the first batch to the end of the last.

    What the first batch needed is not in the time, so its events are not counted: starting up is not what is measured.
    Raises ``TooShort`` where there is but one.
    """
    begin, end = marks[0].at if marks else 0.0, marks[-1].at if marks else 0.0
    if end <= begin:
        raise TooShort("all was done in one batch, which tells no rate: take more events")
    return sum(mark.events for mark in marks[1:]) / (end - begin)


def arrival_rate(arrival: Arrival, marks: Sequence[Mark]) -> float:
    """Messages a second between the first and the last at the broker; by the marks where it keeps no times."""
    if arrival.first is None or arrival.last is None:
        return rate(marks)
    if arrival.last <= arrival.first:
        raise TooShort("all arrived at one moment, which tells no rate: take more events")
    return (arrival.messages - 1) / (arrival.last - arrival.first)


def typical_batch(marks: Sequence[Mark]) -> int:
    """Events a batch, as the middle event saw it: a few small ones at the end count for little."""
    return int(median([mark.events for mark in marks for _ in range(mark.events)])) if marks else 0
