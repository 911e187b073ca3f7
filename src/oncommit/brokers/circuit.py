"""Circuits: what is down is probed singly after a back-off, and costs nobody an attempt. Pure; time comes in."""

from __future__ import annotations

from collections.abc import Callable

from oncommit.retry import Backoff


class Circuit:
    """One broker's, or one topic's. Closed: everything goes. Open: nothing does until the next probe."""

    def __init__(self, backoff: Backoff, uniform: Callable[[float, float], float]) -> None:
        self._backoff = backoff
        self._uniform = uniform
        self._failures = 0
        self._probe_at = 0.0
        self.cause: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is wrong."""
        return self._failures > 0

    def wait(self, now: float) -> float:
        """Seconds until something may go; 0 for now."""
        return max(self._probe_at - now, 0.0) if self.is_open else 0.0

    def failed(self, now: float, cause: str) -> None:
        """It did not work, again."""
        self._failures += 1
        self.cause = cause
        # At least half of the span: a probe at once after each failure would be no back-off at all.
        longest = self._backoff.longest(self._failures)
        self._probe_at = now + self._uniform(longest / 2, longest)

    def worked(self) -> None:
        """It works."""
        self._failures = 0
        self.cause = None
