"""Random transactions, what should come of them, and the running of both side by side.

A program is a list of transactions. Each writes business rows together with their events, in savepoints or not, adds
events again that were added before, and ends in a commit, a rollback or a crash. The model knows nothing of databases:
it is a stack of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from oncommit import Event, Outbox
from oncommit.testing.proxy import Proxy
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import Writer

PLACE = "INSERT INTO orders (event_id, key, tag) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
KEYS = ("a", "b", "c")
MOST_REQUESTS = 24


@dataclass(frozen=True)
class Write:
    """Business rows and their events, added in one call."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Again:
    """The row and the event of an earlier write once more, whatever became of them."""

    which: int


@dataclass(frozen=True)
class Step:
    """Of savepoints: "savepoint", "release", "rollback_to"."""

    name: str


@dataclass(frozen=True)
class Crash:
    """How the connection dies: "killed" on the server, "cut" on the way, "unanswered" with the request done."""

    how: str
    after: int
    """Requests from the beginning of the transaction; for "killed", steps."""


@dataclass(frozen=True)
class Program:
    """One transaction."""

    steps: tuple[Write | Again | Step, ...]
    end: str
    crash: Crash | None = None


def transactions() -> st.SearchStrategy[list[Program]]:
    """Several transactions on one connection, some of which crash."""
    write = st.builds(Write, st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(tuple))
    again = st.builds(Again, st.integers(0, 9))
    step = st.builds(Step, st.sampled_from(["savepoint", "savepoint", "release", "rollback_to"]))
    steps = st.lists(st.one_of(write, write, again, step), min_size=1, max_size=7).map(tuple)
    crash = st.one_of(
        st.builds(Crash, st.just("killed"), st.integers(0, 8)),
        st.builds(Crash, st.sampled_from(["cut", "unanswered"]), st.integers(0, MOST_REQUESTS)),
    )
    end = st.sampled_from(["commit", "commit", "commit", "rollback", "close"])
    program = st.one_of(st.builds(Program, steps, end), st.builds(Program, steps, st.just("commit"), crash))
    return st.lists(program, min_size=1, max_size=4)


Added = tuple[str, UUID]


@dataclass
class Model:
    """What should be there: the committed events in order, and above them one list for each open savepoint."""

    committed: list[Added] = field(default_factory=list)
    frames: list[list[Added]] = field(default_factory=list)

    def seen(self) -> list[Added]:
        """What the open transaction sees."""
        return self.committed + [added for frame in self.frames for added in frame]

    def add(self, added: Added) -> bool:
        """Whether it is new."""
        if added in self.seen():
            return False
        self.frames[-1].append(added)
        return True

    def commit(self) -> None:
        self.committed = self.seen()
        self.frames.clear()

    def would_be(self) -> list[Added]:
        """What is there if the commit whose answer was lost has happened."""
        return self.seen()


class Violation(AssertionError):
    """Events and business rows disagree."""


class Lost(Exception):
    """The connection died under the program."""


@dataclass
class Bench:
    """A writer at work, with all that is needed to judge it."""

    writer: Writer
    observer: Observer
    proxy: Proxy
    outbox: Outbox
    tag: str
    add: Callable[..., tuple[UUID, ...]] | None = None
    """Instead of the outbox's, for testing the test."""
    model: Model = field(default_factory=Model)
    events: list[Event[Any]] = field(default_factory=list)
    lost: int = 0

    def run(self, program: Program) -> None:
        """One transaction, then the comparison."""
        crash = program.crash
        pid = self.writer.pid() if crash and crash.how == "killed" else 0
        if pid:
            self.writer.rollback()
        self._arm(crash)
        committing = False
        self.model.frames = [[]]
        try:
            with _lost_connections(self._struck):
                self.writer.begin()
                for number, step in enumerate(program.steps):
                    if pid and crash and crash.after == number:
                        self._kill(pid)
                    self._step(step)
                if pid and not self._dead:
                    self._kill(pid)
                committing = program.end == "commit"
                self._end(program.end)
        except Lost:
            self._after_loss(committing=committing)
        else:
            if self._dead:  # a transaction that had nothing to say did not notice
                self.writer.reconnect()
        self.proxy.heal()
        self._dead = False
        self.compare()

    _dead = False

    def _arm(self, crash: Crash | None) -> None:
        if crash and crash.how == "cut":
            self.proxy.cut_request(after=crash.after)
        elif crash and crash.how == "unanswered":
            self.proxy.drop_answer(after=crash.after)

    def _kill(self, pid: int) -> None:
        self.observer.kill(pid)
        self._dead = True

    def _struck(self) -> bool:
        return self._dead or self.proxy.struck

    def _step(self, step: Write | Again | Step) -> None:
        if isinstance(step, Write):
            fresh = [self._event(key) for key in step.keys]
            self.events.extend(fresh)
            self._write(*fresh)
        elif isinstance(step, Again):
            if self.events:
                self._write(self.events[step.which % len(self.events)])
        elif step.name == "savepoint":
            self.writer.savepoint()
            self.model.frames.append([])
        elif len(self.model.frames) > 1:
            getattr(self.writer, step.name)()
            frame = self.model.frames.pop()
            if step.name == "release":
                self.model.frames[-1].extend(frame)

    def _event(self, key: str) -> Event[Any]:
        return Event("order.placed", aggregate=(self.tag, key), payload={"key": key})

    def _write(self, *events: Event[Any]) -> None:
        for event in events:
            self.writer.run(PLACE, event.id, event.aggregate_id, self.tag)
        added = self.add(self.writer, *events) if self.add else self.writer.add(self.outbox, *events)
        new = [event.id for event in events if self.model.add((event.aggregate_id or "", event.id))]
        if list(added) != new:
            msg = f"add said {added} were new; the model says {new}"
            raise Violation(msg)

    def _end(self, end: str) -> None:
        if end == "commit":
            self.writer.commit()
            self.model.commit()
        elif end == "rollback":
            self.writer.rollback()
        else:
            self.writer.reconnect()
        self.model.frames.clear()

    def _after_loss(self, *, committing: bool) -> None:
        """Whether a commit that was not answered has happened is known to the business rows alone."""
        self.lost += 1
        self.proxy.heal()
        self.writer.reconnect()
        self._wait_until_alone()
        if committing:
            would_be = self.model.would_be()
            rows, _ = self.observer.tagged(self.tag)
            if set(rows) == {event_id for _, event_id in would_be}:
                self.model.committed = would_be
        self.model.frames.clear()

    def _wait_until_alone(self) -> None:
        """Until no process on the server still works for a connection that was lost."""
        for pid in self.observer.others(self.writer.pid()):
            self.observer.kill(pid)
        self.writer.rollback()

    def compare(self) -> None:
        """An event is there exactly when its row is, and each key has its events in the order of the program."""
        rows, events = self.observer.tagged(self.tag)
        if set(rows) != {event_id for _, event_id in events} or len(rows) != len(events):
            msg = f"rows {sorted(rows)} but events {sorted(event_id for _, event_id in events)}"
            raise Violation(msg)
        for key in KEYS:
            found = [event_id for k, event_id in events if k == key]
            expected = [event_id for k, event_id in self.model.committed if k == key]
            if found != expected:
                msg = f"key {key}: {found} in the outbox, {expected} committed"
                raise Violation(msg)


@contextmanager
def _lost_connections(struck: Callable[[], bool]) -> Iterator[None]:
    """Whatever a driver raises once its connection was taken away is a loss; before that it is a fault of ours."""
    try:
        yield
    except Violation:
        raise
    except Exception as error:
        if not struck():
            raise
        raise Lost from error
