"""A writer in a thread of its own, so that a test can see it wait for a lock and go on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self
from uuid import UUID

from oncommit import Event, Outbox
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import Writer

PATIENCE = 20


class Apart:
    """All that its writer does happens in its own thread: Django's connections and asyncio's loops want that."""

    def __init__(self, kind: type[Writer], dsn: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="apart")
        self.writer: Writer = self.do(lambda: kind(dsn))
        self.pid: int = self.do(self.writer.pid)
        self.do(self.writer.rollback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.do(self.writer.close)
        self._executor.shutdown()

    def start(self, act: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Begin it; the result comes later."""
        return self._executor.submit(act, *arguments, **options)

    def do(self, act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Do it and wait for it."""
        return self.start(act, *arguments, **options).result(PATIENCE)

    def start_adding(self, observer: Observer, outbox: Outbox, *events: Event[Any]) -> Future[tuple[UUID, ...]]:
        """An add that has to wait for somebody's lock; returns when it waits."""
        adding = self.start(self.writer.add, outbox, *events)
        observer.wait_until_blocked(self.pid, until=adding.done)
        return adding
