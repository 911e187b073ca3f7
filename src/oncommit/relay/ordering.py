"""Which of the fetched rows may go now. Pure: rows, what is known of the lane, and the time; out comes a decision.

The rules O-block and O-outcome of the protocol live here. One ``LaneOrder`` belongs to one lane for as long as its
relay owns it; it is memory that can be thrown away at any moment and is then built anew from the rows themselves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar

import msgspec


class Row(Protocol):
    """What ordering needs to know of a fetched row."""

    @property
    def place(self) -> int:
        """Its place in the order."""

    @property
    def ordering_key(self) -> str | None:
        """What its order hangs on."""

    @property
    def wait(self) -> float:
        """Seconds until it may go; 0 for now, infinity for a parked head."""

    @property
    def is_reserved(self) -> bool:
        """Whether it waits for its sender, who may be done at any moment, and not for its time."""


R = TypeVar("R", bound=Row)

LOOK_AGAIN: Final = 0.02
"""Seconds until a reserved row is looked at again; then each time for as long as it has waited so far."""


class Block(msgspec.Struct):
    """A key that has to wait."""

    head: int
    """The row that it waits for."""
    low: int
    """The lowest row of the key that was passed over; where to read on from when it goes on."""
    due: float
    """When the head may be tried."""
    followed: bool = False
    """Whether others were passed over; if not, there is nothing to come back for."""
    since: float = 0.0
    """When it began to wait."""


class Admission(msgspec.Struct, Generic[R]):
    """What became of fetched rows."""

    go: list[R]
    held: list[R]


class LaneOrder:
    """The order of one lane: how far it was read, and which keys wait."""

    def __init__(self, *, cap: int = 1000, floor: int = 0) -> None:
        self.floor = floor
        self.rewinds = 0
        """Goes up whenever rows have to be read again: what was read before may have others before it now."""
        self._cap = cap
        self._blocked: dict[str, Block] = {}

    @property
    def blocked(self) -> dict[str, Block]:
        """Keys that wait, by key."""
        return self._blocked

    @property
    def is_full(self) -> bool:
        """Whether no further key can be remembered as waiting; then the lane is not read on."""
        return len(self._blocked) >= self._cap

    def admit(self, rows: Iterable[R], now: float) -> Admission[R]:
        """Divide rows, in the order of their ids, into those that may go and those whose key has to wait."""
        go: list[R] = []
        held: list[R] = []
        for row in rows:
            if row.ordering_key is None:
                (go if row.wait <= 0 else held).append(row)
                if row.wait > 0:
                    self._wait_for(f"\0{row.place}", row, now)
                continue
            block = self._blocked.get(row.ordering_key)
            if block is not None and not (row.place == block.head and row.wait <= 0):
                if row.place == block.head:
                    block.due = now + _patience(row, now - block.since)
                else:
                    self._follow(block, row.place)
                held.append(row)
            elif row.wait > 0:
                self._wait_for(row.ordering_key, row, now)
                held.append(row)
            else:
                go.append(row)
        return Admission(go, held)

    def failed(self, row: Row, due: float) -> None:
        """A row was not acknowledged: its key waits until then."""
        self._block(row.ordering_key if row.ordering_key is not None else f"\0{row.place}", row.place, due)

    def held_back(self, row: Row) -> None:
        """A row was not tried, because an earlier one of its key had failed."""
        if row.ordering_key is not None and (block := self._blocked.get(row.ordering_key)) is not None:
            self._follow(block, row.place)

    def passed(self, row: Row) -> None:
        """A row has left the outbox: if its key waited for it, the key goes on from the lowest row it passed over."""
        name = row.ordering_key if row.ordering_key is not None else f"\0{row.place}"
        block = self._blocked.get(name)
        if block is not None and row.place == block.head:
            del self._blocked[name]
            if block.followed:
                self.rewind(block.low)

    def gone(self, place: int) -> None:
        """A row is not there any more, or could not be read yet: whoever waited for it goes on from there."""
        for name, block in self._blocked.items():
            if block.head == place:
                del self._blocked[name]
                break
        self.rewind(place)

    def rewind(self, place: int) -> None:
        """Read again from this row on.

        Counted also where the floor is lower already: a read that is under way has started from there, perhaps without
        this row, and must not move the floor beyond it.
        """
        self.floor = min(self.floor, place - 1)
        self.rewinds += 1

    def holds(self, key: str | None, place: int) -> bool:
        """Whether a row of this key would have to wait; then it is remembered as waiting."""
        block = self._blocked.get(key) if key is not None else self._blocked.get(f"\0{place}")
        if block is None or block.head == place:
            return block is not None
        self._follow(block, place)
        return True

    def due_heads(self, now: float) -> list[int]:
        """Heads of waiting keys that may be tried now."""
        return [block.head for block in self._blocked.values() if block.due <= now]

    def next_due(self) -> float:
        """When the next waiting key may go on; infinity for never."""
        return min((block.due for block in self._blocked.values()), default=math.inf)

    def forget(self, flying: Collection[int] = (), settled_to: int = 0) -> None:
        """Know nothing any more: the lane is read from its beginning.

        But for keys whose head is still in flight: that it failed is perhaps not written yet, and then nobody else
        knows that the key has to wait.
        """
        self.rewind(settled_to + 1)
        self._blocked = {name: block for name, block in self._blocked.items() if block.head in flying}

    def _wait_for(self, name: str, row: Row, now: float) -> None:
        """A row is not due: its key waits for it."""
        known = self._blocked.get(name)
        since = known.since if known is not None and known.head == row.place else now
        self._block(name, row.place, now + _patience(row, now - since))
        self._blocked[name].since = since

    def _block(self, name: str, head: int, due: float) -> None:
        block = self._blocked.get(name)
        if block is None:
            self._blocked[name] = Block(head, head + 1, due)
        elif head > block.head:
            self._follow(block, head)
        else:
            if head < block.head:  # a late commit: the head so far comes behind it
                self._follow(block, block.head)
            block.head = head
            block.due = due

    @staticmethod
    def _follow(block: Block, row_id: int) -> None:
        block.low = min(block.low, row_id) if block.followed else row_id
        block.followed = True


def _patience(row: Row, waited: float) -> float:
    """Seconds until a row that is not due is looked at again.

    At its time; but a reservation ends, as a rule, long before it lapses, and its key would stand still meanwhile
    (R-reserved).
    """
    return min(row.wait, max(waited, LOOK_AGAIN)) if row.is_reserved else row.wait
