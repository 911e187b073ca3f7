"""The relay's loop taken apart: each statement, publish and write is a step of its own, in any order it allows."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

from oncommit.brokers.base import Outcome
from oncommit.brokers.row import FetchedRow
from oncommit.errors import (
    BrokerUnavailable,
    NotAttempted,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)
from oncommit.relay.lane import Lane
from oncommit.relay.late import LateCommits
from oncommit.relay.lease import Lease
from oncommit.relay.limits import Limits
from oncommit.relay.reader import Batch, Reader
from oncommit.relay.settings import RelaySettings
from oncommit.relay.sink import SinkRelay
from oncommit.relay.store import Store
from oncommit.relay.writing import Settled
from oncommit.retry import Backoff, RetryPolicy
from oncommit.testing.brokers import RecordingBroker
from oncommit.topics import TopicRules
from tests.unit.relay.model import ModelTable

OUTCOMES = ("sent", "failed", "unavailable", "topic", "rejected", "no answer")


def outcome(name: str) -> Outcome:
    return {
        "sent": None,
        "failed": PublishFailed("no"),
        "unavailable": BrokerUnavailable("gone"),
        "topic": TopicUnavailable("no such topic"),
        "rejected": PublishRejected("too large"),
        "no answer": PublishFailed("no answer in time"),
    }[name]


class Loop:
    """``SinkRelay.run``, by steps. Whoever drives it breaks no rule of that loop, and may stop at each await."""

    def __init__(self, table: ModelTable, *, cap: int) -> None:
        self.table = table
        self.store = cast("Store", table)
        retry = RetryPolicy(max_attempts=1000, backoff=Backoff(base=1.0, cap=4.0))
        settings = RelaySettings(retry=retry, most_blocked=cap, circuit=Backoff(base=1.0, cap=4.0))
        lease = Lease(10.0, clock=lambda: table.now)
        self.sink = SinkRelay("main", RecordingBroker(), lease, settings, rules=TopicRules(), clock=lambda: table.now)
        self.sink.lanes.owned = {number: Lane(number, 1, 0, most_blocked=cap) for number in (0, 1)}
        self.reading: Coroutine[Any, Any, Batch | None] | None = None
        self.ready: list[Batch] = []
        self.publishing: tuple[Batch, list[FetchedRow]] | None = None
        self.writing: Coroutine[Any, Any, None] | None = None
        self.deliveries: list[int] = []
        self.dead: set[int] = set()
        self._reader()

    def _reader(self) -> None:
        self.sink._reader = Reader(self.store, Limits(rows=4, budget=35, guess=5))

    @property
    def late(self) -> LateCommits:
        return self.sink._reader._late

    def read_step(self) -> None:
        """Begin to read, or go on to the next statement."""
        if self.ready:
            return
        if self.reading is None:
            self.reading = self.sink._reader.read(self.sink.lanes.owned, self.table.now)
        try:
            self.reading.send(None)
        except StopIteration as stop:
            self.reading = None
            if stop.value is not None:
                self.ready.append(stop.value)

    def admit(self) -> None:
        """Take up the batch that was read. Its publish begins; the next read may begin beside it."""
        if not self.ready or self.publishing is not None:
            return
        batch = self.ready.pop()
        rows = self.sink._admit(batch)
        if rows:
            assert len({row.place for row in rows}) == len(rows), "a row twice in one batch"
            self.publishing = (batch, rows)
        else:
            finish(self.sink._let_go(batch, self.store))

    def answer(self, choose: Any) -> None:
        """The publish ends: what the broker did with each row, and what it said of it."""
        if self.publishing is None:
            return
        batch, rows = self.publishing
        self.publishing = None
        stopped: set[str] = set()
        published: list[tuple[FetchedRow, str, Outcome]] = []
        for row in rows:
            if row.ordering_key in stopped:
                published.append((row, "t", NotAttempted("behind")))
                continue
            name = choose()
            if name in ("sent", "no answer"):
                self.deliveries.append(row.place)
            if name == "rejected":
                self.dead.add(row.place)
            if name != "sent" and row.ordering_key is not None:
                stopped.add(row.ordering_key)
            published.append((row, "t", outcome(name)))
        self.sink.writing.take(batch.number, published)

    def write_step(self) -> None:
        """Begin to write down what is not yet, or go on to the next statement."""
        if self.writing is None:
            if not self.sink.writing.unwritten:
                return
            self.writing = self.sink.writing.write_all(self.store)
        try:
            self.writing.send(None)
        except StopIteration:
            self.writing = None

    def reconnect(self) -> None:
        """The connections break, wherever the loop is; then the beginning of ``run``. A publish is given up."""
        for begun in (self.reading, self.writing):
            if begun is not None:
                begun.close()
        self.reading = self.writing = self.publishing = None
        self.ready.clear()
        self._reader()
        finish(self.sink.writing.write_all(self.store))
        self.sink.lanes.forget()

    def forget(self) -> None:
        """A rescan, or the full pass: between two reads."""
        if self.reading is None and not self.ready:
            for lane in self.sink.lanes.owned.values():
                lane.forget()

    def settled_batches(self) -> list[Settled]:
        return self.sink.writing.unwritten

    def close(self) -> None:
        for begun in (self.reading, self.writing):
            if begun is not None:
                begun.close()

    def drain(self) -> None:
        """All writers end, all is due, the broker takes everything: nothing may be left."""
        for _ in range(60 + 20 * len(self.table.committed)):
            if not self.table.live and not self.sink.writing.unwritten and self.publishing is None:
                return
            self.table.now += 5.0
            for _ in range(8):
                self.read_step()
            self.admit()
            self.answer(lambda: "sent")
            for _ in range(8):
                self.write_step()
        left = sorted(self.table.live)
        raise AssertionError(f"left behind for ever: {left}")


def finish(steps: Coroutine[Any, Any, None]) -> None:
    """Run to the end without anybody between."""
    try:
        while True:
            steps.send(None)
    except StopIteration:
        return
