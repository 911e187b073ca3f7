"""The relay's own view of its lease: rules L-sending and L-check of the protocol. Pure but for the clock it is given.

Counted on a clock that goes on while the machine sleeps, from the sending of the last renewal that was answered. The
database counts from when it ran that renewal, which was later; so we stop before anybody may take over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

RENEW_EVERY: Final = 1 / 3
"""Of the lease: two renewals may be lost."""


def boottime() -> float:
    """Seconds since the machine was started, asleep or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Until when a relay may act."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boottime) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = -1.0
        self.term = 0
        """One more for each row that was lost: who began under an earlier one has lost his lanes."""

    def sending(self) -> float:
        """The moment to hand to ``renewed``: call it before the renewal is sent."""
        return self._clock()

    def renewed(self, sent: float) -> None:
        """The renewal that was sent then has been answered."""
        self._deadline = max(self._deadline, sent + self.seconds)

    def lost(self) -> None:
        """Somebody removed our row."""
        self._deadline = -1.0
        self.term += 1

    @property
    def left(self) -> float:
        """Seconds for which we may still act; not above zero: for none."""
        return self._deadline - self._clock()

    @property
    def is_ours(self) -> bool:
        """Whether we may act now."""
        return self.left > 0
