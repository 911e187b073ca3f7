"""The settings of a relay, checked together. In Python, times are seconds and sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from oncommit.config.addresses import check_database, check_redis
from oncommit.config.definition import Clash, Nested, Setting, check_values
from oncommit.config.kinds import SECONDS, SIZE, SWITCH, choice, names, text, whole
from oncommit.identifiers import DEFAULT_SCHEMA, check_service, check_sink
from oncommit.retry import Backoff, RetryPolicy, policy_of

CONTINUE: Final = "continue"
PARK_KEY: Final = "park_key"

RETRY: Final = Nested(
    {
        "max_attempts": Setting("How often an event is tried, unless it says so itself.", whole()),
        "backoff": Nested(
            {
                "base": Setting("Longest wait after the first failure; doubled with each further one.", SECONDS),
                "cap": Setting("Longest wait after any failure.", SECONDS),
            }
        ),
    }
)
_CIRCUIT: Final = Nested(
    {
        "base": Setting("Longest wait before a broker or topic that is down is tried again; doubled.", SECONDS),
        "cap": Setting("Longest wait before any such try.", SECONDS),
    },
    prefix="circuit_",
)


class RelayProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What only the program ``oncommit relay`` asks; in Python they are arguments of ``Relay``."""

    name: Annotated[str | None, Setting("What others see it as. Not given: host and process.", text())] = None
    listen_database: Annotated[
        str | None,
        Setting(
            "URL of the database to listen at, past a pooler: `LISTEN` needs a connection of its own. "
            "Not given: `database`.",
            text(check_database),
            secret=True,
        ),
    ] = None
    wake_redis: Annotated[
        str | None,
        Setting("URL of a Redis whose list `outbox:wake:{service}` wakes it.", text(check_redis), secret=True),
    ] = None
    service: Annotated[str, Setting("The service in the name of that list.", text(check_service))] = DEFAULT_SCHEMA
    sinks: Annotated[
        tuple[str, ...], Setting("Sinks that it serves. Not given: all that have a broker.", names(check_sink))
    ] = ()

    def __repr__(self) -> str:
        """Without the URLs, which may hold passwords."""
        return f"RelayProgram(name={self.name!r}, sinks={self.sinks!r}, service={self.service!r})"


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one relay, for all of its sinks."""

    lease: Annotated[float, Setting("Without a renewal for so long, others take its lanes.", SECONDS)] = 10.0
    publish_timeout: Annotated[float, Setting("Limit of a publish.", SECONDS)] = 30.0
    # Shorter than the lease, so that a settle cannot hold lane locks beyond it (Z-limit).
    statement_timeout: Annotated[float, Setting("Limit of a statement; shorter than the lease.", SECONDS)] = 5.0
    stop_timeout: Annotated[float, Setting("Limit of a graceful stop.", SECONDS)] = 30.0
    poll_busy: Annotated[float, Setting("Wait before it looks again, right after it found something.", SECONDS)] = 0.05
    poll_idle: Annotated[float, Setting("The same after a long time of finding nothing.", SECONDS)] = 1.0
    poll_woken: Annotated[
        float, Setting("The same where wake-ups arrive, and have told of what was found.", SECONDS)
    ] = 1.0
    listen: Annotated[bool, Setting("Whether it listens for wake-ups of the database (`LISTEN`).", SWITCH)] = True
    batch_rows: Annotated[int, Setting("Events in a batch, at most.", whole())] = 5000
    batch_bytes: Annotated[int, Setting("Bytes in a batch, about, at most.", SIZE)] = 8 * 1024 * 1024
    most_blocked: Annotated[int, Setting("Waiting keys that are remembered a lane.", whole())] = 1000
    crash_limit: Annotated[
        int, Setting("An event that was alone in flight when its relay died, so often, is a dead letter.", whole())
    ] = 5
    archive: Annotated[bool, Setting("Whether sent events are kept in the archive.", SWITCH)] = True
    on_dead: Annotated[
        str,
        Setting(
            "When an event is dead: the later ones of its key go on, or the key waits for an operator.",
            choice(CONTINUE, PARK_KEY),
        ),
    ] = CONTINUE
    dlq_topics: Annotated[
        bool, Setting("Whether an event that is dead also goes to its topic with `.dlq` behind the name.", SWITCH)
    ] = False
    full_pass_every: Annotated[float, Setting("How often all lanes are read from their start.", SECONDS)] = 60.0
    maintenance: Annotated[
        bool, Setting("Whether it may lead the maintenance: delayed events, days of the archive, expiry.", SWITCH)
    ] = True
    circuit: Annotated[Backoff, _CIRCUIT] = Backoff(base=0.5, cap=30.0)
    source: Annotated[str, Setting("The `source` of CloudEvents: who speaks.", text())] = "oncommit"
    retry: RetryPolicy = RetryPolicy()
    retry_by_type: Mapping[str, RetryPolicy] = MappingProxyType({})
    """By type, or by a pattern such as ``order.*``."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.statement_timeout >= self.lease:
            raise Clash(
                ("statement_timeout", "lease"),
                f"statement_timeout ({SECONDS.show(self.statement_timeout)}) must be shorter than the lease "
                f"({SECONDS.show(self.lease)}), or a statement that hangs would outlive the right to run it",
            )
        if self.poll_busy > self.poll_idle:
            raise Clash(
                ("poll_busy", "poll_idle"),
                f"poll_busy ({SECONDS.show(self.poll_busy)}) must not be longer than poll_idle "
                f"({SECONDS.show(self.poll_idle)})",
            )
        # A copy of our own: what the caller does to his mapping afterwards has not been checked.
        msgspec.structs.force_setattr(self, "retry_by_type", MappingProxyType(dict(self.retry_by_type)))

    def parks(self, key: str | None) -> bool:
        """Whether a dead event of this key holds the key back."""
        return key is not None and self.on_dead == PARK_KEY

    def policy(self, event_type: str) -> RetryPolicy:
        """How often events of this type are tried, and how long apart."""
        return policy_of(event_type, self.retry_by_type, self.retry)
