"""How long what is done with is kept: one set for a database, which every program on it agrees on. Pure.

Days, since the archive goes by whole days. An event stays in the archive for the rest of the day on which it was
archived and ``archive_days`` after that; so long it can be replayed, and the inbox has to know its id for longer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncommit.errors import ConfigError

MAX_DAYS: Final = 36500


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """For how many days things are kept.

    Example:
        >>> Retention(archive_days=30, inbox_days=31).dead_letter_days
        14

    Raises:
        ConfigError: They do not go together.
    """

    archive_days: int = 14
    """Sent events."""
    dead_letter_days: int = 14
    """What failed for good."""
    inbox_days: int = 15
    """Ids of what consumers have handled, so that a late duplicate or a replay is known."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            days = getattr(self, name)
            if not isinstance(days, int) or isinstance(days, bool) or not 1 <= days <= MAX_DAYS:
                raise ConfigError(f"{name} must be a whole number of days from 1 to {MAX_DAYS}, not {days!r}")
        longest = max(("archive_days", "dead_letter_days"), key=lambda name: int(getattr(self, name)))
        needed = getattr(self, longest) + 1
        if self.inbox_days < needed:
            raise ConfigError(
                f"inbox_days ({self.inbox_days}) must be at least {needed}, one more than {longest} "
                f"({getattr(self, longest)}): what can still be replayed would be handled a second time"
            )


def parse_retention(text: str) -> Retention:
    """What the database has on record; fields that it does not have keep their defaults.

    Example:
        >>> parse_retention('{"archive_days": 7}').archive_days
        7

    Raises:
        ConfigError: It cannot be read, or does not go together.
    """
    try:
        return msgspec.json.decode(text, type=Retention)
    except msgspec.DecodeError as error:  # also what __post_init__ raised, by its text
        raise ConfigError(
            f"the retention on record in this database cannot be used: {error}; `oncommit retention` sets another"
        ) from error


def shortened(old: Retention, new: Retention) -> list[str]:
    """What is kept for fewer days than before, as a sentence each.

    Example:
        >>> shortened(Retention(), Retention(archive_days=7))
        ['archive_days from 14 to 7']
    """
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in new.__struct_fields__]
    return [f"{name} from {before} to {after}" for name, before, after in pairs if after < before]
