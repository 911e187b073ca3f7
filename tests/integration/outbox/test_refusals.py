"""W6: bad input is an error of ours, before the database is touched, and the transaction goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf, nan
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from oncommit import Event, OncommitError, Outbox
from oncommit.db.failures import translate
from oncommit.errors import (
    DuplicateEvent,
    InvalidEvent,
    PayloadError,
    UnknownSink,
)
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.usable import assert_usable
from tests.integration.outbox.writers import (
    Writer,
)

OUTBOX = Outbox()


class Bare:
    """Has no JSON form."""


SAME = uuid4()
BAD_EVENTS: dict[str, tuple[type[OncommitError], str, Callable[[], list[Any]]]] = {
    "unserialisable": (PayloadError, "'a' .*Bare has no JSON form", lambda: [Event("a", payload={"x": Bare()})]),
    "itself": (PayloadError, "'a' .*refers to itself", lambda: [Event("a", payload=_loop())]),
    "NUL": (PayloadError, r"'a' .*payload\.x\[0\].*NUL", lambda: [Event("a", payload={"x": ["\0"]})]),
    "surrogate": (PayloadError, r"'a' .*payload\.x.*surrogate", lambda: [Event("a", payload={"x": "\ud800"})]),
    "20 MB": (PayloadError, "'a' .*20971522 bytes.*8388608", lambda: [Event("a", payload="x" * (20 << 20))]),
    "20 MB of bytes": (PayloadError, "'a' .*20971520 bytes", lambda: [Event("a", payload=bytes(20 << 20))]),
    "NaN": (PayloadError, r"'a' .*payload\.x.*NaN", lambda: [Event("a", payload={"x": nan})]),
    "infinity": (PayloadError, r"'a' .*payload\.x.*infinity", lambda: [Event("a", payload={"x": inf})]),
    "naive": (InvalidEvent, "'a' .*'not_before'.*time zone", lambda: [Event("a", not_before=datetime(2030, 1, 1))]),  # noqa: DTZ001
    "empty type": (InvalidEvent, "'type'.*empty", lambda: [Event("")]),
    "long type": (InvalidEvent, "'type'.*1000 characters long.*255", lambda: [Event("a" * 1000)]),
    "NUL in a key": (InvalidEvent, "'a' .*'key'.*U[+]0000", lambda: [Event("a", key="\0")]),
    "surrogate in an id": (InvalidEvent, "'aggregate id'.*U[+]D800", lambda: [Event("a", aggregate=("o", "\ud800"))]),
    "unknown sink": (UnknownSink, "'a' .*'sink'.*'other' is not declared", lambda: [Event("a", sink="other")]),
    "twice in one call": (DuplicateEvent, f"{SAME}.*'id'.*twice", lambda: [Event("a", id=SAME), Event("b", id=SAME)]),
    "no event": (InvalidEvent, "a dict is no Event", lambda: [{"type": "a"}]),
    "a class": (InvalidEvent, "no Event", lambda: [Event]),
}  # fmt: skip


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("case", BAD_EVENTS)
def test_a_wrong_event_leaves_the_transaction_alone(writer: Writer, observer: Observer, case: str) -> None:
    expected, message, make = BAD_EVENTS[case]
    writer.begin()
    before = Event("before")
    writer.add(OUTBOX, before)
    with pytest.raises(expected, match=message):
        writer.add(OUTBOX, Event("fine"), *make())
    assert_usable(writer, observer)
    assert observer.value("SELECT array_agg(event_type ORDER BY id) FROM oncommit.outbox") == ["before", "order.placed"]


def test_check_says_the_same_without_a_connection() -> None:
    for expected, message, make in BAD_EVENTS.values():
        with pytest.raises(expected, match=message):
            OUTBOX.check(*make())


# -- What is not ours to translate


def test_a_deadlock_stays_the_drivers() -> None:
    assert translate(psycopg.errors.DeadlockDetected("deadlock"), "oncommit") is None
    assert translate(asyncpg.DeadlockDetectedError("deadlock"), "oncommit") is None


def test_a_moment_long_ago_is_not_delayed(writer: Writer, observer: Observer) -> None:
    writer.begin()
    writer.add(OUTBOX, Event("order.placed", not_before=datetime(1900, 1, 1, tzinfo=UTC)))
    writer.commit()
    assert len(observer.live()) == 1
