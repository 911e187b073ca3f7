"""What a relay remembers of one lane while it owns it. Thrown away with the lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from oncommit.relay.ordering import LaneOrder
from oncommit.relay.row import FetchedRow
from oncommit.relay.store import LeftClaim

END: Final = 2**63 - 1


class Lane:
    """One owned lane: its order, and what of it is in flight."""

    def __init__(self, lane: int, epoch: int, rescan: int, *, most_blocked: int) -> None:
        self.lane = lane
        self.epoch = epoch
        self.rescan = rescan
        self.order = LaneOrder(cap=most_blocked)
        self.in_flight: set[int] = set()
        self.most = 32
        """How many rows to read at once; more where the backlog sits in few lanes."""
        self.suspects: list[LeftClaim] = []
        """What was in flight when its owner before us died."""
        self.leaving = False
        """To be handed back once nothing of it is in flight."""
        self._landed: dict[int, int] = {}

    def fresh(self, rows: Iterable[FetchedRow], read: int) -> list[FetchedRow]:
        """Rows of a read that were not in flight at any moment since it was sent (S-flight)."""
        return [row for row in rows if row.place not in self.in_flight and self._landed.get(row.place, -1) < read]

    def is_fresh(self, place: int, read: int) -> bool:
        """Whether this row was not in flight at any moment since that read was sent."""
        return place not in self.in_flight and self._landed.get(place, -1) < read

    def takes_off(self, places: Iterable[int]) -> None:
        """These are in flight now."""
        self.in_flight.update(places)

    def lands(self, places: Iterable[int], read: int) -> None:
        """These are in flight no more; ``read`` is the youngest read that was sent so far."""
        for place in places:
            self.in_flight.discard(place)
            self._landed[place] = read

    def no_read_before(self, read: int) -> None:
        """All reads sent before this one have been answered: what landed before it cannot appear any more."""
        if self._landed:
            self._landed = {place: landed for place, landed in self._landed.items() if landed >= read}
