"""Bring the tables of a schema up to this version of the package, on a live system.

Failure story. Each migration is one transaction with the migrators' advisory lock in it. A migrator that dies, or whose
connection breaks, leaves nothing of the migration it was in; the next run goes on from there. Two at once: the second
waits for the lock, looks again inside it and finds the work done. A migration that cannot get its locks within
``lock_timeout`` rolls back, so that the application's writers do not queue behind it, and is tried again until
``patience`` is spent; then an error names who holds the locks. There is no way back: old code works on a newer schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg

from oncommit.db.dsn import open_connection, translated_loss
from oncommit.db.migration_files import (
    Migration,
    check_version,
    latest_version,
    migrations,
    sql,
    statements,
)
from oncommit.db.migration_status import Applied, Status
from oncommit.db.sql import query
from oncommit.errors import SchemaError
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

__all__ = [
    "Applied",
    "Migration",
    "Status",
    "check",
    "latest_version",
    "migrate",
    "migrations",
    "sql",
    "statements",
    "status",
]

LOCK_TIMEOUT: Final = 2.0
PATIENCE: Final = 60.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0
_BUSY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


async def status(target: Connection | str, schema: str = DEFAULT_SCHEMA) -> Status:
    """What was applied to a schema. Reads only; a database without our tables gives an empty status.

    Example:
        >>> (await status("postgresql://app@db/shop")).pending
        ()

    Raises:
        DatabaseUnreachable: No answer, or the login was refused.
        SchemaError: The record of migrations may not be read, or is not ours.
    """
    check_schema(schema)
    async with _connection(target) as connection:
        return Status(schema, await _applied(connection, schema))


async def check(target: Connection | str, schema: str = DEFAULT_SCHEMA) -> Status:
    """The status, if this code can work on the schema; a newer schema is fine.

    Example:
        >>> await check(connection)  # at the start of a program

    Raises:
        SchemaMissing: Never migrated.
        SchemaOutdated: Migrated by older code.
        MigrationConflict: A migration that was applied here reads otherwise in this package.
    """
    found = await status(target, schema)
    found.require()
    return found


async def migrate(
    target: Connection | str,
    schema: str = DEFAULT_SCHEMA,
    *,
    to: int | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    patience: float = PATIENCE,
) -> tuple[Migration, ...]:
    """Apply what is missing, up to version ``to``; the migrations that this call applied.

    Give it a DSN, or a connection of asyncpg. In a transaction of yours all of it commits with you.

    Args:
        target: A DSN, or an asyncpg connection.
        schema: Where the tables live.
        to: The last version to apply; default: all.
        lock_timeout: Seconds to wait for a lock before rolling back and trying again.
        patience: Seconds after which a migration that gets no lock is given up.

    Example:
        >>> await migrate("postgresql://owner@db/shop")

    Raises:
        DatabaseUnreachable: No answer, or the connection broke; running it again resumes.
        MigrationConflict: A migration that was applied here reads otherwise in this package.
        SchemaError: Rights are missing, a table of that name exists, or the locks could not be had.
        ConfigError: A schema name or version that cannot be.
    """
    check_schema(schema)
    last = check_version(latest_version() if to is None else to)
    done: list[Migration] = []
    async with _connection(target) as connection:
        before = Status(schema, await _applied(connection, schema))
        if before.conflicts:
            before.require()
        for migration in before.pending:
            if migration.version > last:
                break
            if await _patiently(connection, schema, migration, lock_timeout, patience):
                done.append(migration)
    return tuple(done)


async def _patiently(
    connection: Connection, schema: str, migration: Migration, lock_timeout: float, patience: float
) -> bool:
    """Apply one migration, trying again while others hold its locks. Whether it was we who applied it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    pause = _FIRST_PAUSE
    while True:
        try:
            return await _apply(connection, schema, migration, lock_timeout)
        except _BUSY as error:
            if loop.time() + pause > deadline:
                holders = await _blockers(connection, schema)
                msg = (
                    f"migration {migration.version} ({migration.name}) got no lock within {patience:g} s{holders}; "
                    "nothing of it was applied. End the long transaction, or run it again at a quieter time"
                )
                raise SchemaError(msg) from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _apply(connection: Connection, schema: str, migration: Migration, lock_timeout: float) -> bool:
    """One migration in one transaction. The lock comes first, then the look whether somebody else has done it."""
    try:
        async with _transaction(connection):
            await connection.fetchrow(query("migrate/begin", schema), f"{max(1, round(lock_timeout * 1000))}ms")
            await connection.execute(query("migrate/lock", schema))
            if any(entry.version == migration.version for entry in await _applied(connection, schema)):
                return False
            await connection.execute(migration.statement(schema))
            return True
    except asyncpg.InsufficientPrivilegeError as error:
        msg = (
            f'{_sentence(error)}; migrate as the owner of schema "{schema}", '
            f"or let an administrator run: CREATE SCHEMA {schema} AUTHORIZATION <role>"
        )
        raise SchemaError(msg) from error
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
        msg = (
            f'schema "{schema}" already holds something of that name that oncommit did not make: {_sentence(error)}; '
            "choose another schema name (--schema)"
        )
        raise SchemaError(msg) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        msg = "this server takes no writes (a standby, or default_transaction_read_only is on); connect to the primary"
        raise SchemaError(msg) from error


async def _applied(connection: Connection, schema: str) -> tuple[Applied, ...]:
    """The record of migrations; empty where there is none. A failed look harms no transaction of the caller's."""
    try:
        async with connection.transaction():
            rows = await connection.fetch(query("migrate/applied", schema))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return ()
    except asyncpg.InsufficientPrivilegeError as error:
        msg = f'{_sentence(error)}; this role needs USAGE on schema "{schema}" and SELECT on its tables'
        raise SchemaError(msg) from error
    except (asyncpg.UndefinedColumnError, asyncpg.WrongObjectTypeError) as error:
        msg = f'schema "{schema}" has a table "migration" that is not ours; choose another schema name (--schema)'
        raise SchemaError(msg) from error
    return tuple(Applied(**row) for row in rows)


async def _blockers(connection: Connection, schema: str) -> str:
    async with connection.transaction():
        rows = await connection.fetch(query("migrate/blockers", schema))
    named = [f"process {row['pid']} ({row['application']}, {row['state']}, since {row['since']})" for row in rows]
    return f"; held by {', '.join(named)}" if named else ""


def _transaction(connection: Connection) -> asyncpg.transaction.Transaction:
    """Read committed, so that the look after the wait for the lock sees what was committed meanwhile."""
    if connection.is_in_transaction():
        return connection.transaction()
    return connection.transaction(isolation="read_committed")


@asynccontextmanager
async def _connection(target: Connection | str) -> AsyncIterator[Connection]:
    if isinstance(target, str):
        async with open_connection(target, application="oncommit migrate") as connection:
            yield connection
    else:
        with translated_loss():
            yield target


def _sentence(error: BaseException) -> str:
    return str(error).splitlines()[0]
