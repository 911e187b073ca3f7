"""Ids of events: UUID version 7 (RFC 9562), ordered by time so that the archive's index grows at its right end.

The standard library has these from Python 3.14 on; until 3.13 leaves support, the few lines below do it.
"""

from __future__ import annotations

import os
import time
from typing import Final
from uuid import UUID, SafeUUID

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_set = object.__setattr__


class MadeId(UUID):
    """An id that oncommit made, and that knows whether it has been offered to a database yet.

    An id is looked up among the delivered events only if it may be there: when the caller brought it, or when the same
    event is added again (a transaction that is tried again after a lost answer). A fresh one cannot be, and saves the
    trip.
    """

    __slots__ = ("offered",)
    offered: bool
    """Set once it has been; unset costs nothing."""

    is_safe = SafeUUID.unknown  # type: ignore[misc]  # of the class, as it is the same for all

    def __repr__(self) -> str:
        return f"UUID('{self}')"

    def __reduce__(self) -> tuple[type[UUID], tuple[str]]:
        """A copy, here or in another process, is an id that somebody brings: it never learns what became of this."""
        return UUID, (str(self),)


def make_id() -> MadeId:
    """A new id: 48 bits of milliseconds, 12 bits of their fraction (RFC 9562, 6.2, method 3), 62 random bits.

    The random bits come from the operating system each time: a generator with a state would repeat itself in the
    children of a server that forks.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8)) & (_VARIANT - 1 >> 1)
    made = UUID.__new__(MadeId)
    # UUID.__init__ would check what is right by construction, at twice the price of the whole id.
    _set(made, "int", milliseconds << 80 | _VERSION_7 | fraction << 64 | _VARIANT | random)
    return made


def may_be_known(event_id: UUID) -> bool:
    """Whether a database may have seen this id: brought by the caller, or offered before."""
    return not isinstance(event_id, MadeId) or getattr(event_id, "offered", False)


def mark_offered(event_id: UUID) -> None:
    """Note that this id is about to reach a database; from now on it may be known there."""
    if isinstance(event_id, MadeId):
        _set(event_id, "offered", True)  # noqa: FBT003 - an attribute, not a flag
