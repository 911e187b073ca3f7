"""How things stand, from a database with an event in every state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from oncommit.cli.main import run
from oncommit.errors import SchemaMissing
from oncommit.ops.stats import read_stats
from oncommit.testing.servers import Database
from tests.integration.ops.world import FILL, known


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(any_database.dsn)
    for statement in FILL.strip().split(";\n"):
        await connection.execute(statement)
    yield connection
    await connection.close()


async def test_each_state_is_counted_where_it_belongs(connection: asyncpg.Connection) -> None:
    found = await read_stats(connection)
    audit, main = found.sinks
    assert (audit.sink, audit.pending, audit.failed, audit.in_flight, audit.lanes) == ("audit", 1, 0, 0, 0)
    live = await connection.fetch(
        "SELECT state, count(*) FROM oncommit.outbox WHERE sink = 'main' GROUP BY state ORDER BY state"
    )
    states = dict(map(tuple, live))
    assert main.parked == states.pop("dead_letter") == 1
    assert main.pending == sum(states.values())
    assert (main.failed, main.optimistic) == (1, 1), "a reservation that has lapsed is pending"
    assert (main.delayed, main.delayed_due) == (1, 0)
    assert main.oldest_pending_age_seconds is not None
    assert 7000 < main.oldest_pending_age_seconds < 7400, "the parked one does not count"
    assert main.dead_letters == await connection.fetchval(
        "SELECT count(*) FROM oncommit.dead_letter WHERE source = 'outbox' AND origin = 'main' AND state = 'dead'"
    )
    (relay,) = found.relays
    assert (relay.relay_id, relay.name, relay.lanes, relay.in_flight) == (known(90), "relay-a", {"main": 1}, 2)
    assert sorted((claim.batch, claim.rows, claim.left_behind) for claim in found.claims) == [(1, 1, 0), (2, 1, 1)]


async def test_lanes_of_a_relay_that_is_gone_are_nobodys(connection: asyncpg.Connection) -> None:
    await connection.execute("DELETE FROM oncommit.outbox_relay")
    found = await read_stats(connection)
    assert [(sink.lanes, sink.lanes_without_owner) for sink in found.sinks] == [(0, 0), (1, 1)]
    assert all(claim.age_seconds >= 0 for claim in found.claims)


async def test_other_dead_letters_are_named(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO oncommit.dead_letter (source, origin, message_id, reason, expires_at)"
        " VALUES ('consumer', 'billing', 'm', 'exhausted', now()), ('consumer', 'billing', 'n', 'exhausted', now())"
    )
    assert (await read_stats(connection)).other_dead_letters["consumer billing"] == 3


async def test_an_empty_database_says_what_to_do(empty_database: Database) -> None:
    connection = await asyncpg.connect(empty_database.dsn)
    with pytest.raises(SchemaMissing, match="oncommit migrate"):
        await read_stats(connection)
    await connection.close()


def test_the_command(database: Database, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", "--database", database.dsn]) == 0
    out, err = capfd.readouterr()
    assert "no relay is running" in out
    assert not err
    assert run(["stats", "--database", database.dsn, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told.pop("maintenance")["leader"] is None
    assert told == {"sinks": [], "relays": [], "claims": [], "other_dead_letters": {}}


def test_the_table(database: Database, capfd: pytest.CaptureFixture[str]) -> None:
    async def fill() -> None:
        connection = await asyncpg.connect(database.dsn)
        for statement in FILL.strip().split(";\n"):
            await connection.execute(statement)
        await connection.close()

    asyncio.run(fill())
    assert run(["stats", "--database", database.dsn]) == 0
    out, _ = capfd.readouterr()
    heads = out.splitlines()[0].split()
    assert heads[:3] == ["SINK", "PENDING", "OLDEST"]
    assert any(line.startswith("main ") for line in out.splitlines())
    assert any(line.startswith("relay-a ") for line in out.splitlines())
    assert "1 events were in flight on lanes that their relay has lost" in out
