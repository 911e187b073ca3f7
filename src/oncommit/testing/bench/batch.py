"""10 000 events in one call, beside the same rows put there by hand.

By hand means: columns as lists, only those that differ from their defaults, the lane given, nothing asked back, one
`INSERT … SELECT … FROM unnest`. Our side builds its events from orders within its time. By hand is timed twice in one
go: with the columns lying ready, which is the ceiling and what the gate is about, and with making them from the same
orders (ids, JSON), which is what an application without events would have to do. BEGIN and COMMIT are in all of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from oncommit import codec
from oncommit.ids import make_id
from oncommit.testing.bench.loads import Adds
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import SEED, Order, orders, uniform

RAW: Final = """
INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, payload, lane)
SELECT v.event_id, v.event_type, v.aggregate_type, v.aggregate_id, v.payload::json,
       lane_of(5::smallint, NULL, v.aggregate_type, v.aggregate_id, v.event_id)
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
    AS v (event_id, event_type, aggregate_type, aggregate_id, payload)
"""

Batch: TypeAlias = Callable[[list[Order]], Awaitable[float]]
"""Writes a batch and says in how many seconds."""

RawBatch: TypeAlias = Callable[[list[Order]], Awaitable[tuple[float, float]]]
"""The same by hand: the seconds of writing, and those of making the columns before it."""


class Memory(msgspec.Struct, frozen=True):
    """Of this process, in bytes, around one call."""

    before: int
    peak: int

    @property
    def growth(self) -> int:
        """How much more it held at its peak than before."""
        return self.peak - self.before


class Batches(msgspec.Struct, frozen=True):
    """Events per second, run by run; the two lists were measured in turns."""

    size: int
    raw_per_s: list[float]
    raw_built_per_s: list[float]
    added_per_s: list[float]
    memory: Memory | None


def measure(place: Place, adds: Adds, size: int, pairs: int, *, progress: Callable[[], None] = lambda: None) -> Batches:
    """Both sides in turns, first one first, then the other."""
    return asyncio.run(_measure(place, adds, size, pairs, progress))


async def _measure(place: Place, adds: Adds, size: int, pairs: int, progress: Callable[[], None]) -> Batches:
    source = orders(uniform(SEED))
    async with place.connection() as connection:
        raw, added = _raw(connection), _added(connection, adds)
        await raw(_take(source, size))
        memory = await _memory_of(added, _take(source, size))
        found = Batches(size, [], [], [], memory)
        for pair in range(pairs):
            for by_hand in (True, False) if pair % 2 == 0 else (False, True):
                batch = _take(source, size)
                if by_hand:
                    writing, making = await raw(batch)
                    found.raw_per_s.append(size / writing)
                    found.raw_built_per_s.append(size / (writing + making))
                else:
                    found.added_per_s.append(size / await added(batch))
                progress()
    return found


def _take(source: Iterator[Order], size: int) -> list[Order]:
    return list(islice(source, size))


def _raw(connection: Any) -> RawBatch:
    async def write(batch: list[Order]) -> tuple[float, float]:
        begin = time.perf_counter()
        columns = [
            [make_id() for _ in batch],
            ["order.placed"] * len(batch),
            ["account"] * len(batch),
            [str(order.account) for order in batch],
            [codec.encode(order.payload()).decode() for order in batch],
        ]
        ready = time.perf_counter()
        async with connection.transaction():
            await connection.execute(RAW, *columns)
        return time.perf_counter() - ready, ready - begin

    return write


def _added(connection: Any, adds: Adds) -> Batch:
    async def write(batch: list[Order]) -> float:
        begin = time.perf_counter()
        async with connection.transaction():
            await adds.add(connection, *[order.event() for order in batch])
        return time.perf_counter() - begin

    return write


async def _memory_of(write: Batch, batch: list[Order]) -> Memory | None:
    """The peak of the resident set during one call. Linux alone lets a process reset its high-water mark."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    gc.collect()
    try:
        reset.write_text("5")  # noqa: ASYNC240 - no disk behind it, and nobody else in this loop
        before = _kilobytes(status, "VmRSS")
        await write(batch)
        return Memory(before * 1024, _kilobytes(status, "VmHWM") * 1024)
    except OSError:
        await write(batch)
        return None


def _kilobytes(status: Path, name: str) -> int:
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
