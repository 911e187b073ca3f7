"""While a relay stands still in mid-batch, the view `events` says of every event where it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import nats
import pytest

from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer, Database
from tests.integration.relay.tools import add, until


@pytest.fixture
def proxy(oncommit_nats: AnyServer) -> Iterator[Proxy]:
    with Proxy.to(oncommit_nats.url) as proxy:
        yield proxy


@pytest.fixture
def process(
    database: Database, oncommit_nats: AnyServer, proxy: Proxy, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(sys.executable, "-m", "oncommit", "relay", "--name", "standing", "--lease", "120"),
        *("--database", database.dsn, "--broker", proxy.through(oncommit_nats.url), "--publish-timeout", "100"),
    ]
    with (tmp_path / "relay.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ})
    yield process
    process.kill()
    process.wait()


async def test_every_event_has_its_state_while_a_relay_stands_still(
    database: Database, oncommit_nats: AnyServer, proxy: Proxy, process: subprocess.Popen[bytes]
) -> None:
    client = await nats.connect(oncommit_nats.url)
    stream = client.jetstream()
    await stream.add_stream(name="shown", subjects=["shown.>"])
    connection = await asyncpg.connect(database.dsn)
    try:
        async with connection.transaction():
            (failed,), (parked,) = await add(connection, "f"), await add(connection, "p")
            await connection.execute(
                "UPDATE oncommit.outbox SET state = 'failed', attempts = 3, available_at = oncommit.now() + '1 hour'"
                " WHERE event_id = $1::uuid", failed,
            )  # fmt: skip
            await connection.execute(
                "UPDATE oncommit.outbox SET state = 'dead_letter', available_at = 'infinity' WHERE event_id = $1::uuid",
                parked,
            )
        (sent,) = await add(connection, "s", topic="shown.one")
        lane = await connection.fetchval("SELECT oncommit.lane_of(5::smallint, 'd', NULL, NULL, NULL)")
        (dead,) = await add(connection, "d", lane=lane, headers="[]")
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 2)
        proxy.hold()
        async with connection.transaction():
            claimed = [one for key in "abc" for one in await add(connection, key, topic="shown.one")]
        await until(connection, "SELECT sum(rows) FROM oncommit.outbox_claim", 3)
        process.send_signal(signal.SIGSTOP)
        (behind,) = await add(connection, "a", topic="shown.one")
        delayed = await connection.fetchval(
            "INSERT INTO oncommit.outbox_delayed (event_type, key, not_before)"
            " VALUES ('t', 'w', oncommit.now() + '1 hour') RETURNING event_id::text"
        )
        rows = await connection.fetch("SELECT event_id::text, state, claimed_by, available_at > oncommit.now() AS later"
                                      " FROM oncommit.events")  # fmt: skip
        shown = {row["event_id"]: row["state"] for row in rows}
        assert shown == {
            sent: "sent",
            dead: "dead_letter",
            failed: "failed",
            parked: "dead_letter",
            **dict.fromkeys(claimed, "claimed"),
            behind: "pending",
            delayed: "pending",
        }
        assert {row["event_id"] for row in rows if row["claimed_by"] == "standing"} == set(claimed)
        assert {row["event_id"] for row in rows if row["later"]} == {failed, parked, delayed}
        process.send_signal(signal.SIGCONT)
        proxy.heal()
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 2)
        ended = await connection.fetch("SELECT event_id::text FROM oncommit.events WHERE state = 'sent'")
        assert {row["event_id"] for row in ended} == {sent, behind, *claimed}
    finally:
        await connection.close()
        await stream.delete_stream("shown")
        await client.close()
