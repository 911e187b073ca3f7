"""What to measure: the words of the command line, checked together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from oncommit.errors import ConfigError
from oncommit.testing.bench.workload import PAYLOAD_BYTES, one_key, uniform, unique, zipf

AGAINST_CEILING: Final = ("direct", "adapter", "database", "relay", "reference")
AGAINST_PLAIN: Final = ("plain", "relay")
KEYS: Final = {"uniform": uniform, "zipf": zipf, "1": one_key, "unique": unique}
EVENTS: Final = 100_000
# So much is prepared at once for the direct side, which holds its messages in memory.
_MOST_BYTES: Final = 200_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `oncommit bench relay`."""

    broker: str
    """A name of one that is started here, or a URL."""
    events: int = EVENTS
    dsn: str | None = None
    keys: str = "uniform"
    payload: int = PAYLOAD_BYTES
    pairs: int = 5
    sides: tuple[str, ...] = ()
    """Only these; none: all that belong to the run."""
    reference_seconds: float = 3.0
    checkpoints: bool = True
    """Whether each backlog is followed by a checkpoint, so that none falls into a round: not on a server in use."""
    waiting: int = 0
    open_transaction: bool = False
    relays: int = 1
    delayed: int = 0

    def __post_init__(self) -> None:
        if self.keys not in KEYS:
            raise ConfigError(f"keys are {', '.join(KEYS)}, not {self.keys!r}")
        known = AGAINST_PLAIN if self.conditions else AGAINST_CEILING
        if strange := [side for side in self.sides if side not in known]:
            raise ConfigError(f"the sides of this run are {', '.join(known)}, not {', '.join(strange)}")
        if self.payload < PAYLOAD_BYTES:
            raise ConfigError(f"a payload has {PAYLOAD_BYTES} bytes or more, not {self.payload}")
        if not self.conditions and self.events * self.payload > _MOST_BYTES:
            most = _MOST_BYTES // self.payload
            raise ConfigError(f"{self.events} events of {self.payload} bytes are too many: take --events {most}")

    @property
    def going(self) -> tuple[str, ...]:
        """The sides to measure, in their order."""
        known = AGAINST_PLAIN if self.conditions else AGAINST_CEILING
        return tuple(side for side in known if side in self.sides) if self.sides else known

    @property
    def conditions(self) -> list[str]:
        """Under what the relay is measured beside its plain self; none: beside its ceiling."""
        found = {
            f"{self.waiting} waiting": self.waiting > 0,
            "a transaction left open": self.open_transaction,
            f"{self.relays} relays": self.relays > 1,
            f"{self.delayed} delayed": self.delayed > 0,
        }
        return [name for name, there in found.items() if there]

    def accounts(self) -> Iterator[int]:
        """Keys, one an event."""
        return KEYS[self.keys]()


def fitting_events(payload: int) -> int:
    """How many events of this size are measured where nobody says how many."""
    return max(min(EVENTS, _MOST_BYTES // payload), 1)
