"""The settings of a relay, checked together."""

from __future__ import annotations

import msgspec

from oncommit.errors import ConfigError
from oncommit.retry import Backoff, RetryPolicy


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    lease: float = 10.0
    """For so long its lanes stay a relay's own without a renewal."""
    publish_timeout: float = 30.0
    statement_timeout: float = 5.0
    """Shorter than the lease, so that a settle cannot hold lane locks beyond it (Z-limit)."""
    stop_timeout: float = 30.0
    poll_busy: float = 0.05
    poll_idle: float = 1.0
    batch_rows: int = 2000
    batch_bytes: int = 8 * 1024 * 1024
    most_blocked: int = 1000
    """Waiting keys that are remembered a lane."""
    crash_limit: int = 5
    archive: bool = True
    dead_letter_days: float = 14.0
    full_pass_every: float = 60.0
    retry: RetryPolicy = RetryPolicy()
    circuit: Backoff = Backoff(base=0.5, cap=30.0)
    source: str = "oncommit"
    """The ``source`` of CloudEvents: who speaks."""

    def __post_init__(self) -> None:
        for name in ("lease", "publish_timeout", "statement_timeout", "stop_timeout", "poll_busy", "poll_idle"):
            if getattr(self, name) <= 0:
                msg = f"{name} must be above zero, not {getattr(self, name)!r}"
                raise ConfigError(msg)
        if self.statement_timeout >= self.lease:
            msg = f"statement_timeout ({self.statement_timeout} s) must be shorter than the lease ({self.lease} s)"
            raise ConfigError(msg)
        if self.poll_busy > self.poll_idle:
            msg = f"poll_busy ({self.poll_busy} s) must not be longer than poll_idle ({self.poll_idle} s)"
            raise ConfigError(msg)
        if self.batch_rows < 1 or self.batch_bytes < 1 or self.most_blocked < 1 or self.crash_limit < 1:
            msg = "batch_rows, batch_bytes, most_blocked and crash_limit must be above zero"
            raise ConfigError(msg)
