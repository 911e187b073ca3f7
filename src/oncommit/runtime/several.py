"""Several loops as one: begun together, stopped one after the other.

Failure story. One that ends by itself, with an error or without, ends the others, each gracefully, and its error is
raised when they have ended: half a program that looks alive would be worse than none, and a supervisor starts the whole
anew. Cancelled, all are cancelled at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol, Self

from oncommit.errors import ConfigError

log: Final = logging.getLogger("oncommit.runtime")


class Loop(Protocol):
    """What can be run: a ``Relay``, say, or ``Several``."""

    async def run(self) -> None:
        """Until ``stop``."""

    def stop(self) -> None:
        """Finish what is in flight, and end."""


class Several:
    """Loops that run together, as a loop.

    They are stopped in the order in which they are given, each when the one before has ended: name first what writes
    events, and last the relay that sends them::

        loops = Several(consumer, relay)
    """

    def __init__(self, *loops: Loop) -> None:
        if not loops:
            raise ConfigError("Several needs at least one loop")
        for loop in loops:
            check_loop(loop)
        self.loops = loops
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="oncommit loops")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    def stop(self) -> None:
        """Stop one after the other."""
        self._stopping.set()

    async def check(self) -> None:
        """Whether each has what it needs; raises what the first says that has not."""
        for loop in self.loops:
            if (check := getattr(loop, "check", None)) is not None:
                await check()

    async def run(self) -> None:
        """Until ``stop``, or until one of them ends."""
        tasks = [asyncio.create_task(loop.run(), name=f"oncommit {type(loop).__name__}") for loop in self.loops]
        stopping = asyncio.create_task(self._stopping.wait())
        both: set[asyncio.Task[Any]] = {*tasks, stopping}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not self._stopping.is_set():
                    log.error("%s has ended by itself, and the others are stopped", task.get_name())
            for loop, task in zip(self.loops, tasks, strict=True):
                loop.stop()
                await asyncio.wait({task})
            for task in tasks:
                task.result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)


def check_loop(thing: Any) -> None:
    """Whether this can be run. Raises ``ConfigError``."""
    missing = [name for name in ("run", "stop") if not callable(getattr(thing, name, None))]
    if missing or isinstance(thing, type):
        what = thing.__name__ if isinstance(thing, type) else f"a {type(thing).__name__}"
        msg = f"{what} cannot be run: it needs run() and stop(), as a Relay has, or Several relays"
        raise ConfigError(msg)
