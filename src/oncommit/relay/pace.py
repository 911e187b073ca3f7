"""How long to wait before looking again, when nothing was found. Pure; time comes in.

A tenth of the silence so far, between the two limits: who waits for an event after a second of silence waits a tenth of
a second more, and a relay that nobody has written to for minutes costs next to nothing.

Where wake-ups arrive, looking is only the net below them, and may be rarer. But not every writer sends them: one of
plain SQL does not, and to it a rare look is a long delay. So wake-ups are trusted only after they were seen to work,
and not for a while after a look has found what nobody had told of.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
GRACE: Final = 0.5
"""A wake-up that comes so soon after its event was found was merely slower than the look."""
DISTRUST: Final = 60.0


class Pace:
    """Of one sink."""

    def __init__(self, busy: float, idle: float, woken: float, now: float) -> None:
        self._busy = busy
        self._idle = idle
        self._woken = woken
        self._found_at = now
        self._after: str | None = None
        self._woken_at = now
        self._untold_at: float | None = None
        self._trusts_from = now
        self._trusts = False

    def woke(self, now: float) -> None:
        """A wake-up came."""
        self._after = "wake-up"
        self._woken_at = now
        if self._untold_at is not None and now - self._untold_at < GRACE:
            self._untold_at = None
            self._trusts = now >= self._trusts_from

    def waited(self) -> None:
        """The pause is over, and nobody had told of anything."""
        self._after = "pause"

    def found(self, now: float) -> float | None:
        """There was something to do. How long ago a wake-up told of it; nothing where none did."""
        self._found_at = now
        told = now - self._woken_at if self._after == "wake-up" else None
        if self._after == "wake-up" and now >= self._trusts_from:
            self._trusts = True
        elif self._after == "pause" and self._untold_at is None:
            self._untold_at = now
        self._after = None
        return told

    def pause(self, now: float, *, listening: bool) -> float:
        """Seconds until the next look; ``listening`` says that wake-ups can arrive."""
        if self._untold_at is not None and now - self._untold_at >= GRACE:
            self._trusts = False
            self._trusts_from = self._untold_at + DISTRUST
            self._untold_at = None
        if listening and self._trusts and self._untold_at is None:
            return self._woken
        return min(max((now - self._found_at) * SHARE, self._busy), self._idle)
