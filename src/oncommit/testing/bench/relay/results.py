"""What `oncommit bench relay` prints: one object."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, Final

import msgspec

from oncommit.testing.bench.pairs import Comparison

MOST_RSS_MB: Final = 150.0
KEPT: Final = 0.9
# Of the ceiling: what the relay reaches, and what we want it to.
_RATIO: Final = {"nats": (0.85, 0.95), "redis": (0.85, 0.95), "rabbitmq": (0.9, 1.0), "kafka": (0.5, 0.7)}
_FACTOR: Final = {"redis": (15.0, 40.0), "kafka": (15.0, 40.0)}
_PACKAGES: Final = ("oncommit", "asyncpg", "msgspec", "nats-py", "redis", "aio-pika", "confluent-kafka")


class Gate(msgspec.Struct, frozen=True):
    """A figure, and the least (``peak_rss_mb``: the most) it has to be."""

    of: str
    value: float
    gate: float
    passed: bool
    goal: float | None = None


class RelayResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The figures. Those of other sides are there in a run without conditions, ``plain_per_s`` and ``kept`` with."""

    broker: str
    events: int
    keys: str
    payload_bytes: int
    pairs: int
    conditions: list[str] = []
    direct_per_s: float | None = None
    """The broker's client as its documentation shows it, without a database."""
    adapter_per_s: float | None = None
    """Our adapter without a database."""
    database_per_s: float | None = None
    relay_per_s: float | None = None
    ceiling: str | None = None
    """The slower of direct and database."""
    ratio: float | None = None
    """Of the relay to the ceiling, the median of the pairs."""
    adapter_ratio: float | None = None
    """Of the relay to the slower of adapter and database: to a ceiling that is higher where our adapter is quicker."""
    spread: tuple[float, float] | None = None
    reference_per_s: float | None = None
    factor: float | None = None
    """Of the relay to the reference."""
    plain_per_s: float | None = None
    kept: float | None = None
    """Of the rate without the conditions, the median of the pairs."""
    kept_spread: tuple[float, float] | None = None
    cpu_us_per_event: float | None = None
    """Of the relay's process."""
    database_cpu_us_per_event: float | None = None
    peak_rss_mb: float | None = None
    batch: int | None = None
    """Events that the relay published at once, as the middle event saw it."""
    rounds: dict[str, list[float]]
    """All rates of each side, pair by pair."""
    gates: list[Gate] = []
    seconds: dict[str, float]
    """How long each phase took, over all rounds."""
    load_before: float
    about: dict[str, Any]


def middle(figures: Sequence[float]) -> float:
    """The median, as it is printed."""
    return round(median(figures), 1)


def compared(base: Sequence[float], other: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and spread of the pairs' ratios."""
    found = Comparison(base, other)
    low, high = found.spread
    return round(found.ratio, 3), (round(low, 3), round(high, 3))


def gates(result: RelayResult) -> list[Gate]:
    """What the figures have to hold."""
    found = []
    if (peak := result.peak_rss_mb) is not None:
        found.append(Gate("peak_rss_mb", peak, MOST_RSS_MB, passed=peak <= MOST_RSS_MB))
    if result.ratio is not None and result.broker in _RATIO:
        gate, goal = _RATIO[result.broker]
        found.append(Gate("ratio", result.ratio, gate, passed=result.ratio >= gate, goal=goal))
    if result.factor is not None and result.broker in _FACTOR:
        gate, goal = _FACTOR[result.broker]
        found.append(Gate("factor", result.factor, gate, passed=result.factor >= gate, goal=goal))
    if result.kept is not None:
        found.append(Gate("kept", result.kept, KEPT, passed=result.kept >= KEPT))
    return found


def versions() -> dict[str, str]:
    """Of Python and of the packages on the way."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
