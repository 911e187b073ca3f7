"""What a sink does when there is nothing to do: it waits for a wake-up, for the next look, or for its lanes to change.

Failure story. A wake-up that is lost costs the pause and nothing else. One that comes while a batch is under way, or
between a look and the wait behind it, is kept in its event and ends the next wait at once: the event is cleared after
the wait, before the look. While it waits, lanes are tended as often as ever: others may join or die meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncommit.relay.pace import Pace

SLICE: Final = 1.0
"""Seconds between two looks at the lanes."""


class Idle:
    """The waits of one sink."""

    def __init__(
        self, pace: Pace, clock: Callable[[], float], *, listening: Callable[[], bool], wake: asyncio.Event
    ) -> None:
        self._pace = pace
        self._clock = clock
        self._listening = listening
        self._wake = wake

    async def wait(self, due: float, tend: Callable[[], Awaitable[bool]]) -> None:
        """Until there may be something: at the latest when ``due``; at once where ``tend`` says that lanes changed."""
        now = self._clock()
        pause = self._pace.pause(now, listening=self._listening())
        end = min(now + pause, max(due, now + 0.001))
        is_due = end < now + pause
        while not await self._woken(min(end - now, SLICE)):
            now = self._clock()
            if now >= end:
                if not is_due:
                    self._pace.waited()
                return
            if await tend():
                return
        self._pace.woke(self._clock())

    async def _woken(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True
