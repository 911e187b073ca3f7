"""What a relay remembers of one lane while it owns it. Thrown away with the lane."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from oncommit.brokers.row import FetchedRow
from oncommit.relay.ordering import LaneOrder
from oncommit.relay.store import LeftClaim


class Lane:
    """One owned lane: its order, and what of it is in flight."""

    def __init__(self, lane: int, epoch: int, rescan: int, settled_to: int = 0, *, most_blocked: int) -> None:
        self.lane = lane
        self.epoch = epoch
        self.rescan = rescan
        self.settled_to = settled_to
        """Nothing is there at this id or below, nor will be: where to begin (F-settled)."""
        self.order = LaneOrder(cap=most_blocked, floor=settled_to)
        self.in_flight: set[int] = set()
        self.suspects: list[LeftClaim] = []
        """What was in flight when its owner before us died."""
        self.leaving = False
        """To be handed back once nothing of it is in flight."""
        self._landed: set[int] = set()

    def read_begins(self) -> None:
        """A read is about to be sent; what the one before had found has been taken in, or dropped."""
        self._landed.clear()

    def fresh(self, rows: Iterable[FetchedRow]) -> list[FetchedRow]:
        """Rows of the youngest read that were not in flight at any moment since it was sent (S-flight)."""
        if not self.in_flight and not self._landed:
            return list(rows)
        return [row for row in rows if self.is_fresh(row.place)]

    def is_fresh(self, place: int) -> bool:
        """Whether this row was not in flight at any moment since the youngest read was sent."""
        return place not in self.in_flight and place not in self._landed

    def takes_off(self, places: Iterable[int]) -> None:
        """These are in flight now."""
        self.in_flight.update(places)

    def lands(self, places: Collection[int]) -> None:
        """They are in flight no more."""
        self.in_flight.difference_update(places)
        self._landed.update(places)

    def forget(self) -> None:
        """Read it from the beginning; but what is in flight is, and holds its key back if it has failed."""
        self.order.forget(self.in_flight, self.settled_to)
