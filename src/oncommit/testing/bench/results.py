"""What `oncommit bench write` prints: one object a line of the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import msgspec

from oncommit.testing.bench.batch import Batches
from oncommit.testing.bench.pairs import Comparison
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import WRITERS

# With an event beside its rows a driver keeps at least this share of its commits; and a batch this share of raw rows.
GATES = {"asyncpg": 0.7}
OTHER_GATE = 0.6
BATCH_GATE = 0.5
GOAL = 0.8


class Result(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One comparison. Which fields are there depends on what was compared."""

    driver: str
    schema: str
    """`oncommit`, or `usual` for the table that most projects have."""
    writers: int | None = None
    batch: int | None = None
    without_per_s: float | None = None
    with_per_s: float | None = None
    raw_events_per_s: float | None = None
    raw_built_events_per_s: float | None = None
    """By hand with making the columns; `raw_events_per_s` finds them ready."""
    events_per_s: float | None = None
    ratio: float
    ratio_built: float | None = None
    spread: tuple[float, float]
    pairs: int
    gate: float | None = None
    passed: bool | None = None
    goal: float | None = None
    memory_growth_bytes: int | None = None
    memory_before_bytes: int | None = None
    load_before: float
    about: dict[str, Any]


def of_driver(place: Place, driver: str, found: Comparison, load: float, *, ours: bool = True) -> Result:
    """Commits of one driver with and without an event."""
    gate = GATES.get(driver, OTHER_GATE) if ours else None
    return Result(
        driver=driver,
        schema="oncommit" if ours else "usual",
        writers=WRITERS,
        without_per_s=_rate(found.base),
        with_per_s=_rate(found.other),
        ratio=round(found.ratio, 3),
        spread=_spread(found),
        pairs=len(found.base),
        gate=gate,
        passed=None if gate is None else found.ratio >= gate,
        goal=GOAL if ours else None,
        load_before=load,
        about=place.about | _versions(driver),
    )


def of_batch(place: Place, batches: Batches, load: float, *, ours: bool = True) -> Result:
    """Many events in one call, beside raw rows."""
    found = Comparison(batches.raw_per_s, batches.added_per_s)
    memory = batches.memory
    return Result(
        driver="asyncpg",
        schema="oncommit" if ours else "usual",
        batch=batches.size,
        raw_events_per_s=_rate(found.base),
        raw_built_events_per_s=_rate(batches.raw_built_per_s),
        events_per_s=_rate(found.other),
        ratio=round(found.ratio, 3),
        ratio_built=round(Comparison(batches.raw_built_per_s, batches.added_per_s).ratio, 3),
        spread=_spread(found),
        pairs=len(found.base),
        gate=BATCH_GATE if ours else None,
        passed=found.ratio >= BATCH_GATE if ours else None,
        memory_growth_bytes=memory.growth if memory else None,
        memory_before_bytes=memory.before if memory else None,
        load_before=load,
        about=place.about | _versions("asyncpg"),
    )


def load_now() -> float:
    """The machine's load of the last minute, ours included: above the number of cores, others were at work."""
    return round(os.getloadavg()[0], 2)


def _rate(rates: Sequence[float]) -> float:
    return round(median(rates), 1)


def _spread(found: Comparison) -> tuple[float, float]:
    low, high = found.spread
    return round(low, 3), round(high, 3)


def _versions(driver: str) -> dict[str, str]:
    """Of the packages that a driver's name names."""
    found = {}
    for package in ("sqlalchemy", "django", "asyncpg", "psycopg"):
        if package in driver:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
    return found
