"""Which events a list is about, and where its next page begins. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from oncommit.errors import ConfigError
from oncommit.states import State

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Cursor(msgspec.Struct, frozen=True):
    """The place of one event in a list; a page can begin after it. It stays valid while events move."""

    created_at: datetime
    id: int | None
    event_id: UUID

    def __str__(self) -> str:
        """As it is written on the command line."""
        microseconds = (self.created_at - _EPOCH) // _MICROSECOND
        return f"{microseconds}.{'' if self.id is None else self.id}.{self.event_id.hex}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that was written as this text.

        Raises:
            ConfigError: It is none.
        """
        try:
            microseconds, place, event_id = text.split(".")
            created_at = _EPOCH + int(microseconds) * _MICROSECOND
            return cls(created_at, int(place) if place else None, UUID(event_id))
        except (ValueError, OverflowError) as error:
            msg = f"{text!r} is no cursor; take it from the page before, as it is"
            raise ConfigError(msg) from error


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What to list. Everything given must hold; within ``states`` and ``types`` any one does.

    Example:
        >>> EventFilter(states=("failed",), aggregate_type="order", limit=10).limit
        10
    """

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    key: str | None = None
    """The ordering key: the explicit one, else ``type:id`` of the aggregate."""
    topic: str | None = None
    sink: str | None = None
    correlation_id: str | None = None
    since: datetime | None = None
    """Created then or later."""
    until: datetime | None = None
    """Created before."""
    newest_first: bool = True
    after: Cursor | None = None
    """Go on after this event, in the direction of the list."""
    limit: int = DEFAULT_LIMIT
    with_payload: bool = False
    """Fetch payload and headers too."""

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in set(State):
                msg = f"there is no state {state!r}; the states are {', '.join(State)}"
                raise ConfigError(msg)
        for name in ("aggregate_type", "aggregate_id", "key", "topic", "sink", "correlation_id"):
            check_text(name, getattr(self, name))
        for kind in self.types:
            check_text("types", kind)
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and moment.utcoffset() is None:
                msg = f"{name} has no time zone; say which moment it is, such as datetime.now(UTC)"
                raise ConfigError(msg)
        check_limit(self.limit)

    @property
    def is_selective(self) -> bool:
        """Whether an index of the archive answers it, so that there is no need to look at recent days first."""
        return self.aggregate_id is not None or self.correlation_id is not None


def check_limit(limit: int) -> int:
    """A limit that keeps a list a page. Raises ``ConfigError``."""
    if not 1 <= limit <= MAX_LIMIT:
        msg = f"limit must be from 1 to {MAX_LIMIT}, not {limit}; for more, ask for the next page"
        raise ConfigError(msg)
    return limit


def check_text(name: str, value: str | None) -> None:
    """Text that can be asked for at all. Raises ``ConfigError``."""
    if value is not None and ("\0" in value or any("\ud800" <= character <= "\udfff" for character in value)):
        msg = f"{name} has a character that no event can have (NUL, or bytes that are no UTF-8)"
        raise ConfigError(msg)
