"""Kinds of values: how each is written in a file, a variable or an argument, and how it is shown. Pure.

A file has numbers and booleans of its own; variables and arguments are text. Every kind reads both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from oncommit.errors import ConfigError

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_TIMES: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class Kind(msgspec.Struct, frozen=True):
    """One kind of value."""

    name: str
    """As the documentation calls it."""
    read: Callable[[object], Any]
    """From what was written to the value; raises ``ConfigError`` that says what it must be."""
    show: Callable[[Any], str] = str
    """The value as one would write it."""


def text(check: Callable[[str], object] | None = None, *, name: str = "text") -> Kind:
    """Text; ``check`` raises ``ConfigError`` for what cannot be."""

    def read(written: object) -> str:
        if not isinstance(written, str):
            raise ConfigError(f"must be text, not {type(written).__name__}")
        if check is not None:
            check(written)
        return written

    return Kind(name, read)


def names(check: Callable[[str], object]) -> Kind:
    """Several names: a list in a file, else separated by spaces."""

    def read(written: object) -> tuple[str, ...]:
        parts = written.split() if isinstance(written, str) else written
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"must be a list of names, not {type(written).__name__}")
        for part in parts:
            check(part)
        return tuple(dict.fromkeys(parts))

    return Kind("names", read, " ".join)


def choice(*words: str) -> Kind:
    """One of these words."""

    def read(written: object) -> str:
        if written not in words:
            raise ConfigError(f"must be one of {', '.join(words)}, not {written!r:.60}")
        return str(written)

    return Kind(" or ".join(f"`{word}`" for word in words), read)


def whole(least: int = 1) -> Kind:
    """A whole number."""

    def read(written: object) -> int:
        value: object = written
        if isinstance(written, str) and re.fullmatch(r"\d{1,18}", written.strip()):
            value = int(written)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"must be a whole number {_at_least(least)}, not {written!r:.60}")
        return value

    return Kind("whole number", read)


def _read_seconds(written: object) -> float:
    value = _amount(written, _TIMES)
    if value is None:
        raise ConfigError(f"must be a duration above zero, such as 500ms, 30s, 5m, 2h or 14d, not {written!r:.60}")
    return value


def _show_seconds(value: float) -> str:
    for unit in ("d", "h", "m", "s"):
        if value >= _TIMES[unit] and (value / _TIMES[unit]).is_integer():
            return f"{int(value / _TIMES[unit])}{unit}"
    exact = Decimal(repr(value))
    return f"{exact:f}s" if value >= 1 else f"{(exact * 1000).normalize():f}ms"


def _read_size(written: object) -> int:
    value = _amount(written, _SIZES)
    if value is None or not value.is_integer():
        raise ConfigError(f"must be a number of bytes above zero, such as 512KiB or 8MiB, not {written!r:.60}")
    return int(value)


def _show_size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value >= _SIZES[unit] and value % _SIZES[unit] == 0:
            return f"{value // _SIZES[unit]}{unit}"
    return f"{value}B"


def _read_switch(written: object) -> bool:
    if isinstance(written, bool):
        return written
    word = written.strip().lower() if isinstance(written, str) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ConfigError(f"must be true or false, not {written!r:.60}")


SECONDS: Final = Kind("duration", _read_seconds, _show_seconds)
"""Seconds, as a number or with a unit."""
SIZE: Final = Kind("size", _read_size, _show_size)
"""Bytes, as a number or with a unit."""
SWITCH: Final = Kind("true or false", _read_switch, lambda value: "true" if value else "false")


def _amount(written: object, units: dict[str, Any]) -> float | None:
    """A number with a unit, above zero and finite; None for anything else."""
    if isinstance(written, str) and (found := _AMOUNT.fullmatch(written.strip())) and found[2] in units:
        value = float(found[1]) * units[found[2]]
    elif isinstance(written, int | float) and not isinstance(written, bool):
        value = float(written)
    else:
        return None
    return value if 0 < value < math.inf else None


def _at_least(least: int) -> str:
    return "above zero" if least == 1 else f"of at least {least}"
