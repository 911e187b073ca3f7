"""Names that end up in SQL or in settings, checked once where they come in."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from oncommit.errors import ConfigError

DEFAULT_SCHEMA: Final = "oncommit"
DEFAULT_SINK: Final = "main"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SINK: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SERVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


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


# ── Where wake-ups go ────────────────────────────────────────────────────────────────────────────────

_LONGEST_CHANNEL: Final = 63


def wake_channel(schema: str) -> str:
    """The channel of NOTIFY on which writers wake the relays of a schema. PostgreSQL cuts no name short here.

    Example:
        >>> wake_channel("oncommit")
        'oncommit_wake'
    """
    name = f"{check_schema(schema)}_wake"
    if len(name) <= _LONGEST_CHANNEL:
        return name
    # Longer names are refused by pg_notify. The digest keeps schemas apart that begin alike.
    digest = sha256(schema.encode()).hexdigest()[:16]
    return f"{schema[: _LONGEST_CHANNEL - 22]}_{digest}_wake"


def wake_list(service: str) -> str:
    """The list in Redis into which writers of a service push wake-ups.

    Example:
        >>> wake_list("shop")
        'outbox:wake:shop'
    """
    return f"outbox:wake:{check_service(service)}"


def check_service(name: str) -> str:
    """The name of a service, as part of a key in Redis."""
    if not isinstance(name, str) or not _SERVICE.fullmatch(name):
        msg = (
            f"service name {name!r} cannot be used: letters, digits, underscores, hyphens and dots, "
            "beginning with a letter or digit, 63 characters at most"
        )
        raise ConfigError(msg)
    return name
