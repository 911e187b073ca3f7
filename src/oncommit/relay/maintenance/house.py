"""One turn of keeping house: what the leader looks after every few minutes.

Failure story. Each part is tried for itself, so that one that is refused does not hold up the others; what has no
answer in time, or breaks the connection, ends the turn, and the next one begins with a new connection. How long things
are kept is read in every turn; where the record cannot be read, nothing expires.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg
import msgspec

from oncommit.db.sql import query
from oncommit.errors import ConfigError
from oncommit.relay.maintenance.archive import Archive
from oncommit.relay.maintenance.expiry import Warned, expire_dead_letters, warn_of_expiry
from oncommit.relay.maintenance.leader import Limits
from oncommit.retention import Retention, parse_retention

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.maintenance")


async def keep_house(
    connection: Connection, *, schema: str, owner: UUID, warned: Warned, limits: Limits | None = None
) -> bool:
    """One turn; whether nothing is left to be tried again soon.

    Raises:
        NotLeader: The seat is somebody else's.
    """
    limits = limits or Limits()
    archive = Archive(connection, schema=schema, owner=owner, limits=limits)
    well = await archive.make_days()
    try:
        retention = await _agreed(connection, schema, limits)
    except ConfigError as error:
        log.error("nothing expires: %s", error)  # noqa: TRY400 - the cause is said, where it was raised says nothing
        return False
    days = retention.dead_letter_days
    try:
        await expire_dead_letters(connection, schema=schema, owner=owner, limits=limits, days=days)
        await warn_of_expiry(connection, schema=schema, limits=limits, days=days, warned=warned)
    except asyncpg.PostgresError as error:
        if connection.is_closed():
            raise
        log.warning("dead letters cannot expire yet: %s; tried again soon", error)
        well = False
    # The last, since a day that somebody reads can hold it up.
    return await archive.drop_days(retention.archive_days) and well


async def _agreed(connection: Connection, schema: str, limits: Limits) -> Retention:
    """What is on record, or the defaults, which are from now on."""
    for _ in range(2):
        if rows := await connection.fetch(query("retention/read", schema), timeout=limits.statement):
            return parse_retention(rows[0]["retention"])
        text = msgspec.json.encode(Retention()).decode()
        await connection.execute(query("retention/agree", schema), text, timeout=limits.statement)
    return Retention()
