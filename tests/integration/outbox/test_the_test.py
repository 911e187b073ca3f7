"""The property's own checker must be able to fail: an outbox that leaves the caller's transaction is caught.

Each class below breaks one promise of ``add`` over the real database. If one of them passed, the green property test
would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from oncommit import Event, Outbox
from oncommit.testing.proxy import Proxy
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.programs import Again, Bench, Crash, Program, Step, Violation, Write
from tests.integration.outbox.writers import WRITERS, Writer

ROLLED_BACK = Program((Write(("a",)),), "rollback")
COMMITTED = Program((Write(("a", "b", "a")),), "commit")
CRASHED = Program((Write(("a",)),), "commit", Crash("killed", 1))
CLOSED = Program((Write(("a",)),), "close")
SAVEPOINT = Program((Write(("a",)), Step("savepoint"), Write(("b",)), Step("rollback_to")), "commit")
TWICE = Program((Write(("a",)), Again(0)), "commit")


class Elsewhere:
    """Writes on a connection of its own, and commits there: what the transaction does no longer matters."""

    def __init__(self, kind: type[Writer], dsn: str) -> None:
        self._own = kind(dsn)
        self._outbox = Outbox()

    def add(self, writer: Writer, *events: Event[Any]) -> tuple[UUID, ...]:
        self._own.begin()
        added = self._own.add(self._outbox, *events)
        self._own.commit()
        return added

    def close(self) -> None:
        self._own.close()


class Late(Elsewhere):
    """Keeps the events for another day, as an after-commit publisher would that dies in between."""

    def add(self, writer: Writer, *events: Event[Any]) -> tuple[UUID, ...]:
        return tuple(event.id for event in events)


class Reversed(Elsewhere):
    """Writes the events of a call last first."""

    def add(self, writer: Writer, *events: Event[Any]) -> tuple[UUID, ...]:
        return tuple(reversed(writer.add(self._outbox, *reversed(events))))


class Renaming(Elsewhere):
    """Gives each event a new id, so that adding it again adds it again."""

    def add(self, writer: Writer, *events: Event[Any]) -> tuple[UUID, ...]:
        writer.add(self._outbox, *[Event(event.type, aggregate=event.aggregate) for event in events])
        return tuple(event.id for event in events)


@pytest.fixture(params=WRITERS, ids=lambda kind: kind.form)
def broken(
    request: pytest.FixtureRequest, far_writer_of: Callable[[type[Writer]], Writer], observer: Observer, proxy: Proxy
) -> Callable[[type[Elsewhere]], Bench]:
    """A bench whose outbox is one of the above, over each form."""
    kind = request.param
    writer = far_writer_of(kind)

    def make(wrong: type[Elsewhere]) -> Bench:
        stand_in = wrong(kind, writer.dsn)
        request.addfinalizer(stand_in.close)
        return Bench(writer, observer, proxy, Outbox(), tag=uuid4().hex, add=stand_in.add)

    return make


@pytest.mark.parametrize(
    "program", [ROLLED_BACK, CRASHED, CLOSED, SAVEPOINT], ids=["rollback", "crash", "close", "savepoint"]
)
def test_writing_on_another_connection_is_caught(broken: Callable[[type[Elsewhere]], Bench], program: Program) -> None:
    with pytest.raises(Violation, match=r"rows .* but events"):
        broken(Elsewhere).run(program)


@pytest.mark.parametrize(("wrong", "program"), [(Late, COMMITTED), (Reversed, COMMITTED), (Renaming, TWICE)])
def test_losing_reordering_and_doubling_are_caught(
    broken: Callable[[type[Elsewhere]], Bench], wrong: type[Elsewhere], program: Program
) -> None:
    with pytest.raises(Violation):
        broken(wrong).run(program)


def test_the_programs_themselves_are_fine(far_writer: Writer, observer: Observer, proxy: Proxy) -> None:
    for program in (ROLLED_BACK, CRASHED, CLOSED, SAVEPOINT, COMMITTED, TWICE):
        Bench(far_writer, observer, proxy, Outbox(), tag=uuid4().hex).run(program)
