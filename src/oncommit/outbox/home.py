"""Where a sender runs: in the application's event loop where its pool does, else in a loop of its own in a thread.

Failure story. A thread does not survive a fork: a child that finds itself without it starts another. A loop that was
closed takes what was waiting in it along; those events are reserved, the reservations lapse, and the relay sends them.
Nothing here ever raises into a commit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class Home(Protocol):
    """A loop to run in."""

    def call(self, function: Callable[[], None]) -> bool:
        """Have this called in the loop, soon; says whether there is one."""

    async def ask(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this in the loop and wait for it."""

    def ask_blocking(self, work: Callable[[], Coroutine[Any, Any, None]], timeout: float) -> None:
        """The same, for those who cannot await."""

    def end(self) -> None:
        """No more calls."""


class LoopHome:
    """The loop of whoever comes first; a pool of asyncio belongs to one loop anyway."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, function: Callable[[], None]) -> bool:
        """Called at once, where this is the loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if self._loop is None:
            self._loop = running
        if self._loop is not running:
            return False
        function()
        return True

    async def ask(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it, where this is the loop."""
        if self._loop is asyncio.get_running_loop():
            await work()

    def ask_blocking(self, work: Callable[[], Coroutine[Any, Any, None]], timeout: float) -> None:
        """Nobody can wait for his own loop; ``await outbox.close()`` can."""

    def end(self) -> None:
        """Whoever comes next may bring another loop."""
        self._loop = None


class ThreadHome:
    """A thread with a loop, started at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def call(self, function: Callable[[], None]) -> bool:
        """Called in the thread."""
        self._running().call_soon_threadsafe(function)
        return True

    async def ask(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the thread, if there is one."""
        if self._is_here():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._running()))

    def ask_blocking(self, work: Callable[[], Coroutine[Any, Any, None]], timeout: float) -> None:
        """The same."""
        if self._is_here():
            asyncio.run_coroutine_threadsafe(work(), self._running()).result(timeout)

    def end(self) -> None:
        """Stop the thread."""
        with self._lock:
            if self._is_here() and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(5)
            self._loop = self._thread = None

    def _is_here(self) -> bool:
        return self._thread is not None and self._process == os.getpid()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or not self._is_here():
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                # A daemon: a process that ends without closing its outbox ends all the same; the relay has the rest.
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="oncommit-sender", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
