"""Names that end up in SQL or in settings, checked once where they come in."""

from __future__ import annotations

import re
from typing import Final

from oncommit.errors import ConfigError

DEFAULT_SCHEMA: Final = "oncommit"
DEFAULT_SINK: Final = "main"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SINK: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def check_schema(name: str) -> str:
    """A schema name that can stand in SQL; anything else never gets near a statement."""
    if not isinstance(name, str) or not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        msg = (
            f"schema name {name!r} cannot be used: lower-case letters, digits and underscores, "
            "not beginning with a digit or pg_, 63 characters at most"
        )
        raise ConfigError(msg)
    return name


def check_sink(name: str) -> str:
    """A sink's name: it appears in settings, metrics and on the command line."""
    if not isinstance(name, str) or not _SINK.fullmatch(name):
        msg = (
            f"sink name {name!r} cannot be used: lower-case letters, digits, underscores and hyphens, "
            "beginning with a letter, 63 characters at most"
        )
        raise ConfigError(msg)
    return name
