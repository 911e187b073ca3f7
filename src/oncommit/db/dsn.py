"""From a DSN to a connection of our own, for programs and operators; applications bring theirs.

Failure story. Connecting can fail in a dozen ways (no such host, nobody listening, wrong password, no such database,
too many clients, silence); the caller sees one, ``DatabaseUnreachable``, with the reason and without the password. A
DSN that cannot be read at all is a ``ConfigError``; its cause is dropped, since it would quote the DSN.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from oncommit.db.address import CONNECT_TIMEOUT, describe_dsn, normalise_dsn
from oncommit.errors import ConfigError, DatabaseUnreachable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]


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
