"""How much to read at once. Pure: what the last read found in, limits of the next out.

Two limits hold for a batch, of rows and of bytes. The statement that reads it cuts it at the bytes, but has looked up
everything it was asked for by then; so it is asked for about what will fit. How large rows are is learnt from the last
read, and taken for large at the start.

A third limit, of ids, holds only after a read has come to no end within its time.

What may be read is shared among the lanes with a backlog. Those without one are read too, for what has just come. Where
urgent lanes and others have a backlog, three quarters are for the urgent ones, and one is kept for the rest: neither
starves, however much comes for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncommit.relay.share import is_urgent

IDLE: Final = 32
"""Rows of a lane without a backlog."""
_FIRST_GUESS: Final = 64 * 1024
"""Bytes of a row, before any was seen."""
KEPT: Final = 4
"""One of so many is for lanes that are not urgent."""
_SHRINK: Final = 8
"""The guess falls no faster than to an eighth a read: a few small rows say little about those behind them."""


_MOST_IDS: Final = 2**62
_LEAST_IDS: Final = 10_000


class Limits:
    """How many rows of which lanes to read, for one sink."""

    def __init__(self, *, rows: int, budget: int, guess: float = _FIRST_GUESS) -> None:
        self.budget = budget
        self._rows = rows
        self._guess = guess
        self._full: dict[int, bool] = {}
        self._turns = [0, 0]
        self._reads = 0
        self._ids = _MOST_IDS

    @property
    def most(self) -> int:
        """Rows that may be read at once, as far as one knows."""
        return max(min(int(self.budget / self._guess), self._rows), 1)

    def reach(self, floor: int, ceiling: int) -> int:
        """How far a read from here may go.

        All the way, as a rule. But while an old transaction keeps vacuum away, a statement wades through what was sent,
        and where that is millions of rows it comes to no end within its time; then it goes by stretches.
        """
        return min(ceiling, floor + self._ids)

    def gave_up(self, ids: int) -> None:
        """A read that went so far took too long."""
        self._ids = max(min(self._ids, ids) // 8, _LEAST_IDS)

    def recovers(self) -> None:
        """It may have become easier since."""
        self._ids = min(self._ids * 2, _MOST_IDS)

    def ask(self, lanes: Sequence[int]) -> dict[int, int]:
        """Rows to ask for, by lane; of large rows not every lane gets its turn each time."""
        self._reads += 1
        most = self.most
        urgent = [lane for lane in lanes if is_urgent(lane)]
        rest = [lane for lane in lanes if not is_urgent(lane)]
        if not (self._has_backlog(urgent) and self._has_backlog(rest)):
            return self._share(urgent, most, 1) | self._share(rest, most, 0)
        # Of so few rows that they cannot be divided, the rest has every fourth read.
        kept = most // KEPT if most >= KEPT else most * (self._reads % KEPT == 0)
        return self._share(urgent, most - kept, 1) | self._share(rest, kept, 0)

    def _has_backlog(self, lanes: Sequence[int]) -> bool:
        return any(self._full.get(lane, True) for lane in lanes)

    def _share(self, lanes: Sequence[int], most: int, which: int) -> dict[int, int]:
        """So many rows among these lanes."""
        if not lanes or not most:
            return {}
        if most < len(lanes):
            first = self._turns[which] % len(lanes)
            self._turns[which] = first + most
            lanes = [*lanes[first:], *lanes[:first]][:most]
        backlogged = [lane for lane in lanes if self._full.get(lane, True)]
        share = most // max(len(backlogged), 1)
        idle = max(min(IDLE, most // len(lanes)), 1)
        return {lane: max(share, 1) if self._full.get(lane, True) else idle for lane in lanes}

    def found(self, asked: Mapping[int, int], counts: Mapping[int, int], size: int, *, cut: bool) -> None:
        """What a read has brought: rows by lane, bytes altogether, and whether it was cut at the bytes."""
        for lane, most in asked.items():
            self._full[lane] = cut or counts.get(lane, 0) >= most
        self.learn(size, sum(counts.values()))

    def learn(self, size: int, count: int) -> None:
        """How large rows are."""
        if count:
            self._guess = max(size / count, self._guess / _SHRINK)
