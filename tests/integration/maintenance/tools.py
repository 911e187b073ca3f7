"""A clock that is turned by hand, delayed events by plain SQL, relays that come and go."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from oncommit.relay.relay import Relay
from oncommit.testing.servers import Database
from tests.integration.relay.tools import QUICK, emptied

TABLES = "outbox_delayed, setting"
DAYS = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^outbox_archive_' ORDER BY 1"
CLOCK = (
    "CREATE OR REPLACE FUNCTION oncommit.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT {} $$"
)


async def set_clock(connection: Any, moment: datetime | str) -> None:
    """Stop the database's clock at this moment; also as SQL, such as ``now() + interval '1 day'``."""
    text = f"'{moment.isoformat()}'::timestamptz" if isinstance(moment, datetime) else moment
    await connection.execute(CLOCK.format(text))


async def run_clock(connection: Any) -> None:
    """Let the database's clock go again."""
    await set_clock(connection, "pg_catalog.statement_timestamp()")


async def without_days(connection: Any) -> None:
    """An archive without a day, and nothing left of days that were."""
    for row in await connection.fetch(DAYS):
        await connection.execute(f"DROP TABLE oncommit.{row[0]}")


async def cleared(dsn: str) -> None:
    """Nothing is left of the test before, nor of its clock."""
    connection = await asyncpg.connect(dsn)
    await run_clock(connection)
    await without_days(connection)
    await connection.execute("SELECT oncommit.make_archive_partition((now() AT TIME ZONE 'UTC')::date + n)"
                             " FROM generate_series(0, 7) n")  # fmt: skip
    await connection.execute(f"TRUNCATE {', '.join('oncommit.' + name for name in TABLES.split(', '))}")
    await connection.close()
    await emptied(dsn)


async def delay(connection: Any, key: str | None, due: str, **columns: Any) -> str:
    """An event that is due then (SQL); its id."""
    names = ["event_type", "key", *columns]
    places = ", ".join(f"${number}" for number in range(1, len(names) + 1))
    sql = (
        f"INSERT INTO oncommit.outbox_delayed ({', '.join(names)}, not_before) VALUES ({places}, {due})"
        " RETURNING event_id::text"
    )
    found: str = await connection.fetchval(sql, "t", key, *columns.values())
    return found


def relay(database: Database, broker: Any, **changes: Any) -> Relay:
    """A relay that is quick."""
    return Relay(database.dsn, {"main": broker}, settings=msgspec.structs.replace(QUICK, **changes))
