"""A table of events, and writers, in memory: what the reader of a relay sees, statement by statement."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from oncommit.brokers.row import FetchedRow
from oncommit.relay.store import Failure, Stretch, Window


class _Turn:
    """One point at which others may act: awaited once by every statement, before it looks."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class ModelRow:
    place: int
    lane: int
    key: str | None
    due: float = 0.0
    attempts: int = 0


@dataclass
class Writer:
    """A transaction: its name in the list of locks, and what it has written."""

    holder: str
    rows: list[ModelRow] = field(default_factory=list)


def lane_of(key: str | None) -> int:
    return 0 if key in ("a", "b", "c", None) else 1


def fetched(row: ModelRow, now: float, found: int = 0) -> FetchedRow:
    return FetchedRow(
        "main", row.lane, 1, row.place, UUID(int=row.place), "t",
        None, None, None, "application/json", None, None, None,
        1, 5, row.attempts, 0, None,
        datetime(2026, 1, 1, tzinfo=UTC), row.key, max(row.due - now, 0.0), "{}", b"{}", True, 10, found,
    )  # fmt: skip


class ModelTable:
    """The outbox, its sequence and the locks on it. It has the methods of ``Store`` that the relay's loop calls."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sequence = 0
        self.live: dict[int, ModelRow] = {}
        self.committed: list[ModelRow] = []
        self.writers: list[Writer] = []
        self._names = 0

    # ── Writers ──────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Writer:
        self._names += 1
        writer = Writer(f"3/{self._names}")
        self.writers.append(writer)
        return writer

    def locked(self, key: str | None) -> bool:
        """Whether a writer of this key is still open: the next one waits for it."""
        return key is not None and any(row.key == key for writer in self.writers for row in writer.rows)

    def write(self, writer: Writer, key: str | None) -> None:
        self.sequence += 1
        writer.rows.append(ModelRow(self.sequence, lane_of(key), key))

    def prepare(self, writer: Writer) -> None:
        self._names += 1
        writer.holder = f"-1/{self._names}"

    def end(self, writer: Writer, *, commit: bool) -> None:
        self.writers.remove(writer)
        if commit:
            self.committed += writer.rows
            self.live.update({row.place: row for row in writer.rows})

    # ── What the relay asks ──────────────────────────────────────────────────────────────────────

    async def last_value(self) -> int:
        await _Turn()
        return self.sequence

    async def holders(self) -> list[str]:
        await _Turn()
        return [writer.holder for writer in self.writers]

    async def fetch(
        self, windows: Sequence[Window], *, batch: int, budget: int, alone: bool = False
    ) -> list[FetchedRow]:
        await _Turn()
        found: list[tuple[int, int, ModelRow]] = []
        for lane, _, floor, ceiling, most in windows:
            places = [p for p in sorted(self.live) if self.live[p].lane == lane and floor < p <= ceiling]
            found += [(nth, lane, self.live[place]) for nth, place in enumerate(places[:most])]
        return self._within(budget, [row for _, _, row in sorted(found, key=lambda one: one[:2])])

    async def fetch_ids(
        self, epochs: dict[int, int], wanted: Sequence[tuple[int, int]], *, batch: int, budget: int
    ) -> list[FetchedRow]:
        await _Turn()
        assert len(set(wanted)) == len(wanted)
        return self._within(budget, [self.live[place] for _, place in sorted(wanted) if place in self.live])

    async def sweep(self, stretches: Sequence[Stretch], *, most: int) -> list[Any]:
        await _Turn()
        found: list[Any] = []
        for lane, epoch, low, high in stretches:
            rows = [row for place, row in sorted(self.live.items()) if row.lane == lane and low < place <= high]
            found += [(lane, epoch, 0, row.place, row.key) for row in rows[:most]] or [(lane, epoch, 0, None, None)]
        return found

    async def unclaim(self, batch: int | None = None) -> None:
        """Claims are not modelled."""

    async def settle(
        self, epochs: dict[int, int], sent: Sequence[tuple[int, int, float]], *, batch: int, archive: bool
    ) -> tuple[int, set[int]]:
        await _Turn()
        return sum(self.live.pop(place, None) is not None for _, place, _ in sent), set(epochs)

    async def fail(self, failures: Sequence[Failure]) -> set[int]:
        await _Turn()
        for failure in failures:
            row = self.live[failure.place]
            if row.attempts == failure.attempts:
                row.attempts += 1
                row.due = self.now + failure.delay
        return set()

    async def bury(self, burials: Sequence[Any], *, copy: bool = False) -> set[int]:
        await _Turn()
        return {burial.place for burial in burials if self.live.pop(burial.place, None)}

    def _within(self, budget: int, rows: list[ModelRow]) -> list[FetchedRow]:
        taken, size = [], 0
        for row in rows:
            if size > budget:
                break
            taken.append(fetched(row, self.now, len(rows)))
            size += 10
        return sorted(taken, key=lambda row: (row.lane, row.place))
