"""Where a benchmark runs: a PostgreSQL of its own, or a schema of its own in a database that was given.

Failure story. Our own server ends with this process, however that ends. In a database that was given, everything lives
in one schema, `oncommit_bench_<random>`, dropped at the end; a run that is killed leaves it behind, to be dropped by
hand at any time.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from oncommit.db.address import normalise_dsn
from oncommit.db.dsn import open_connection
from oncommit.db.migrate import migrate
from oncommit.testing.bench.workload import ACCOUNTS, BUSINESS_TABLES, FILL_ACCOUNTS
from oncommit.testing.servers import postgres
from oncommit.testing.servers.sql import run_async

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

POSTGRES: Final = 18


class Place(msgspec.Struct, frozen=True):
    """A database and a schema in it, with the business tables and ours."""

    dsn: str
    schema: str
    durable: bool
    about: dict[str, str | int | float | bool]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection with the benchmark's schema on its path."""
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": self.schema})
        try:
            yield connection
        finally:
            await connection.close()

    def reset(self) -> None:
        """Empty the tables and write everything out, so that each measurement starts alike."""
        run_async(self._reset)

    async def _reset(self) -> None:
        async with self.connection() as connection:
            await connection.execute("TRUNCATE bench_order, bench_account, outbox, bench_usual_outbox RESTART IDENTITY")
            await connection.execute(FILL_ACCOUNTS, ACCOUNTS)
            await connection.execute("VACUUM ANALYZE bench_account")
            try:
                await connection.execute("CHECKPOINT")
            except asyncpg.InsufficientPrivilegeError:
                return  # the place was given to us without that right; the report says so (`about`)


@contextmanager
def a_place(dsn: str | None, usual_schema: str) -> Iterator[Place]:
    """Make everything ready; take it away at the end.

    Raises:
        ServerUnavailable: No DSN was given and PostgreSQL 18 is not installed here.
        DatabaseUnreachable: The given database does not answer.
    """
    if dsn is not None:
        with _schema(normalise_dsn(dsn), usual_schema, own=False) as place:
            yield place
        return
    with postgres(POSTGRES, durable=True) as server, _schema(server.dsn, usual_schema, own=True) as place:
        yield place


@contextmanager
def _schema(dsn: str, usual_schema: str, *, own: bool) -> Iterator[Place]:
    schema = f"oncommit_bench_{secrets.token_hex(4)}"  # ours: letters, digits and underscores
    try:
        place = run_async(lambda: _make(dsn, schema, usual_schema, own=own))
        yield place
    finally:
        run_async(lambda: _drop(dsn, schema))


async def _make(dsn: str, schema: str, usual_schema: str, *, own: bool) -> Place:
    await migrate(dsn, schema)
    async with open_connection(dsn, application="oncommit bench") as connection:
        settings = dict(
            await connection.fetch(
                "SELECT name, current_setting(name) FROM unnest($1::text[]) AS name",
                ["server_version", "fsync", "synchronous_commit", "shared_buffers", "autovacuum"],
            )
        )
        may_checkpoint = await connection.fetchval("SELECT pg_has_role('pg_checkpoint', 'MEMBER')")
    durable = settings["fsync"] == "on" and settings["synchronous_commit"] != "off"
    place = Place(
        dsn,
        schema,
        durable,
        {
            "postgresql": settings["server_version"],
            "fsync": settings["fsync"],
            "synchronous_commit": settings["synchronous_commit"],
            "shared_buffers": settings["shared_buffers"],
            "autovacuum": settings["autovacuum"],
            "own_server": own,
            "checkpoint_before_each": bool(may_checkpoint),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count() or 0,
        },
    )
    async with place.connection() as connection:
        await connection.execute(BUSINESS_TABLES)
        await connection.execute(usual_schema)
    return place


async def _drop(dsn: str, schema: str) -> None:
    async with open_connection(dsn, application="oncommit bench") as connection:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
