"""How long things are kept on a database: look, and change it for all programs at once.

Failure story. A change is one transaction that locks the record first, so that two changes come one after the other,
each checked against what it finds. Programs read it as they go; none has to be restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from oncommit.db.dsn import translated_loss
from oncommit.db.failures import translate
from oncommit.db.sql import query
from oncommit.errors import ConfigError, OncommitError, SchemaError
from oncommit.identifiers import DEFAULT_SCHEMA
from oncommit.retention import Retention, parse_retention, shortened

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

TIMEOUT: Final = 30.0


async def read_retention(
    connection: Connection, *, schema: str = DEFAULT_SCHEMA, timeout: float = TIMEOUT
) -> Retention:
    """How long things are kept on this database.

    Example:
        >>> (await read_retention(connection)).archive_days
        14

    Raises:
        ConfigError: What is on record cannot be used; nothing expires until it is changed.
        SchemaMissing: The database was never migrated.
    """
    async with _asking(schema, timeout):
        rows = await connection.fetch(query("retention/read", schema))
    return parse_retention(rows[0]["retention"]) if rows else Retention()


async def change_retention(
    connection: Connection,
    *,
    schema: str = DEFAULT_SCHEMA,
    timeout: float = TIMEOUT,
    shorten: bool = False,
    **days: int,
) -> tuple[Retention, Retention]:
    """Keep things for so many days from now on, on all of this database; what held before, and what holds now.

    Example:
        >>> before, after = await change_retention(connection, archive_days=30, inbox_days=31)

    Args:
        connection: Outside of a transaction, or in one of yours.
        schema: Where the tables are.
        timeout: In seconds.
        shorten: Whether something may be kept for fewer days than before, which loses what is older.
        **days: Fields of ``Retention``; the others stay as they are.

    Raises:
        ConfigError: They do not go together, or something would be shortened.
    """
    fields = Retention.__struct_fields__
    for name in days:
        if name not in fields:
            raise ConfigError(f"there is no {name!r}; there are {', '.join(fields)}")
    async with _asking(schema, timeout), connection.transaction():
        text = msgspec.json.encode(Retention()).decode()
        await connection.execute(query("retention/agree", schema), text)
        (row,) = await connection.fetch(query("retention/lock", schema))
        before = _usable(row["retention"])
        after = Retention(**(msgspec.structs.asdict(before) | days))
        if (fewer := shortened(before, after)) and not shorten:
            raise ConfigError(f"this shortens {' and '.join(fewer)}: what is older goes for good; say so (--yes)")
        if after != before:
            await connection.execute(query("retention/change", schema), msgspec.json.encode(after).decode())
    return before, after


def _usable(text: str) -> Retention:
    """What is on record; the defaults where it cannot be used, since this is how one gets out of that."""
    try:
        return parse_retention(text)
    except ConfigError:
        return Retention()


@asynccontextmanager
async def _asking(schema: str, timeout: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            with translated_loss():
                yield
    except TimeoutError as error:
        raise OncommitError(f"the database did not answer within {timeout:g} s") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f'{error}; this role needs rights on "{schema}".setting') from error
    except asyncpg.PostgresError as error:
        if ours := translate(error, schema):
            raise ours from error
        raise
