"""Two sides measured in turns, so that a machine that gets slower or faster meanwhile does it to both. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec


class Comparison(msgspec.Struct, frozen=True):
    """Rates of both sides, pair by pair."""

    base: Sequence[float]
    other: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Other by base, of each pair on its own."""
        return [other / base for base, other in zip(self.base, self.other, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest of the pairs."""
        return min(self.ratios), max(self.ratios)


def in_turns(base: Callable[[], float], other: Callable[[], float], pairs: int) -> Comparison:
    """A B, B A, A B, …: neither side always comes first."""
    rates: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            rates[side].append((base, other)[side]())
    return Comparison(*rates)
