"""Settling, failing, burying and taking over at the same time, on the PostgreSQL whose behaviour it hangs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from oncommit.db.sql import query
from oncommit.relay import store as store_module
from oncommit.relay.lanes import Lanes
from oncommit.relay.settings import RelaySettings
from oncommit.relay.store import Burial, Failure, Store, Window
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.tools import add, emptied, kill, register, until

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def connect(shared: Database) -> AsyncIterator[Connect]:
    await emptied(shared.dsn)
    async with AsyncExitStack() as stack:

        async def another() -> asyncpg.Connection:
            connection = await asyncpg.connect(shared.dsn)
            stack.push_async_callback(connection.close)
            return connection

        yield another


def altered(name: str, old: str, new: str) -> Callable[..., str]:
    """``query`` with one statement changed: a rule taken out of it."""

    def altered_query(asked: str, schema: str = "oncommit") -> str:
        text = query(asked, schema)
        if asked != name:
            return text
        assert old in text
        return text.replace(old, new)

    return altered_query


async def owned(connection: asyncpg.Connection) -> tuple[Store, Any, int, int, int]:
    """A relay with all lanes, and an event: store, relay, lane, epoch, id."""
    store, relay_id = await register(connection)
    await store.make_lanes()
    lanes = {row.lane: row.epoch for row in await store.take_lanes(10.0, 64, urgent=False)}
    await add(connection, "k")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    return store, relay_id, lane, lanes[lane], place


async def count(connection: Any, table: str = "outbox") -> int:
    return await connection.fetchval(f"SELECT count(*) FROM oncommit.{table}")


async def zombie_writes(connect: Connect) -> list[int]:
    """A relay settles, fails and buries after another has taken its lane: what that changed."""
    first, second = await connect(), await connect()
    zombie, zombie_id, lane, epoch, place = await owned(first)
    await kill(second, zombie_id)
    successor, _ = await register(second, "successor")
    assert len(await successor.take_lanes(10.0, 64, urgent=False)) == 64
    before = await second.fetchrow("SELECT * FROM oncommit.outbox")
    failed = await zombie.fail([Failure(lane, epoch, place, 0, 0.1, "no")])
    changed = int(before != await second.fetchrow("SELECT * FROM oncommit.outbox"))
    settled, held = await zombie.settle({lane: epoch}, [(lane, place, 0.0)], batch=1, archive=True)
    buried = await zombie.bury([Burial(lane, epoch, place, "permanent", "X", "x")])
    return [len(failed) + changed, settled + len(held), len(buried), 1 - await count(second)]


async def test_a_zombie_writes_nothing(connect: Connect) -> None:
    assert await zombie_writes(connect) == [0, 0, 0, 0]


@pytest.mark.rule("Z-fence")
async def test_mutation_without_the_fence_a_zombie_writes(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = "batch.lane = l.lane AND batch.epoch = l.epoch\n    WHERE l.sink = $3::text AND l.owner = $4::uuid"
    none = "batch.lane = l.lane\n    WHERE l.sink = $3::text AND $4::uuid IS NOT NULL"
    monkeypatch.setattr(store_module, "query", altered("relay/settle", fence, none))
    assert (await zombie_writes(connect))[1] > 0


async def test_a_lane_that_is_being_settled_is_passed_over(connect: Connect) -> None:
    first, second = await connect(), await connect()
    store, relay_id, lane, epoch, place = await owned(first)
    await kill(second, relay_id)
    successor, _ = await register(second, "successor")
    async with first.transaction():
        await store.settle({lane: epoch}, [(lane, place, 0.0)], batch=1, archive=True)
        taken = {row.lane for row in await successor.take_lanes(10.0, 64, urgent=False)}
        assert lane not in taken
        assert len(taken) == 63
    assert [row.lane for row in await successor.take_lanes(10.0, 64, urgent=False)] == [lane]
    assert await count(second) == 0


async def settle_behind_take_over(connect: Connect) -> int:
    """A settle that comes while a take-over is not committed yet: rows settled."""
    first, second, watch = await connect(), await connect(), await connect()
    store, relay_id, lane, epoch, place = await owned(first)
    await kill(second, relay_id)
    successor, _ = await register(second, "successor")
    take_over = second.transaction()
    await take_over.start()
    await successor.take_lanes(10.0, 64, urgent=False)
    settling = asyncio.create_task(store.settle({lane: epoch}, [(lane, place, 0.0)], batch=1, archive=True))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    try:
        await until(watch, waiting, 1, timeout=0.5)
    except AssertionError:
        assert settling.done()  # without the lock nobody waits
    await take_over.commit()
    settled, _ = await settling
    return settled


async def test_a_settle_that_waited_for_a_take_over_finds_its_epoch_gone(connect: Connect) -> None:
    assert await settle_behind_take_over(connect) == 0


@pytest.mark.rule("T-lock")
async def test_mutation_without_the_lock_it_settles(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "query", altered("relay/settle", "    FOR KEY SHARE OF l\n", ""))
    assert await settle_behind_take_over(connect) == 1


async def test_a_plain_update_would_not_wait_for_a_settle(connect: Connect) -> None:
    """Why take_lanes locks FOR UPDATE."""
    first, second = await connect(), await connect()
    store, _, lane, epoch, place = await owned(first)
    async with first.transaction():
        await store.settle({lane: epoch}, [(lane, place, 0.0)], batch=1, archive=True)
        await second.execute("UPDATE oncommit.outbox_lane SET epoch = epoch + 1 WHERE lane = $1", lane, timeout=1)


async def steal(connect: Connect) -> int:
    """Lanes that a relay takes whose snapshot is older than the present owner: he must not look dead to it."""
    first, second, gate = await connect(), await connect(), await connect()
    late, _ = await register(first, "late")
    await late.make_lanes()
    await gate.execute("SELECT pg_advisory_lock(7)")
    taking = asyncio.create_task(late.take_lanes(10.0, 64, urgent=False))
    await until(second, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1)
    owner, _ = await register(second, "owner")
    await owner.take_lanes(10.0, 64, urgent=False)
    await gate.execute("SELECT pg_advisory_unlock(7)")
    return len(await taking)


def gated(plain: Callable[..., str]) -> Callable[..., str]:
    """take_lanes waits at lock 7 after its snapshot, when another relay comes first; the second passes by a gate."""
    calls = iter([True])

    def gated_query(asked: str, schema: str = "oncommit") -> str:
        text = plain(asked, schema)
        if asked == "relay/take_lanes" and next(calls, False):
            gate = "LIMIT (SELECT $5::integer + 0 * length(pg_advisory_lock(7)::text))"
            assert "LIMIT $5::integer" in text
            text = text.replace("LIMIT $5::integer", gate)
        return text

    return gated_query


async def test_who_took_a_lane_a_moment_ago_keeps_it(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "query", gated(query))
    assert await steal(connect) == 0


@pytest.mark.rule("T-seen")
async def test_mutation_without_the_seen_epoch_it_is_stolen(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = altered("relay/take_lanes", "seen.lane = l.lane AND seen.epoch = l.epoch", "seen.lane = l.lane")
    monkeypatch.setattr(store_module, "query", gated(blind))
    assert await steal(connect) > 0


async def test_an_attempt_is_counted_once_however_often_it_is_written(connect: Connect) -> None:
    connection = await connect()
    store, _, lane, epoch, place = await owned(connection)
    for _ in range(2):
        await store.fail([Failure(lane, epoch, place, 0, 5.0, "no")])
    assert await connection.fetchval("SELECT attempts FROM oncommit.outbox") == 1
    await store.fail([Failure(lane, epoch, place, 1, 5.0, "no")])
    assert await connection.fetchval("SELECT attempts FROM oncommit.outbox") == 2


async def test_a_reservation_that_has_lapsed_can_fail(connect: Connect) -> None:
    connection = await connect()
    store, _, lane, epoch, place = await owned(connection)
    await connection.execute("UPDATE oncommit.outbox SET state = 'optimistic', available_at = oncommit.now()")
    await store.fail([Failure(lane, epoch, place, 0, 5.0, "no")])
    assert tuple(await connection.fetchrow("SELECT state, attempts, available_at FROM oncommit.outbox")) == (
        "pending", 1, None,
    )  # fmt: skip


async def test_a_claim_of_one_charges_its_event_once(connect: Connect) -> None:
    first, second = await connect(), await connect()
    store, relay_id, lane, epoch, place = await owned(first)
    await store.fetch([Window(lane, epoch, 0, place, 1)], batch=1, budget=1000, alone=True)
    await kill(second, relay_id)
    successor, _ = await register(second, "successor")
    lanes = {row.lane: row.epoch for row in await successor.take_lanes(10.0, 64, urgent=False)}
    (claim,) = await successor.left_claims([lane])
    assert claim == (lane, place, place, 1, True)
    assert [await successor.charge_crash(lane, lanes[lane], place) for _ in range(3)] == [1, 0, 0]
    assert await second.fetchval("SELECT crashes FROM oncommit.outbox") == 1


async def test_a_parked_head_and_odd_times_can_be_read(connect: Connect) -> None:
    connection = await connect()
    store, _, lane, epoch, place = await owned(connection)
    await connection.execute(
        "UPDATE oncommit.outbox SET state = 'dead_letter', available_at = 'infinity', created_at = 'infinity'"
    )
    window = [Window(lane, epoch, 0, place, 1)]
    (row,) = await store.fetch(window, batch=1, budget=1000)
    assert row.wait == float("inf")
    await connection.execute("UPDATE oncommit.outbox SET created_at = '-infinity'")
    await store.unclaim()
    (row,) = await store.fetch(window, batch=2, budget=1000)
    assert row.created_at.year == 1


async def test_a_row_above_the_budget_comes_alone(connect: Connect) -> None:
    connection = await connect()
    store, _, lane, epoch, place = await owned(connection)
    await add(connection, "k", 3)
    window = [Window(lane, epoch, 0, place + 10, 10)]
    assert len(await store.fetch(window, batch=1, budget=1)) == 1
    assert len(await store.fetch(window, batch=2, budget=250)) == 2
    assert len(await store.fetch(window, batch=3, budget=10_000)) == 4


async def test_the_claim_is_durable_although_the_session_would_not_wait(connect: Connect) -> None:
    """F-durable claim: before the answer comes, also the transaction is on disk whose event was read."""
    connection = await connect()
    store, _, lane, epoch, _ = await owned(connection)
    await connection.execute("SET synchronous_commit = off")
    for batch in range(1, 20):
        await add(connection, "k")
        written = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        await store.fetch([Window(lane, epoch, 0, 2**40, 100)], batch=batch, budget=10_000)
        assert await connection.fetchval("SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn", written)
    assert await connection.fetchval("SHOW synchronous_commit") == "off"


async def test_holders_are_seen_through_savepoints_and_preparation(connect: Connect) -> None:
    first, second = await connect(), await connect()
    store, _ = await register(second)
    assert await store.holders() == []
    await first.execute("BEGIN; SAVEPOINT one")
    await add(first, "k")
    (plain,) = await store.holders()
    await first.execute("ROLLBACK TO one")
    # What a rolled back savepoint held is given up, and so is its row: it cannot come any more.
    assert await store.holders() in ([], [plain])
    await add(first, "k")
    assert await store.holders() == [plain]
    await first.execute("PREPARE TRANSACTION 'two'")
    prepared = await store.holders()
    await second.execute("COMMIT PREPARED 'two'")
    # The name stays. Only one that has come through a restart of the server has another: -1 and its transaction id.
    assert prepared == [plain]
    assert await store.holders() == []


async def test_urgent_lanes_are_taken_although_normal_ones_are_free(connect: Connect) -> None:
    """Another relay lives and takes nothing: the normal lanes that it leaves do not keep us from the urgent ones."""
    first, second = await connect(), await connect()
    store, _ = await register(first)
    await register(second, "idle")
    lanes = Lanes("main", RelaySettings())
    for _ in range(3):
        await lanes.tend(store)
    assert sum(lane < 64 for lane in lanes.owned) == 32
    assert sum(lane >= 64 for lane in lanes.owned) == 4


async def test_who_cannot_serve_leaves_its_lanes_to_who_can(connect: Connect) -> None:
    first, second = await connect(), await connect()
    mine, my_id = await register(first)
    theirs, _ = await register(second)
    lanes, others = Lanes("main", RelaySettings()), Lanes("main", RelaySettings())
    await lanes.tend(mine, can_serve=False)
    assert lanes.owned == {}
    await first.execute("UPDATE oncommit.outbox_relay SET sinks = '{}' WHERE relay_id = $1", my_id)
    await others.tend(theirs)
    assert len(others.owned) == 72


async def test_an_emptied_lane_table_is_made_anew_under_epochs_never_used(connect: Connect) -> None:
    connection = await connect()
    store, _, lane, epoch, place = await owned(connection)
    lanes = Lanes("main", RelaySettings())
    await lanes.tend(store)
    await connection.execute("TRUNCATE oncommit.outbox_lane")
    await lanes.tend(store)
    assert len(lanes.owned) == 72
    assert lanes.owned[lane].epoch > epoch
    assert (await store.settle({lane: epoch}, [(lane, place, 0.0)], batch=1, archive=True))[0] == 0
