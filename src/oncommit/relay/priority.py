"""Who goes first within a batch: the more urgent key, and every key in its own order. Pure."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Row(Protocol):
    """What is asked of a row."""

    @property
    def ordering_key(self) -> str | None:
        """What its order hangs on."""

    @property
    def priority(self) -> int:
        """From 0 to 9; higher goes first."""


R = TypeVar("R", bound=Row)


def by_priority(rows: list[R]) -> list[R]:
    """The rows, higher priority first; those of one key, and equals, stay in the order they stand in.

    A row that stands before a more urgent one of its own key counts as that urgent, since the other waits for it.
    """
    urgency = [row.priority for row in rows]
    if len(set(urgency)) <= 1:
        return rows
    behind: dict[str, int] = {}
    for index in range(len(rows) - 1, -1, -1):
        key = rows[index].ordering_key
        if key is not None:
            behind[key] = urgency[index] = max(urgency[index], behind.get(key, 0))
    order = sorted(range(len(rows)), key=lambda index: -urgency[index])
    return [rows[index] for index in order]
