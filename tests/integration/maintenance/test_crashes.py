"""Leaders are killed in the middle of moving; everything goes once, in its order."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict

import asyncpg
import pytest

from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import Database
from tests.integration.maintenance.tools import delay, relay, set_clock
from tests.integration.relay.tools import drained, until

LEADER = """
import asyncio, sys
from oncommit.relay.maintenance import delayed
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.testing.brokers import RecordingBroker

delayed.MOVE_ROWS = 10
quick = RelaySettings(lease=1.0, statement_timeout=0.9, poll_busy=0.01)
asyncio.run(Relay(sys.argv[1], {"main": RecordingBroker()}, settings=quick).run())
"""
FILL = """
    INSERT INTO oncommit.outbox_delayed (event_type, key, not_before)
    SELECT 't', (n % 5)::text, now() + (n % 2000) * interval '1 ms' FROM generate_series(1, 3000) n
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
async def test_leaders_are_killed_while_they_move(
    database: Database, connection: asyncpg.Connection, seed: int
) -> None:
    dice = random.Random(seed)
    await connection.execute(FILL)
    order = await connection.fetch("SELECT event_id, key FROM oncommit.outbox_delayed ORDER BY not_before, id")
    for _ in range(4):
        processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", LEADER, database.dsn) for _ in range(2)]
        left = await connection.fetchval("SELECT count(*) FROM oncommit.outbox_delayed")
        target = max(left - dice.randint(1, 500), 0)
        await until(connection, f"SELECT count(*) <= {target} FROM oncommit.outbox_delayed", wanted=True, timeout=30)
        for process in processes:
            process.kill()
            await process.wait()
    async with relay(database, RecordingBroker(), lease=2.0):
        await until(connection, "SELECT count(*) FROM oncommit.outbox_delayed", timeout=60)
        await drained(connection)
    sent = await connection.fetch("SELECT event_id, key FROM oncommit.outbox_archive ORDER BY id")
    assert sorted(row["event_id"] for row in sent) == sorted(row["event_id"] for row in order)
    wanted, found = defaultdict(list), defaultdict(list)
    for rows, by_key in ((order, wanted), (sent, found)):
        for row in rows:
            by_key[row["key"]].append(row["event_id"])
    assert found == wanted


@pytest.mark.parametrize(("hours", "goes"), [(1, True), (-1, False)])
async def test_only_the_databases_clock_counts(
    database: Database, connection: asyncpg.Connection, *, hours: int, goes: bool
) -> None:
    """The host's clock is an hour behind the database's, or ahead of it."""
    due = await delay(connection, "a", "now() + interval '30 minutes'" if goes else "now() - interval '30 minutes'")
    await set_clock(connection, f"pg_catalog.statement_timestamp() + interval '{hours} hours'")
    broker = RecordingBroker()
    async with relay(database, broker):
        if goes:
            await broker.wait_for(1)
            assert broker.ids == [due]
        else:
            sentinel = await delay(connection, "b", "oncommit.now() + interval '100 ms'")
            await broker.wait_for(1)
            assert broker.ids == [sentinel]
