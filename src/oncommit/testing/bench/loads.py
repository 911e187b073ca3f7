"""Load: a number of writers, each doing one transaction after the other for a given time.

The writers share one Python process, tasks for asyncio drivers and threads for the others, as in an application; and
they share the machine's cores with PostgreSQL. A round counts what was committed before its end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import msgspec

from oncommit.testing.bench.workload import Order


class Adds(Protocol):
    """What adds the event: our Outbox, or something to compare it with."""

    def add(self, connection: Any, /, *events: Any) -> Any:
        """Add them in the transaction that is open on this connection."""


AsyncTransaction: TypeAlias = Callable[[Order, Adds | None], Awaitable[None]]
Transaction: TypeAlias = Callable[[Order, Adds | None], None]


class Round(msgspec.Struct, frozen=True):
    """What was committed, and in how long."""

    commits: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Commits per second."""
        return self.commits / self.seconds


async def run_tasks(
    writers: Sequence[AsyncTransaction], orders: Sequence[Iterator[Order]], adds: Adds | None, seconds: float
) -> Round:
    """A round of asyncio tasks, one a writer. With `adds`, each transaction also adds its order's event."""

    async def work(transaction: AsyncTransaction, orders: Iterator[Order]) -> int:
        done = 0
        while time.perf_counter() < end:
            await transaction(next(orders), adds)
            done += 1
        return done

    begin = time.perf_counter()
    end = begin + seconds
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(*pair)) for pair in zip(writers, orders, strict=True)]
    return Round(sum(task.result() for task in tasks), time.perf_counter() - begin)


def run_threads(
    pool: ThreadPoolExecutor,
    writers: Sequence[Transaction],
    orders: Sequence[Iterator[Order]],
    adds: Adds | None,
    seconds: float,
) -> Round:
    """A round of threads, one a writer; they begin together."""
    ready = threading.Barrier(len(writers) + 1)

    def work(transaction: Transaction, orders: Iterator[Order]) -> int:
        ready.wait()
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            transaction(next(orders), adds)
            done += 1
        return done

    futures = [pool.submit(work, *pair) for pair in zip(writers, orders, strict=True)]
    ready.wait()
    begin = time.perf_counter()
    return Round(sum(future.result() for future in futures), time.perf_counter() - begin)
