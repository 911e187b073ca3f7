"""Rows written by plain SQL, stores of relays that need not run, and waiting for a table."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from oncommit.relay.settings import RelaySettings
from oncommit.relay.store import Store
from oncommit.retry import Backoff, RetryPolicy

QUICK = RelaySettings(
    lease=2.0,
    statement_timeout=1.5,
    poll_busy=0.01,
    publish_timeout=5.0,
    retry=RetryPolicy(max_attempts=5, backoff=Backoff(base=0.2, cap=0.4)),
    circuit=Backoff(base=0.1, cap=0.2),
)


async def add(connection: Any, key: str | None, count: int = 1, **columns: Any) -> list[str]:
    """Events of one key in one statement; their ids, in order."""
    names = ["event_type", "key", *columns]
    values = [columns.pop("event_type", "t"), key, *columns.values()]
    names = list(dict.fromkeys(names))
    places = ", ".join(f"${number}" for number in range(1, len(names) + 1))
    ids = []
    for _ in range(count):
        sql = f"INSERT INTO oncommit.outbox ({', '.join(names)}) VALUES ({places}) RETURNING event_id::text"
        ids.append(await connection.fetchval(sql, *values))
    return ids


async def register(connection: asyncpg.Connection, name: str = "r", timeout: float = 5.0) -> tuple[Store, UUID]:
    """A relay that is alive (by its row) and does nothing by itself."""
    relay_id = uuid4()
    await connection.execute(
        "INSERT INTO oncommit.outbox_relay (relay_id, name, sinks, version) VALUES ($1, $2, '{main}', 'x')",
        relay_id,
        name,
    )
    return Store(connection, schema="oncommit", relay_id=relay_id, sink="main", timeout=timeout), relay_id


async def kill(connection: asyncpg.Connection, relay_id: UUID) -> None:
    """Let a relay look dead."""
    await connection.execute("DELETE FROM oncommit.outbox_relay WHERE relay_id = $1", relay_id)


async def until(connection: Any, sql: str, wanted: Any = 0, *, timeout: float = 15.0) -> None:
    """Until this question has this answer."""
    found: Any = None
    try:
        async with asyncio.timeout(timeout):
            while (found := await connection.fetchval(sql)) != wanted:  # noqa: ASYNC110 - a table has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{sql} gives {found!r} and not {wanted!r}") from None


async def for_a_while(seconds: float) -> None:
    """Time in which something must not happen, or in which clocks that a test turns are looked at."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def drained(connection: Any) -> None:
    await until(connection, "SELECT count(*) FROM oncommit.outbox")


TABLES = "outbox, outbox_lane, outbox_relay, outbox_claim, outbox_archive, dead_letter"


async def emptied(dsn: str) -> None:
    """Nothing is left of the test before: making a database takes longer than most of them."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        f"TRUNCATE {', '.join('oncommit.' + name for name in TABLES.split(', '))} RESTART IDENTITY"
    )
    await connection.close()
