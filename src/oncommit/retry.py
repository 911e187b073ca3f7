"""When to try again: exponential back-off with full jitter, capped. Pure; the caller brings the randomness."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from oncommit.errors import ConfigError

_DOUBLINGS: Final = 60  # beyond that any cap has been reached, and the power would grow without end


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait after the n-th failure: anything from nothing to ``base`` doubled n - 1 times, at most ``cap``.

    Full jitter: what failed together does not come back together.
    """

    base: float = 2.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.base <= self.cap:
            msg = f"a back-off needs 0 < base <= cap, not base={self.base!r}, cap={self.cap!r}"
            raise ConfigError(msg)

    def longest(self, failures: int) -> float:
        """The upper end after this many failures."""
        return min(self.cap, self.base * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS))

    def delay(self, failures: int, uniform: Callable[[float, float], float] = random.uniform) -> float:
        """Seconds to wait."""
        return uniform(0.0, self.longest(failures))


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how long apart."""

    max_attempts: int = 10
    backoff: Backoff = Backoff()

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or self.max_attempts < 1:
            msg = f"max_attempts must be a whole number above 0, not {self.max_attempts!r}"
            raise ConfigError(msg)


def policy_of(event_type: str, by_type: Mapping[str, RetryPolicy], default: RetryPolicy) -> RetryPolicy:
    """The policy of a type: its own, else that of the longest pattern that fits, else the default.

    In a pattern ``*`` stands for any characters.

    Example:
        >>> policy_of("order.placed", {"order.*": RetryPolicy(max_attempts=3)}, RetryPolicy()).max_attempts
        3
    """
    if not by_type:
        return default
    if event_type in by_type:
        return by_type[event_type]
    fitting = [pattern for pattern in by_type if "*" in pattern and _fits(pattern, event_type)]
    return by_type[max(fitting, key=lambda pattern: (len(pattern), pattern))] if fitting else default


def _fits(pattern: str, event_type: str) -> bool:
    """By walking through the pieces between the stars; a type is hostile input, and this takes linear time."""
    first, *middle, last = pattern.split("*")
    if not event_type.startswith(first) or len(event_type) < len(first) + len(last) or not event_type.endswith(last):
        return False
    end = len(event_type) - len(last)
    place = len(first)
    for piece in middle:
        found = event_type.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True
