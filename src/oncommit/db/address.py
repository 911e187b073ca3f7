"""What a DSN says, read without a driver: as asyncpg takes it, and as messages may show it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from oncommit.errors import ConfigError

CONNECT_TIMEOUT: Final = 10.0

_SCHEME: Final = re.compile(r"postgres(ql)?(\+[a-z0-9_]+)?")
# Words of libpq and of SQLAlchemy's dialects to the client itself; asyncpg would send them to the server as settings.
_CLIENT_WORDS: Final = frozenset(
    {
        "async_fallback",
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "prepared_statement_cache_size",
        "prepared_statement_name_func",
        "sslcompression",
        "tcp_user_timeout",
    }
)


def normalise_dsn(dsn: str) -> str:
    """The DSN as asyncpg reads it; SQLAlchemy's ``postgresql+driver://`` is understood too.

    Example:
        >>> normalise_dsn("postgresql+asyncpg://app@db/shop?ssl=require")
        'postgresql://app@db/shop?sslmode=require'

    Raises:
        ConfigError: It is no URL of a PostgreSQL database.
    """
    scheme, separator, _ = dsn.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # What was given may hold a password in some form that we don't know: it is not repeated.
        msg = "the database must be given as a URL, such as postgresql://user:password@host:5432/database"
        raise ConfigError(msg)
    try:
        parts = urlsplit(dsn)
        pairs = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        msg = "the database's URL cannot be read; special characters in a password must be percent-encoded (@ is %40)"
        raise ConfigError(msg) from None
    query = [("sslmode" if word == "ssl" else word, value) for word, value in pairs if word not in _CLIENT_WORDS]
    # urlunsplit would swallow the slashes of a URL without a host ("postgresql://", all from libpq's environment).
    address = urlunsplit(("", "", parts.path, urlencode(query), ""))
    return f"postgresql://{parts.netloc}{address}"


def describe_dsn(dsn: str) -> str:
    """Where a DSN points, for messages: host, port, database and user, never the password or anything else.

    Example:
        >>> describe_dsn("postgresql://app:secret@db:5433/shop")
        'db:5433/shop as app'
    """
    try:
        parts = urlsplit(dsn)
        user, (host, port) = parts.username, (parts.hostname, parts.port)
    except ValueError:
        return "the given database"
    query = dict(parse_qsl(parts.query))
    host = host or query.get("host") or "the default host"
    place = f"{host}:{port}" if port else host
    database = parts.path.strip("/") or query.get("dbname") or query.get("database", "")
    return place + (f"/{database}" if database else "") + (f" as {user}" if user else "")
