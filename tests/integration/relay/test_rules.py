"""Rules of the protocol that relays and their statements keep: what each is for shows when it is taken out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec
import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import NotAttempted, PublishFailed
from oncommit.relay import store as store_module
from oncommit.relay import writing as writing_module
from oncommit.relay.lane import Lane
from oncommit.relay.lanes import Lanes
from oncommit.relay.lease import Lease
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.relay.sink import SinkRelay
from oncommit.relay.store import Failure, Store, Window
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.test_fences import altered
from tests.integration.relay.tools import QUICK, add, drained, emptied, for_a_while, kill, register, until

LEFT = "SELECT count(*) FROM oncommit.outbox"


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def connection(shared: Database) -> AsyncIterator[asyncpg.Connection]:
    await emptied(shared.dsn)
    connection = await asyncpg.connect(shared.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def other(shared: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shared.dsn)
    yield connection
    await connection.close()


def relay(database: Database, broker: Any, **changes: Any) -> Relay:
    return Relay(database.dsn, {"main": broker}, settings=msgspec.structs.replace(QUICK, **changes))


async def owner(connection: asyncpg.Connection, **named: Any) -> tuple[Store, Any, dict[int, int]]:
    """A relay that owns the normal lanes and does nothing by itself."""
    store, relay_id = await register(connection, **named)
    await store.make_lanes()
    return store, relay_id, {row.lane: row.epoch for row in await store.take_lanes(10.0, 64, urgent=False)}


# ── L: the lease ──────────────────────────────────────────────────────────────────────────────────


async def published_beyond_the_lease(shared: Database, connection: asyncpg.Connection) -> list[str]:
    """A publish hangs, nobody can renew, and the lease ends: what the broker takes when it hangs no more."""
    broker = RecordingBroker()
    broker.hold()
    await add(connection, "a")
    one = relay(shared, broker)
    async with one:
        await broker.publishing.wait()
        one._lease.renewed = lambda _sent: None  # type: ignore[method-assign]
        one._lease._deadline = -1.0
        # The loop looks every half second; it gives the publish up, or it does not.
        await for_a_while(1.0)
        broker.release()
        with suppress(TimeoutError):
            await broker.wait_for(1, timeout=0.5)
    return broker.ids


async def test_a_publish_is_given_up_when_the_lease_ends(shared: Database, connection: asyncpg.Connection) -> None:
    assert await published_beyond_the_lease(shared, connection) == []


@pytest.mark.rule("L-check")
async def test_mutation_without_a_look_it_goes_on(
    shared: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkRelay, "_check_lease", lambda _self: None)
    assert len(await published_beyond_the_lease(shared, connection)) == 1


@pytest.mark.rule("L-sending")
def test_mutation_counted_from_the_answer_two_relays_act_at_once() -> None:
    """The database counts from when it ran the renewal, at second 1; the answer takes until second 4."""
    clock = [0.0]
    lease = Lease(10.0, clock=lambda: clock[0])
    sent = lease.sending()
    ran, clock[0] = 1.0, 4.0
    lease.renewed(sent)
    clock[0] = ran + lease.seconds  # from here on others may take the lanes
    assert not lease.is_ours
    clock[0] = 4.0
    lease.renewed(lease.sending())
    clock[0] = ran + lease.seconds
    assert lease.is_ours


async def owned_by_the_old_name(shared: Database, connection: asyncpg.Connection) -> int:
    """The relay's row is deleted: lanes that its old name still has when the new one is there."""
    async with relay(shared, RecordingBroker()) as one:
        await until(connection, "SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL", 72)
        before = one.relay_id
        await connection.execute("DELETE FROM oncommit.outbox_relay")
        await until(connection, f"SELECT count(*) FROM oncommit.outbox_relay WHERE relay_id <> '{before}'", 1)
        still = f"SELECT count(*) FROM oncommit.outbox_lane WHERE owner = '{before}'"
        with suppress(AssertionError):
            await until(connection, still, 0, timeout=4.0)
        return int(await connection.fetchval(still))


@pytest.mark.rule("L-term")
async def test_mutation_without_terms_the_sink_acts_under_its_old_name(
    shared: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await owned_by_the_old_name(shared, connection) == 0
    await emptied(shared.dsn)
    monkeypatch.setattr(Lease, "lost", lambda _self: None)
    assert await owned_by_the_old_name(shared, connection) > 0


# ── T: taking over ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("T-epoch")
async def test_mutation_without_the_epoch_a_former_owner_reads_on(
    connection: asyncpg.Connection, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, lanes = await owner(connection)
    await add(connection, "k")
    lane = await connection.fetchval("SELECT lane FROM oncommit.outbox")
    await other.execute("UPDATE oncommit.outbox_lane SET epoch = epoch + 1")  # taken, and handed back
    window = [Window(lane, lanes[lane], 0, 2**40, 10)]
    assert await store.fetch(window, batch=1, budget=1000) == []
    blind = altered("relay/fetch", "AND l.owner = $7::uuid AND l.epoch = w.epoch", "AND l.owner = $7::uuid")
    monkeypatch.setattr(store_module, "query", blind)
    assert len(await store.fetch(window, batch=2, budget=1000)) == 1


@pytest.mark.rule("T-lock")
async def test_mutation_without_the_lock_a_lane_is_taken_that_is_being_settled(
    connection: asyncpg.Connection, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, relay_id, lanes = await owner(connection)
    await add(connection, "k")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    await kill(other, relay_id)
    successor, _ = await register(other, "successor")
    async with connection.transaction():
        await store.settle({lane: lanes[lane]}, [(lane, place, 0.0)], batch=1, archive=True)
        assert lane not in {row.lane for row in await successor.take_lanes(10.0, 64, urgent=False)}
        await other.execute("UPDATE oncommit.outbox_lane SET owner = NULL WHERE lane = $1", lane)
        unlocked = altered("relay/take_lanes", "    FOR UPDATE OF l SKIP LOCKED\n", "")
        monkeypatch.setattr(store_module, "query", unlocked)
        assert [row.lane for row in await successor.take_lanes(10.0, 64, urgent=False)] == [lane]


@pytest.mark.rule("T-serving")
async def test_mutation_that_counts_who_cannot_serve_leaves_lanes_to_nobody(
    connection: asyncpg.Connection, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = await register(connection)
    _, theirs = await register(other)
    await connection.execute("UPDATE oncommit.outbox_relay SET sinks = '{}' WHERE relay_id = $1", theirs)
    lanes = Lanes("main", RelaySettings())
    await lanes.tend(mine)
    assert len(lanes.owned) == 72
    everybody = altered("relay/survey", "$1::text = ANY (r.sinks)", "$1::text IS NOT NULL")
    monkeypatch.setattr(store_module, "query", everybody)
    await lanes.tend(mine)
    assert len(lanes.owned) == 36


# ── A: acts below the floor ───────────────────────────────────────────────────────────────────────


async def unparked(shared: Database, connection: asyncpg.Connection) -> int:
    """A head waits for ever; it is made pending, with a rescan: what is left when patience ends."""
    failing = True
    broker = FailingBroker(lambda _message: PublishFailed("no") if failing else None)
    await add(connection, "a", 2, max_attempts=100)
    async with relay(shared, broker, full_pass_every=3600.0):
        await until(connection, "SELECT count(*) FROM oncommit.outbox WHERE state = 'failed'", 1)
        await connection.execute("UPDATE oncommit.outbox SET available_at = 'infinity' WHERE state = 'failed'")
        await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
        await until(connection, "SELECT count(*) FROM oncommit.outbox_claim", 0)
        failing = False
        async with connection.transaction():
            await connection.execute(
                "UPDATE oncommit.outbox SET state = 'pending', available_at = NULL WHERE state = 'failed'"
            )
            await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
        with suppress(AssertionError):
            await until(connection, LEFT, timeout=4.0)
        return int(await connection.fetchval(LEFT))


@pytest.mark.rule("A-rescan")
async def test_mutation_without_a_rescan_it_waits(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand, since a whole relay has other occasions to forget."""
    store, _ = await register(connection)
    lanes = Lanes("main", RelaySettings())
    await lanes.tend(store)
    lane = lanes.owned[0]
    lane.order.floor = 50
    await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
    await lanes.tend(store)
    assert lane.order.floor == 0
    lane.order.floor = 50
    monkeypatch.setattr(Lane, "forget", lambda _self: None)
    await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
    await lanes.tend(store)
    assert lane.order.floor == 50


async def test_a_head_that_is_set_free_goes_with_its_rescan(shared: Database, connection: asyncpg.Connection) -> None:
    assert await unparked(shared, connection) == 0


# ── O-chain: the adapter's part ───────────────────────────────────────────────────────────────────


class Unchained(FailingBroker):
    """Takes what comes after a message of the same key that it has refused."""

    async def publish(self, batch: Any, *, timeout: float) -> Any:
        outcomes = list(await super().publish(batch, timeout=timeout))
        for index, (message, outcome) in enumerate(zip(batch, outcomes, strict=True)):
            if isinstance(outcome, NotAttempted):
                self.messages.append(message)
                outcomes[index] = None
        return outcomes


@pytest.mark.rule("O-chain")
@pytest.mark.parametrize("kind", [FailingBroker, Unchained])
async def test_an_adapter_that_goes_on_after_a_refusal_breaks_the_order(
    shared: Database, connection: asyncpg.Connection, kind: type[FailingBroker]
) -> None:
    events = await add(connection, "a", 3)
    refused: list[str] = []

    def judge(message: Message) -> Outcome:
        if message.message_id == events[0] and not refused:
            refused.append(message.message_id)
            return PublishFailed("not now")
        return None

    broker = kind(judge)
    async with relay(shared, broker):
        await drained(connection)
    assert (broker.ids == events) is (kind is FailingBroker)


# ── Z: settling ───────────────────────────────────────────────────────────────────────────────────


async def today(connection: asyncpg.Connection) -> str:
    """The archive's partition of today."""
    name = "to_char(oncommit.now() AT TIME ZONE 'UTC', '\"outbox_archive_\"YYYYMMDD')"
    return str(await connection.fetchval(f"SELECT {name}"))


async def lanes_left_locked(connection: asyncpg.Connection, other: asyncpg.Connection, dsn: str, limit: float) -> int:
    """Somebody holds the archive, a relay settles and dies: how many lanes its successor cannot take meanwhile."""
    store, relay_id, lanes = await owner(connection, timeout=limit)
    await add(connection, "k")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    holder = await asyncpg.connect(dsn)
    # Of the day alone: for the archive itself a settle would wait before it has locked anything.
    await holder.execute(f"BEGIN; LOCK TABLE oncommit.{await today(other)} IN ACCESS EXCLUSIVE MODE")
    settling = asyncio.create_task(store.settle({lane: lanes[lane]}, [(lane, place, 0.0)], batch=1, archive=True))
    await until(other, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted", wanted=True)
    await kill(other, relay_id)
    successor, _ = await register(other, "successor")
    taken: list[Any] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(4.0):
            while len(taken) < 64:
                taken += await successor.take_lanes(10.0, 64, urgent=False)
    await holder.close()
    await asyncio.gather(settling, return_exceptions=True)
    return 64 - len(taken)


@pytest.mark.rule("Z-limit")
async def test_mutation_without_a_time_limit_a_settle_holds_its_lanes(
    shared: Database, connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    assert await lanes_left_locked(connection, other, shared.dsn, 0.3) == 0
    await emptied(shared.dsn)
    assert await lanes_left_locked(connection, other, shared.dsn, 30.0) == 1


@pytest.mark.rule("Z-once")
async def test_mutation_without_the_count_before_an_attempt_counts_twice(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, lanes = await owner(connection)
    await add(connection, "k")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    monkeypatch.setattr(store_module, "query", altered("relay/fail", "AND o.attempts = failed.attempts AND", "AND"))
    for _ in range(2):
        await store.fail([Failure(lane, lanes[lane], place, 0, 5.0, "no")])
    assert await connection.fetchval("SELECT attempts FROM oncommit.outbox") == 2


@pytest.mark.rule("Z-archive")
async def test_mutation_without_a_way_around_the_archive_nothing_is_settled(
    shared: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plain(store: Store, epochs: Any, sent: Any, *, batch: int, archive: bool) -> int:
        return (await store.settle(epochs, sent, batch=batch, archive=archive))[0]

    name = await today(connection)
    # Detached only: its name is taken, and nobody can make it anew.
    await connection.execute(f"ALTER TABLE oncommit.outbox_archive DETACH PARTITION oncommit.{name}")
    monkeypatch.setattr(writing_module, "settle", plain)
    await add(connection, "k")
    broker = RecordingBroker()
    async with relay(shared, broker):
        await broker.wait_for(1)
        with pytest.raises(AssertionError, match="gives 1 and not 0"):
            await until(connection, LEFT, timeout=2.0)
    monkeypatch.undo()
    async with relay(shared, broker):
        await drained(connection)
    await connection.execute(f"DROP TABLE oncommit.{name}")
    await connection.execute("SELECT oncommit.make_archive_partition((oncommit.now() AT TIME ZONE 'UTC')::date)")


# ── C: crashes ────────────────────────────────────────────────────────────────────────────────────


async def charged(connection: asyncpg.Connection, other: asyncpg.Connection, shared: Database, *, alone: bool) -> int:
    """A relay dies with two events of two lanes in flight: crashes that they are charged with."""
    store, relay_id, lanes = await owner(connection)
    await add(connection, "a")
    await add(connection, "b")
    assert await connection.fetchval("SELECT count(DISTINCT lane) FROM oncommit.outbox") == 2
    windows = [Window(lane, epoch, 0, 2**40, 10) for lane, epoch in lanes.items()]
    assert len(await store.fetch(windows, batch=1, budget=10_000, alone=alone)) == 2
    await kill(other, relay_id)
    async with relay(shared, RecordingBroker()):
        await drained(connection)
    return int(await connection.fetchval("SELECT sum(crashes) FROM oncommit.outbox_archive"))


@pytest.mark.rule("C-alone")
async def test_mutation_that_takes_every_event_for_alone_charges_bystanders(
    shared: Database, connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    assert await charged(connection, other, shared, alone=False) == 0
    await emptied(shared.dsn)
    assert await charged(connection, other, shared, alone=True) == 2


@pytest.mark.rule("C-limit")
async def test_mutation_without_a_limit_what_kills_is_tried_for_ever(
    shared: Database, connection: asyncpg.Connection
) -> None:
    ended = []
    for limit in (5, 10**6):
        await emptied(shared.dsn)
        await add(connection, "a", crashes=4)
        lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
        await connection.execute(
            "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
            " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
        )  # fmt: skip
        broker = RecordingBroker()
        async with relay(shared, broker, crash_limit=limit):
            await drained(connection)
        ended.append(len(broker.ids))
    assert ended == [0, 1]


async def test_suspects_that_lie_apart_make_none_of_what_lies_between(
    shared: Database, connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """A due head and a late commit were in flight, and a backlog of their lane lies between the two."""
    store, relay_id, lanes = await owner(connection)
    await connection.execute(
        "INSERT INTO oncommit.outbox (event_type, key) SELECT 't', 'k' FROM generate_series(1, 1000)"
    )
    lane, first, last = await connection.fetchrow("SELECT lane, min(id), max(id) FROM oncommit.outbox GROUP BY lane")
    wanted = [(lane, first), (lane, first + 1), (lane, last)]
    assert len(await store.fetch_ids({lane: lanes[lane]}, wanted, batch=1, budget=10_000)) == 3
    claims = await connection.fetch("SELECT first_id, last_id, rows FROM oncommit.outbox_claim ORDER BY first_id")
    assert [tuple(claim) for claim in claims] == [(first, first + 1, 2), (last, last, 1)]
    await kill(other, relay_id)
    broker = RecordingBroker()
    async with relay(shared, broker):
        await drained(connection)
    assert len(broker.ids) == 1000
    assert len(broker.batches) < 20
