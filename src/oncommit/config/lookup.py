"""Which setting is meant by a place: ``relay.lease`` by itself, ``sinks.audit.broker`` by its pattern."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from oncommit.config.definition import ANY, Definition, Place, dotted
from oncommit.config.program import definitions
from oncommit.errors import ConfigError


def find(path: Place, what: str) -> Definition:
    """The definition for this place. Raises ``ConfigError`` with what may have been meant."""
    fitting = [entry for entry in definitions() if _fits(entry.path, path)]
    if fitting:
        return min(fitting, key=lambda entry: entry.path.count(ANY))
    depth = len(path)
    if any(len(entry.path) > depth and entry.path[:depth] == path for entry in definitions()):
        msg = f"{what}: {dotted(path)} is a table, [{dotted(path)}]"
        raise ConfigError(msg)
    beside = [entry.path[depth - 1] for entry in definitions() if _fits(entry.path[: depth - 1], path[:-1])]
    names = [name for name in dict.fromkeys(beside) if name != ANY]
    near = nearest(path[-1], names, 0.5)
    hint = f"did you mean {dotted((*path[:-1], near))}?" if near else f"there are: {', '.join(names)}"
    msg = f"unknown {what}: {dotted(path)!r}; {hint}"
    raise ConfigError(msg)


def is_table(path: Place) -> bool:
    """Whether settings stand below this place, and none in it."""
    below = any(len(entry.path) > len(path) and _fits(entry.path[: len(path)], path) for entry in definitions())
    return below and not any(_fits(entry.path, path) for entry in definitions())


def nearest(word: str, words: Iterable[str], cutoff: float) -> str | None:
    """What may have been meant by a word."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), None)


def _fits(pattern: Place, path: Place) -> bool:
    return len(pattern) == len(path) and all(a in (b, ANY) for a, b in zip(pattern, path, strict=True))
