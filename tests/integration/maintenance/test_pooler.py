"""The whole of it through PgBouncer in transaction mode, where no setting and no lock of a session would last."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from oncommit.db.dsn import open_connection
from oncommit.relay.maintenance import archive as archive_module
from oncommit.relay.maintenance.archive import Archive
from oncommit.relay.maintenance.expiry import Warned
from oncommit.relay.maintenance.house import keep_house
from oncommit.relay.maintenance.leader import Limits, Seat
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database, pgbouncer
from tests.integration.maintenance.tools import delay, relay
from tests.integration.relay.tools import drained, until


async def test_through_a_pooler(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "DETACH_TIMEOUT", 0.5)
    await connection.execute("SELECT oncommit.make_archive_partition('2026-01-01')")
    await connection.execute("SELECT oncommit.make_archive_partition('2026-01-02')")
    with pgbouncer(database.server, settings={"default_pool_size": "8"}) as pooler:
        dsn = urlsplit(pooler.dsn)._replace(path=f"/{database.name}").geturl()
        limits = Limits(lock=0.3, statement=5.0, idle=5.0)
        async with open_connection(dsn) as pooled:
            owner = uuid4()
            seat = Seat(pooled, schema="oncommit", owner=owner, lease=60.0)
            await seat.make()
            assert await seat.hold()
            # A reader holds the detach up: its time limit reaches the server through the pooler, and nothing is stuck.
            reader = await asyncpg.connect(database.dsn)
            transaction = reader.transaction()
            await transaction.start()
            await reader.execute("SELECT count(*) FROM oncommit.outbox_archive")
            with pytest.raises(TimeoutError):
                await Archive(pooled, schema="oncommit", owner=owner, limits=limits).drop_days(14)
            await until(
                connection,
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%DETACH%' AND state = 'active'"
                " AND pid <> pg_backend_pid()",
            )
            await transaction.rollback()
            await reader.close()
        async with open_connection(dsn) as pooled:
            assert await keep_house(pooled, schema="oncommit", owner=owner, warned=Warned(), limits=limits)
            await Seat(pooled, schema="oncommit", owner=owner, lease=60.0).leave()
        assert await connection.fetchval("SELECT to_regclass('oncommit.outbox_archive_20260102')") is None
        # The limits of a transaction stay its own.
        async with open_connection(dsn) as pooled:
            assert await pooled.fetchval("SHOW lock_timeout") == "0"
        events = [await delay(connection, "a", "now()") for _ in range(3)]
        broker = RecordingBroker()
        pooled_database = Database(dsn=dsn, name=database.name, server=database.server)
        async with asyncio.timeout(30), relay(pooled_database, broker):
            await broker.wait_for(3)
            await drained(connection)
        assert broker.ids == events
