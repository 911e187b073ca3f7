"""Sizes on the command line."""

from __future__ import annotations

from typing import Final

import click

_UNITS: Final = {"": 1, "kB": 1000, "MB": 1_000_000}


def size_in_bytes(size: str) -> int:
    """``300``, ``10kB``, ``1MB``."""
    number, unit = size.rstrip("kMB"), size.lstrip("0123456789")
    if not number.isdecimal() or unit not in _UNITS:
        raise click.BadParameter(f"{size!r}: say 300, 10kB or 1MB", param_hint="--payload")
    return int(number) * _UNITS[unit]
