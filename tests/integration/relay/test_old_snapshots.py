"""An old transaction keeps vacuum from what was sent: a relay that begins then must get through it all the same.

Each of those rows costs a look. With time limits of a fraction of a second a few hundred thousand of them do here what
millions do in life, where a dump or a forgotten session holds a snapshot for an hour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest

from oncommit.relay.limits import Limits
from oncommit.relay.relay import Relay
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.hand import at_hand
from tests.integration.relay.tools import QUICK, add, drained, emptied, register, until

SENT = 400_000
HASTY = msgspec.structs.replace(QUICK, lease=1.0, statement_timeout=0.25)
FILL = """
    INSERT INTO oncommit.outbox (event_id, lane, event_type, key)
    SELECT lpad(to_hex(n), 32, '0')::uuid, oncommit.lane_of(5::smallint, k, NULL, NULL, NULL), 't', k
    FROM generate_series(1, $1::int) AS n, LATERAL (VALUES ('k' || n % 10000)) AS key (k)
"""


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def connection(shared: Database) -> AsyncIterator[asyncpg.Connection]:
    """With what was sent before it, and a snapshot that still sees it."""
    await emptied(shared.dsn)
    connection, old = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()")
    await connection.execute("SET synchronous_commit = off")
    await connection.execute(FILL, SENT)
    await connection.execute("DELETE FROM oncommit.outbox")
    yield connection
    await old.close()
    await connection.close()


async def delivers(database: Database, connection: asyncpg.Connection, **changes: float) -> None:
    events = await add(connection, "a", 2) + await add(connection, "b", 2)
    broker = RecordingBroker()
    async with Relay(database.dsn, {"main": broker}, settings=msgspec.structs.replace(HASTY, **changes)):
        await until(connection, "SELECT count(*) FROM oncommit.outbox", timeout=30.0 if not changes else 4.0)
    assert sorted(broker.ids) == sorted(events)


@pytest.mark.rule("F-stretch")
async def test_a_relay_that_begins_gets_through_what_was_sent(
    connection: asyncpg.Connection, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delivers(shared, connection)
    await connection.execute("UPDATE oncommit.outbox_lane SET settled_to = 0")
    monkeypatch.setattr(Limits, "gave_up", lambda _self, _ids: None)
    with pytest.raises(AssertionError, match="gives 4 and not 0"):
        await delivers(shared, connection, statement_timeout=0.05)


@pytest.mark.rule("F-settled")
async def test_what_was_noted_as_settled_is_not_read_again(
    connection: asyncpg.Connection, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that takes over begins where the one before had come to."""
    first = Relay(shared.dsn, {"main": RecordingBroker()}, settings=HASTY)
    await add(connection, "a")
    async with first:
        await drained(connection)
        await until(connection, f"SELECT count(*) FROM oncommit.outbox_lane WHERE settled_to >= {SENT - 1000}", 72)
    monkeypatch.setattr(Limits, "gave_up", lambda _self, _ids: None)
    await delivers(shared, connection)
    await connection.execute("UPDATE oncommit.outbox_lane SET settled_to = 0")
    with pytest.raises(AssertionError, match="gives 4 and not 0"):
        await delivers(shared, connection, statement_timeout=0.05)


async def test_a_look_at_an_idle_writer_s_region_goes_by_stretches_too(shared: Database) -> None:
    """He leaves after others have written and sent much."""
    async with at_hand(shared.dsn) as hand:
        idle = await asyncpg.connect(shared.dsn)
        await idle.execute("BEGIN")
        (late,) = await add(idle, "a")
        await hand.round()
        await hand.connection.execute(FILL, 50_000)
        await hand.connection.execute("DELETE FROM oncommit.outbox")
        await hand.round()
        asked: list[int] = []
        sweep = hand.store.sweep

        async def watched(stretches: Any, *, most: int) -> Any:
            asked.append(max(stretch.high - stretch.low for stretch in stretches))
            return await sweep(stretches, most=most)

        hand.store.sweep = watched  # type: ignore[method-assign]
        await idle.execute("COMMIT")
        await idle.close()
        hand.reader._limits.gave_up(80_000)
        await hand.round()
        assert late in hand.sent
        assert len(asked) >= 5
        assert max(asked) <= 10_000


async def test_what_lies_below_what_is_settled_is_found_by_the_full_pass(shared: Database) -> None:
    await emptied(shared.dsn)
    connection = await asyncpg.connect(shared.dsn)
    store, _ = await register(connection)
    await store.make_lanes()
    await connection.execute("DELETE FROM oncommit.outbox_relay")
    await connection.execute("SELECT setval('oncommit.outbox_id_seq', 100000)")
    await connection.execute("UPDATE oncommit.outbox_lane SET settled_to = 90000")
    (usual,) = await add(connection, "a")
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=msgspec.structs.replace(QUICK, full_pass_every=0.5)):
        await broker.wait_for(1)
        await connection.execute(
            "INSERT INTO oncommit.outbox (id, event_type, key) OVERRIDING SYSTEM VALUE VALUES (17, 't', 'b')"
        )
        await drained(connection)
    assert broker.ids[0] == usual
    assert len(broker.ids) == 2
    await connection.close()


async def test_a_sequence_below_what_is_settled_is_read_from_zero(shared: Database) -> None:
    """A copy by logical replication, whose sequence was set too low: what is written then is sent all the same."""
    await emptied(shared.dsn)
    connection = await asyncpg.connect(shared.dsn)
    store, _ = await register(connection)
    await store.make_lanes()
    await connection.execute("DELETE FROM oncommit.outbox_relay")
    await connection.execute("UPDATE oncommit.outbox_lane SET settled_to = 90000")
    events = await add(connection, "a", 2)
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=QUICK):
        await drained(connection)
    assert broker.ids == events
    await connection.close()
