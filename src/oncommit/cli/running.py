"""Running a loop as a process: signals, waiting for the database, a graceful end.

Failure story. The database need not be there at the start: the program says so and goes on trying, as a supervisor
would by starting it again. What cannot heal by waiting ends it at once. The first SIGTERM or SIGINT ends it gracefully;
the second at once, as the signal would have done by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from oncommit.errors import DatabaseUnreachable

if TYPE_CHECKING:
    from oncommit.runtime.several import Loop

_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0


async def run_until_stopped(loop: Loop, log: logging.Logger, *, name: str, does: str) -> None:
    """Run it until a signal; where it can say what it needs (``check``), it is not begun before that is there."""
    stopping = asyncio.Event()
    _listen(loop, stopping, log)
    check: Callable[[], Awaitable[Any]] | None = getattr(loop, "check", None)
    if check is not None and not await _is_ready(check, stopping, log):
        return
    log.info("%s %s", name, does)
    await loop.run()
    log.info("%s has stopped", name)


def _listen(loop: Loop, stopping: asyncio.Event, log: logging.Logger) -> None:
    """The first signal asks for a graceful end, the second does what it does to any program."""

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: ending at once, in mid-work", number.name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        log.info("%s: finishing what is in flight; again ends at once", number.name)
        stopping.set()
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


async def _is_ready(check: Callable[[], Awaitable[Any]], stopping: asyncio.Event, log: logging.Logger) -> bool:
    """Wait for the database, and check its tables; False where the end came first."""
    pause = _FIRST_PAUSE
    ended = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set():
            checking = asyncio.ensure_future(check())
            await asyncio.wait({checking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
                return False
            try:
                checking.result()
            except DatabaseUnreachable as error:
                log.warning("%s; trying again", error)
                await asyncio.wait({ended}, timeout=random.uniform(pause / 2, pause))
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                return True
        return False
    finally:
        ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ended
