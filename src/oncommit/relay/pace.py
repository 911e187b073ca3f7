"""How long to wait before looking again, when nothing was found. Pure; time comes in.

A tenth of the silence so far, between the two limits: who waits for an event after a second of silence waits a tenth of
a second more, and a relay that nobody has written to for minutes costs next to nothing.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1


class Pace:
    """Of one sink."""

    def __init__(self, busy: float, idle: float, now: float) -> None:
        self._busy = busy
        self._idle = idle
        self._found_at = now

    def found(self, now: float) -> None:
        """There was something to do."""
        self._found_at = now

    def pause(self, now: float) -> float:
        """Seconds until the next look."""
        return min(max((now - self._found_at) * SHARE, self._busy), self._idle)
