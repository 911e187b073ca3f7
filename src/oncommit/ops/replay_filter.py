"""Which archived events are published again, and how far that has come. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from oncommit.checks import MAX_TOPIC, problem_of_text
from oncommit.errors import ConfigError
from oncommit.ops.event_filter import check_text

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
FIRST_WINDOW: Final = timedelta(minutes=1)
_NARROWEST: Final = timedelta(milliseconds=1)
_WIDEST: Final = timedelta(days=1)
BEFORE_ALL: Final = -1


class ReplayPlace(msgspec.Struct, frozen=True):
    """Up to where a replay has come. Another one can go on behind it."""

    archived_at: datetime
    id: int

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{(self.archived_at - _EPOCH) // _MICROSECOND}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> ReplayPlace:
        """The place that was written as this text.

        Raises:
            ConfigError: It is none.
        """
        try:
            microseconds, place = text.split(".")
            return cls(_EPOCH + int(microseconds) * _MICROSECOND, int(place))
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"{text!r} is no place in a replay; take it from the one before, as it is") from error


class ReplayFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What to publish again. Everything given must hold; within ``types`` any one does.

    Example:
        >>> ReplayFilter(start=datetime(2026, 5, 1, tzinfo=UTC), types=("order.placed",)).to_topic is None
        True
    """

    start: datetime
    """Archived then or later; an event is archived right after it was sent."""
    end: datetime | None = None
    """Archived before. Never later than the beginning of the replay."""
    types: tuple[str, ...] = ()
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    topic: str | None = None
    """With this topic set; one that the relay resolves is not on record."""
    sink: str | None = None
    to_topic: str | None = None
    """Publish to this topic instead."""
    after: ReplayPlace | None = None
    """Go on behind this place."""
    older: bool = False
    """Also from before the time for which everything is kept; a part may be missing."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            moment = getattr(self, name)
            if moment is not None and moment.utcoffset() is None:
                raise ConfigError(f"{name} has no time zone; say which moment it is, such as datetime.now(UTC)")
        if self.end is not None and self.end <= self.start:
            raise ConfigError("the end of the range must come after its start")
        for name in ("aggregate_type", "aggregate_id", "topic", "sink"):
            check_text(name, getattr(self, name))
        for kind in self.types:
            check_text("types", kind)
        if self.to_topic is not None and (problem := problem_of_text(self.to_topic, MAX_TOPIC)):
            raise ConfigError(f"to_topic {problem}")


class Window:
    """How much time to look at next: about as much as one batch fills, so that little is sorted for each. Pure.

    Example:
        >>> window = Window()
        >>> window.read(full=False); window.width
        datetime.timedelta(seconds=120)
        >>> window.read(full=True); window.width
        datetime.timedelta(seconds=60)
    """

    def __init__(self) -> None:
        self.width = FIRST_WINDOW

    def read(self, *, full: bool) -> None:
        """What was looked at held more than a batch, or not."""
        self.width = max(self.width / 2, _NARROWEST) if full else min(self.width * 2, _WIDEST)
