"""Rows that commit below the floor: where to look again, and until when. Pure; the S-rules of the protocol.

Ids are drawn at insert and seen at commit. A *region* is a stretch of ids, and the transactions that held a writer's
lock on the outbox when its upper end was noted: only they can still bring a row into it. A region is read again when
one of them has left; with the last of them it is done. Regions follow each other without gaps from ``sure`` upwards.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

PREPARED = "-1/"
"""How PostgreSQL names the holder of a prepared transaction's locks."""


class Region(msgspec.Struct):
    """Ids above ``low`` up to ``high`` into which somebody may still commit."""

    low: int
    high: int
    holders: frozenset[str]
    to_read: bool = False


class LateCommits:
    """What one relay knows of late commits; worth nothing once its connection has broken or the sequence has fallen."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._noted = 0
        self._seen: frozenset[str] = frozenset()
        self._arrived: frozenset[str] = frozenset()

    @property
    def noted(self) -> int:
        """The last value that was noted; fetches read no further (S-ceiling)."""
        return self._noted

    @property
    def sure(self) -> int:
        """Nothing can appear any more at this id or below."""
        return self._regions[0].low if self._regions else self._noted

    @property
    def is_quiet(self) -> bool:
        """Nobody can bring anything into what was noted."""
        return not self._regions

    def has_fallen(self, last_value: int) -> bool:
        """Whether the sequence is behind what was noted: another server answers, or an older state of this one."""
        return last_value < self._noted

    def look(self, last_value: int, holders: Iterable[str]) -> list[tuple[int, int]]:
        """Take in the sequence's last value, and the holders as they were *after* it was read (S-order).

        The result are the stretches to read again, with a snapshot younger than ``holders`` (S-snapshot). The new
        stretch up to ``last_value`` is not among them: it lies above every floor, since no fetch reads beyond what was
        noted before it (S-ceiling), and the next fetch reads it. Nothing is done before ``was_read`` says so.
        """
        here = frozenset(holders)
        # A prepared transaction keeps its holder's name until the server restarts, and then has one of its own. Whoever
        # has left may be any prepared one that is new since; or since the look before, should both names show at once.
        arrived = frozenset(name for name in here - self._seen if name.startswith(PREPARED))
        prepared = arrived | (self._arrived & here)
        self._arrived = arrived
        for region in self._regions:
            gone = region.holders - here
            if gone:
                region.to_read = True
                region.holders = (region.holders & here) | prepared
        if last_value > self._noted:
            self._regions.append(Region(self._noted, last_value, here))
            self._noted = last_value
        self._seen = here
        return self._stretches()

    def left_since(self, holders: Iterable[str]) -> list[tuple[int, int]]:
        """Stretches of which a holder has left since the last look (S-whole). Only asks: nothing is done by it."""
        here = frozenset(holders)
        return [(region.low, region.high) for region in self._regions if region.holders - here]

    def was_read(self) -> None:
        """What the last look asked for has been read, and what was found has been taken in."""
        remaining: list[Region] = []
        for region in self._regions:
            region.to_read = False
            if not region.holders and not remaining:
                continue
            before = remaining[-1] if remaining else None
            # Neighbours that wait for the same are one; so an idle writer costs one region, not one a sweep.
            if before is not None and before.holders == region.holders:
                before.high = region.high
            else:
                remaining.append(region)
        self._regions = remaining

    def forget(self) -> None:
        """Start anew: from the connection's loss, or after the sequence has fallen."""
        self._regions.clear()
        self._noted = 0
        self._seen = frozenset()
        self._arrived = frozenset()

    def _stretches(self) -> list[tuple[int, int]]:
        """What is to be read, neighbours joined."""
        stretches: list[tuple[int, int]] = []
        for region in self._regions:
            if not region.to_read:
                continue
            if stretches and stretches[-1][1] == region.low:
                stretches[-1] = (stretches[-1][0], region.high)
            else:
                stretches.append((region.low, region.high))
        return stretches
