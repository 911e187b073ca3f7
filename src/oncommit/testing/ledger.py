"""What writers did, on record outside PostgreSQL: the other side of every claim about loss, phantoms and order.

    ledger = LedgerWriter(folder / "writer-1.jsonl")
    ledger.attempt([Entry("0199…", "order:7", 3)])      # inside the transaction, before its COMMIT
    ledger.committed(["0199…"])                         # or aborted, or unknown where the answer was lost

Failure story. One file a writer, only ever appended to. An attempt is on disk before the COMMIT is sent, so nothing
commits that the ledger has never heard of. An outcome is written when it is known and reaches the disk with the next
attempt: if its writer dies first, the attempt stands without one and counts as unknown, which accuses nobody. A line
that a crash cut off is the last of its file and was not yet fsynced; so its transaction has not committed, and the
line is left out. Anything else that cannot be read is an error: a ledger that guesses is none. A writer that is started
again takes a new file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec


class Outcome(StrEnum):
    """How the transaction ended, as far as its writer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One event."""

    event: str
    line: str | None
    """What its order hangs on: key, sink and class of priority, in whatever words. None: it stands alone."""
    sequence: int
    """Its place in the write order of that line; goes up from one committed event to the next."""


class Written(msgspec.Struct):
    """One event with its outcome."""

    entry: Entry
    outcome: Outcome = Outcome.UNKNOWN


class _Line(msgspec.Struct, omit_defaults=True):
    """One line of a file: an attempt with its events, or an outcome with their ids."""

    attempt: list[Entry] = []
    outcome: Outcome | None = None
    events: list[str] = []


class LedgerError(Exception):
    """A ledger that contradicts itself or cannot be read."""


class LedgerWriter:
    """The file of one writer."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def attempt(self, entries: Iterable[Entry]) -> None:
        """These are about to be committed together. On disk when this returns; it blocks for an fsync."""
        self._write(_Line(attempt=list(entries)))
        os.fsync(self._file.fileno())

    def committed(self, events: Iterable[str]) -> None:
        """PostgreSQL said so."""
        self._write(_Line(outcome=Outcome.COMMITTED, events=list(events)))

    def aborted(self, events: Iterable[str]) -> None:
        """Rolled back, or refused."""
        self._write(_Line(outcome=Outcome.ABORTED, events=list(events)))

    def unknown(self, events: Iterable[str]) -> None:
        """The answer to COMMIT was lost."""
        self._write(_Line(outcome=Outcome.UNKNOWN, events=list(events)))

    def close(self) -> None:
        """What is written is on disk; nothing more comes."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _write(self, line: _Line) -> None:
        data = self._encoder.encode(line) + b"\n"
        # One write, so that a crash can only cut off the last line.
        if self._file.write(data) != len(data):
            raise LedgerError("the ledger could not be written whole; is the disk full?")


def read_ledger(folder: Path) -> dict[str, Written]:
    """All events of all writers, by id.

    Raises:
        LedgerError: An event attempted twice, an outcome without its attempt, two outcomes, or a line that is none.
    """
    found: dict[str, Written] = {}
    for path in sorted(folder.glob("*.jsonl")):
        settled: set[str] = set()
        for number, line in enumerate(_lines(path), start=1):
            try:
                _take(line, found, settled)
            except LedgerError as error:
                raise LedgerError(f"{path.name}, line {number}: {error}") from error
    return found


def _lines(path: Path) -> list[_Line]:
    *whole, _cut_off = path.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(_Line)
    try:
        return [decoder.decode(line) for line in whole]
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path.name} cannot be read: {error}") from error


def _take(line: _Line, found: dict[str, Written], settled: set[str]) -> None:
    for entry in line.attempt:
        if entry.event in found:
            raise LedgerError(f"{entry.event} is attempted a second time")
        found[entry.event] = Written(entry)
    for event in line.events:
        if event not in found or event in settled:
            raise LedgerError(f"the outcome of {event} {'is told twice' if event in found else 'has no attempt'}")
        settled.add(event)
        found[event].outcome = line.outcome or Outcome.UNKNOWN
