"""The tree drawn at the head of errors.py is the tree there is."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from oncommit import errors
from oncommit.errors import InvalidEvent, OncommitError

LINE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)\b(?P<rest>.*)$")
ALSO = re.compile(r"\(also (?P<names>[\w, ]+)\)")


def drawn() -> dict[str, tuple[str | None, set[str]]]:
    """Each error with its parent and its builtin bases, from the drawing."""
    doc = inspect.getdoc(errors) or ""
    found: dict[str, tuple[str | None, set[str]]] = {}
    path: list[str] = []
    for line in doc[doc.index("OncommitError") :].split("\n\n", 1)[0].splitlines():
        matched = LINE.match(line.strip("\n"))
        assert matched, line
        depth = len(matched["indent"].removeprefix("    ")) // 4 if found else 0
        path = [*path[:depth], matched["name"]]
        also = ALSO.search(matched["rest"])
        bases = {name.strip() for name in also["names"].split(",")} if also else set()
        found[matched["name"]] = (path[depth - 1] if depth else None, bases)
    return found


def real() -> dict[str, tuple[str | None, set[str]]]:
    """The same from the classes. A builtin base is named where it first comes in."""
    found: dict[str, tuple[str | None, set[str]]] = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, OncommitError):
            ours = [base.__name__ for base in kind.__bases__ if issubclass(base, OncommitError)]
            assert len(ours) <= 1, name
            bases = {base.__name__ for base in kind.__bases__ if hasattr(builtins, base.__name__)} - {"Exception"}
            found[name] = (ours[0] if ours else None, bases)
    return found


def test_the_drawing_is_the_tree() -> None:
    assert {name: parent for name, (parent, _) in drawn().items()} == {n: parent for n, (parent, _) in real().items()}


@pytest.mark.parametrize("name", sorted(real()))
def test_the_drawing_names_the_builtin_bases(name: str) -> None:
    assert drawn()[name][1] == real()[name][1]


@pytest.mark.parametrize("name", sorted(real()))
def test_every_error_says_when_it_is_raised(name: str) -> None:
    doc = getattr(errors, name).__doc__
    assert doc
    assert doc.endswith(".")


def test_an_invalid_event_names_field_and_event() -> None:
    error = InvalidEvent("priority", "must be less", event="'order.placed' (42)")
    assert (error.field, error.problem, error.event) == ("priority", "must be less", "'order.placed' (42)")
    assert str(error) == "event 'order.placed' (42), field 'priority': must be less"
    assert str(InvalidEvent("type", "is empty")) == "field 'type': is empty"


def test_an_invalid_event_survives_a_worker_process() -> None:
    error = errors.PayloadError("payload", "is no JSON", event="'x' (1)")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.field, copy.event) == (type(error), str(error), error.field, error.event)
