"""Wake-ups behind commits: many commits are told of by one word.

Failure story. A commit never waits for it and never fails by it. One that is not sent, because the pool is exhausted,
the server is away or the process ends, costs the time until a relay looks by itself. The first commit is told of at
once, those that follow together when a moment has passed. A word goes out after the commits that it tells of; what
commits while it is on its way gets another. Where it cannot be sent, it is tried less and less often.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from oncommit.outbox.home import Home

log: Final = logging.getLogger("oncommit.outbox")

LIMIT: Final = 2.0
"""Seconds for one word, the wait for a connection included."""
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 1.0


class Speaker(Protocol):
    """Sends one word."""

    async def say(self, sinks: frozenset[str]) -> None:
        """There is something for these sinks. Raises whatever its client raises."""

    async def close(self) -> None:
        """Let go of what is ours."""


class Waker:
    """Tells of commits. Never raises, never waits; from any thread."""

    def __init__(self, make: Callable[[], Speaker], home: Home, *, every: float) -> None:
        self._make = make
        self._home = home
        self._every = every
        self._closed = False
        self._warned = False
        self._mouth: _Mouth | None = None

    def tell(self, sinks: Iterable[str]) -> None:
        """Something for these sinks has committed."""
        wanted = frozenset(sinks)
        mouth = self._mouth
        if self._closed or (mouth is not None and mouth.will_tell(wanted)):
            return
        try:
            called = self._home.call(partial(self._note, wanted))
        except Exception:
            log.exception("relays could not be woken; they look by themselves")
            return
        if not called and not self._warned:
            self._warned = True
            log.warning(
                "commits of blocking sessions, or of another event loop, wake no relay, since that would take the pool "
                "of asyncio: give a blocking pool, an engine or a DSN, such as Outbox(wake=Wake(through=dsn))"
            )

    async def close(self) -> None:
        """Say what is still to be said, within its limit."""
        self._closed = True
        await self._home.ask(self._end)
        self._home.end()

    def close_blocking(self) -> None:
        """As ``close``, for applications without an event loop."""
        self._closed = True
        self._home.ask_blocking(self._end, 3 * LIMIT)
        self._home.end()

    def _note(self, sinks: frozenset[str]) -> None:
        """In the loop."""
        if self._mouth is None or self._mouth.loop is not asyncio.get_running_loop():
            # The first of this loop; or of a child process, which has nothing of its parent's connections.
            self._mouth = _Mouth(self._make(), self._every)
        self._mouth.tell(sinks)

    async def _end(self) -> None:
        mouth, self._mouth = self._mouth, None
        if mouth is not None and mouth.loop is asyncio.get_running_loop():
            await mouth.close()


class _Mouth:
    """One word at a time, and a pause behind each."""

    def __init__(self, speaker: Speaker, every: float) -> None:
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._speaker = speaker
        self._every = every
        self._waiting: frozenset[str] = frozenset()
        self._failures = 0
        self._word: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def will_tell(self, sinks: frozenset[str]) -> bool:
        """Whether a word that has not gone yet names them all. Asked from any thread."""
        return sinks <= self._waiting and self._process == os.getpid() and not self.loop.is_closed()

    def tell(self, sinks: frozenset[str]) -> None:
        """At once, or behind the pause."""
        self._waiting |= sinks
        if self._word is None and self._later is None:
            self._word = self.loop.create_task(self._say(), name="oncommit wake-up")

    async def close(self) -> None:
        """The last word."""
        if self._word is not None:
            await asyncio.gather(self._word, return_exceptions=True)
        if self._later is not None:
            self._later.cancel()
        if not self._failures:
            await self._try()
        await self._speaker.close()

    async def _say(self) -> None:
        await self._try()
        self._word = None
        pause = min(_FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE) if self._failures else self._every
        self._later = self.loop.call_later(pause, self._again)

    async def _try(self) -> None:
        # Taken before it is sent: what commits from now on needs another word.
        sinks, self._waiting = self._waiting, frozenset()
        if not sinks:
            return
        try:
            async with asyncio.timeout(LIMIT):
                await self._speaker.say(sinks)
        except Exception as error:
            if not self._failures:
                log.warning("relays cannot be woken: %s; they look by themselves", str(error) or type(error).__name__)
                log.debug("the cause", exc_info=True)
            self._failures += 1
        else:
            self._failures = 0

    def _again(self) -> None:
        self._later = None
        if self._waiting:
            self.tell(self._waiting)
