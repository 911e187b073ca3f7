"""What a Redis URL says: where the server is, for the client, and how to publish, for us."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from oncommit.errors import ConfigError

LARGEST: Final = 512 * 1024 * 1024
"""Redis takes no longer word by default (``proto-max-bulk-len``)."""


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to publish. Each is a parameter of the URL: ``redis://localhost:6379/0?maxlen=1000000``."""

    maxlen: int | None = None
    """Let Redis drop the oldest entries of a stream above about so many (``MAXLEN ~``), read or not."""
    create: bool = True
    """Whether a stream that is not there is made; ``no`` holds its events until somebody makes it (``NOMKSTREAM``)."""
    scripts: bool = True
    """Whether it may be sent a script; ``no`` where the user may not run any, which costs a round trip for each further
    message of a key in a batch. Found out all the same where it is not said."""
    replicas: int = 0
    """Wait until so many replicas have it (``WAIT``)."""
    max_message: int | None = None
    """In bytes; what is larger is a dead letter."""


def read_url(url: str) -> tuple[str, RedisSettings]:
    """The URL as redis-py reads it, and ours. Raises ``ConfigError``, which does not repeat the URL."""
    address, mark, query = url.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError:
        raise ConfigError("the parameters of the Redis URL cannot be read: ?name=value&name=value") from None
    ours = {name: value for name, value in pairs if name in RedisSettings.__struct_fields__}
    theirs = [pair for pair in pairs if pair[0] not in ours]
    settings = RedisSettings(
        maxlen=_number("maxlen", ours, least=1),
        create=_flag("create", ours),
        scripts=_flag("scripts", ours),
        replicas=_number("replicas", ours, least=0) or 0,
        max_message=_number("max_message", ours, least=1),
    )
    return f"{address}?{urlencode(theirs)}" if theirs else address, settings


def _number(name: str, given: dict[str, str], *, least: int) -> int | None:
    if name not in given:
        return None
    value = given[name]
    if not (value.isascii() and value.isdigit() and len(value) < 16 and int(value) >= least):  # noqa: PLR2004 - of digits
        raise ConfigError(f"{name} in the Redis URL must be a whole number, at least {least}")
    return int(value)


def _flag(name: str, given: dict[str, str]) -> bool:
    value = given.get(name, "yes").lower()
    if value not in ("yes", "no"):
        raise ConfigError(f"{name} in the Redis URL is yes or no")
    return value == "yes"
