"""Which events are like the wanted one, and how those that are not differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, Final

import msgspec

from oncommit.message import Event

SHOWN: Final = 20
LONGEST: Final = 200


class Wanted(msgspec.Struct, frozen=True):
    """What an event should be like; ``None``, and ``...`` for the payload, stand for anything."""

    type: str | None = None
    aggregate: tuple[str, str] | None = None
    payload: Any | EllipsisType = ...
    key: str | None = None
    topic: str | None = None
    headers: dict[str, str] = {}


def matching(wanted: Wanted, events: Sequence[Event[Any]]) -> list[Event[Any]]:
    """The events that are like it."""
    return [event for event in events if not any(differences(wanted, event))]


def differences(wanted: Wanted, event: Event[Any]) -> Iterator[str]:
    """Where this event is not like it, one line for each."""
    for name in ("type", "aggregate", "key", "topic"):
        expected = getattr(wanted, name)
        if expected is not None and expected != getattr(event, name):
            yield _line(name, expected, getattr(event, name))
    for name, value in wanted.headers.items():
        if event.headers.get(name) != value:
            yield _line(f"headers[{name!r}]", value, event.headers.get(name))
    if wanted.payload is not ...:
        yield from _unequal("payload", wanted.payload, event.payload)


def complaint(wanted: Wanted, count: int | None, found: Sequence[Event[Any]], events: Sequence[Event[Any]]) -> str:
    """What the failed assertion says."""
    expected = "at least one event" if count is None else f"{count} event{'' if count == 1 else 's'}"
    lines = [f"expected {expected} with {_asked(wanted)}; found {len(found)} among {len(events)}"]
    if found:
        lines += ["these are like it:", *_listed(found)]
    elif events:
        nearest = min(events, key=lambda event: (_distance(wanted, event), -events.index(event)))
        lines += [f"the nearest, {_short(nearest)}, differs:"]
        lines += [f"  {line}" for line in list(differences(wanted, nearest))[:SHOWN]]
        lines += ["all that were added:", *_listed(events)]
    else:
        lines += [
            "nothing was added, as this connection sees it: is it the one, and the transaction the one, of the code?"
        ]
    return "\n".join(lines)


def _distance(wanted: Wanted, event: Event[Any]) -> tuple[bool, bool, int]:
    """The type says most about what an event was meant to be, then whom it happened to."""
    return (
        wanted.type not in (None, event.type),
        wanted.aggregate not in (None, event.aggregate),
        sum(1 for _ in differences(wanted, event)),
    )


def _asked(wanted: Wanted) -> str:
    asked = [
        f"{name}={_text(value)}" for name in ("type", "aggregate", "key", "topic") if (value := getattr(wanted, name))
    ]
    if wanted.headers:
        asked.append(f"headers={_text(wanted.headers)}")
    if wanted.payload is not ...:
        asked.append(f"payload={_text(wanted.payload)}")
    return ", ".join(asked) or "anything"


def _listed(events: Sequence[Event[Any]]) -> list[str]:
    more = [f"  … and {len(events) - SHOWN} more"] if len(events) > SHOWN else []
    return [f"  {_short(event)} {_text(event.payload)}" for event in events[:SHOWN]] + more


def _short(event: Event[Any]) -> str:
    whom = f" of {event.aggregate[0]}:{event.aggregate[1]}" if event.aggregate else ""
    return f"{event.type}{whom} ({event.id})"


def _unequal(path: str, expected: Any, actual: Any) -> Iterator[str]:
    """Down to the values that differ, where both sides have the same shape."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            if name not in actual:
                yield f"{path}.{name}: expected {_text(expected[name])}, and it is missing"
            elif name not in expected:
                yield f"{path}.{name}: {_text(actual[name])} was not expected"
            else:
                yield from _unequal(f"{path}.{name}", expected[name], actual[name])
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _unequal(f"{path}[{number}]", one, other)
    elif expected != actual or isinstance(expected, bool) is not isinstance(actual, bool):  # True is no 1 in JSON
        yield _line(path, expected, actual)


def _line(path: str, expected: Any, actual: Any) -> str:
    return f"{path}: expected {_text(expected)}, found {_text(actual)}"


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
