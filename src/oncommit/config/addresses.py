"""Where things are, as far as one can see without asking them. Errors do not repeat a URL: it may hold a password."""

from __future__ import annotations

import re
from typing import Final

from oncommit.errors import ConfigError

_DATABASE: Final = re.compile(r"postgres(ql)?(\+[a-z0-9_]+)?://")
_REDIS: Final = re.compile(r"(rediss?|unix)://")


def check_database(url: str) -> str:
    """A URL of a PostgreSQL database."""
    if not _DATABASE.match(url):
        msg = "must be a URL such as postgresql://user:password@host:5432/database"
        raise ConfigError(msg)
    return url


def check_redis(url: str) -> str:
    """A URL of a Redis server."""
    if not _REDIS.match(url):
        msg = "must be a URL such as redis://user:password@host:6379/0"
        raise ConfigError(msg)
    return url
