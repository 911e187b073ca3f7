"""When to try again: exponential back-off with full jitter, capped. Pure; the caller brings the randomness."""

from __future__ import annotations

import random
from collections.abc import Callable
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
