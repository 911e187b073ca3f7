"""Migrating and reading through PgBouncer in transaction mode, where no two transactions need meet the same server."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from oncommit import Event, Outbox
from oncommit.db.dsn import open_connection
from oncommit.db.migrate import check, latest_version, migrate
from oncommit.ops.events import list_events
from oncommit.testing.servers import Database, pgbouncer
from tests.migrations.catalog import is_whole


async def test_through_a_pooler(bare: Database) -> None:
    with pgbouncer(bare.server, settings={"default_pool_size": "3"}) as pooler:
        dsn = urlsplit(pooler.dsn)._replace(path=f"/{bare.name}").geturl()
        done = await asyncio.gather(*(migrate(dsn) for _ in range(6)))
        assert sum(len(steps) for steps in done) == latest_version()
        assert await is_whole(bare.dsn)
        await asyncio.gather(*(check(dsn) for _ in range(6)))
        async with open_connection(dsn) as connection, open_connection(dsn) as other:
            async with connection.transaction():
                await Outbox().add(connection, Event("order.placed"))
            for _ in range(2):
                assert [record.event_type for record in await list_events(connection)] == ["order.placed"]
                # The pooler lends out the server last used first: the next round has another one.
                if not other.is_in_transaction():
                    await other.execute("BEGIN")
            await other.execute("ROLLBACK")
