"""From a DSN to a connection of our own, for programs and operators; applications bring theirs.

Failure story. Connecting can fail in a dozen ways (no such host, nobody listening, wrong password, no such database,
too many clients, silence); the caller sees one, ``DatabaseUnreachable``, with the reason and without the password. A
DSN that cannot be read at all is a ``ConfigError``; its cause is dropped, since it would quote the DSN.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from oncommit.errors import ConfigError, DatabaseUnreachable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]

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


@asynccontextmanager
async def open_connection(
    dsn: str, *, timeout: float = CONNECT_TIMEOUT, application: str = "oncommit"
) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection that works through PgBouncer in transaction mode, closed at the end of the block.

    Example:
        >>> async with open_connection("postgresql://app@db/shop") as connection:
        ...     await connection.fetchval("SELECT 1")

    Raises:
        DatabaseUnreachable: No answer, or the login was refused.
        ConfigError: The DSN cannot be read.
    """
    connection = await _connect(normalise_dsn(dsn), timeout, application)
    try:
        with translated_loss(dsn):
            yield connection
    finally:
        try:
            await connection.close(timeout=timeout)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


async def _connect(dsn: str, timeout: float, application: str) -> asyncpg.Connection[Any]:
    try:
        return await asyncpg.connect(
            dsn,
            timeout=timeout,
            # A pooler in transaction mode would prepare a statement on one server and run it on another.
            statement_cache_size=0,
            server_settings={"application_name": application},
        )
    except TimeoutError as error:
        msg = f"PostgreSQL at {describe_dsn(dsn)} did not answer within {timeout:g} s; check host and port"
        raise DatabaseUnreachable(msg) from error
    except (OSError, asyncpg.PostgresError) as error:
        raise unreachable(dsn, error) from error
    except (ValueError, asyncpg.InterfaceError):
        msg = f"the database's URL cannot be used ({describe_dsn(dsn)}); form: postgresql://user:password@host:5432/database"
        raise ConfigError(msg) from None


class translated_loss:  # noqa: N801 - reads as the context manager that it is
    """Turn the loss of a connection inside the block into ``DatabaseUnreachable``."""

    def __init__(self, dsn: str | None = None) -> None:
        self._dsn = dsn

    def __enter__(self) -> None:
        """Nothing to do yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Translate what says that the connection is gone; leave everything else alone."""
        if isinstance(error, _LOST) or (isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)):
            raise unreachable(self._dsn, error) from error


# InternalClientError: the server's farewell has been read and the end of the connection has not, when the next
# statement comes; asyncpg then finds itself in a state that it does not know.
_LOST: Final = (
    ConnectionError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)


def unreachable(dsn: str | None, error: BaseException) -> DatabaseUnreachable:
    """The error for a database that does not answer, with the reason and the next step."""
    if isinstance(error, DatabaseUnreachable):
        return error
    where = f" at {describe_dsn(dsn)}" if dsn else ""
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        step = "check user and password"
    elif isinstance(error, asyncpg.InvalidCatalogNameError):
        step = "create the database first, or check its name"
    elif isinstance(error, asyncpg.TooManyConnectionsError):
        step = "too many clients are connected; raise max_connections or use a pooler"
    else:
        step = "check that it is running and that host and port are right"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DatabaseUnreachable(f"PostgreSQL{where} cannot be reached: {reason}; {step}")
