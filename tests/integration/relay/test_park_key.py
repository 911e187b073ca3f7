"""``on_dead = "park_key"``: the dead head of a key holds back what follows, for whoever reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit.brokers.base import Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.errors import PublishFailed, PublishRejected
from oncommit.relay import store as store_module
from oncommit.relay.relay import Relay
from oncommit.relay.store import Burial, Store
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.test_fences import altered, owned
from tests.integration.relay.tools import QUICK, add, drained, emptied, kill, register, until

PARKED = "SELECT count(*) FROM oncommit.outbox WHERE state = 'dead_letter' AND available_at = 'infinity'"
RECORDS = "SELECT count(*) FROM oncommit.dead_letter WHERE state = 'dead'"
ROWS = "SELECT count(*) FROM oncommit.outbox"
CLAIMS = "SELECT count(*) FROM oncommit.outbox_claim"
RELEASE = """
    WITH pending AS (
        UPDATE oncommit.outbox SET state = 'pending', available_at = NULL, attempts = 0, topic = NULL
        WHERE state = 'dead_letter' RETURNING sink, lane
    )
    UPDATE oncommit.outbox_lane l SET rescan = rescan + 1 FROM pending p WHERE l.sink = p.sink AND l.lane = p.lane
"""


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def database(shared: Database) -> Database:
    await emptied(shared.dsn)
    return shared


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="parked", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("parked")
    await client.close()


async def arrived(stream: JetStreamContext) -> list[str]:
    """The ids of all messages in the stream, in its order."""
    last = (await stream.stream_info("parked")).state.last_seq
    found = [await stream.get_msg("parked", seq) for seq in range(1, last + 1)]
    return [(message.headers or {})["message_id"] for message in found]


def relay(database: Database, broker: Any, **changes: Any) -> Relay:
    settings = msgspec.structs.replace(QUICK, on_dead="park_key", **changes)
    return Relay(database.dsn, {"main": broker}, settings=settings)


def refusing(*events: str, error: Outcome = None) -> FailingBroker:
    return FailingBroker(
        lambda message: (error or PublishRejected("too large")) if message.message_id in events else None
    )


async def test_what_nats_refuses_for_good_holds_its_key_back_across_restarts(
    database: Database, connection: asyncpg.Connection, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    (head,) = await add(connection, "a", topic="events.no subject")
    behind = await add(connection, "a", 3)
    others = await add(connection, "b", 3)
    async with relay(database, NatsBroker(oncommit_nats.url), full_pass_every=0.2):
        await until(connection, ROWS, 4)
        await until(connection, PARKED, 1)
    assert await arrived(stream) == others
    record = await connection.fetchrow("SELECT event_id::text, reason, attempts, outbox_id FROM oncommit.dead_letter")
    place = await connection.fetchval("SELECT id FROM oncommit.outbox WHERE state = 'dead_letter'")
    assert tuple(record) == (head, "permanent", 1, place)
    async with relay(database, NatsBroker(oncommit_nats.url)):  # another process: it knows nothing but the table
        behind += await add(connection, "a", 2)
        others += await add(connection, "c", 2)
        await until(connection, ROWS, 6)
        await until(connection, CLAIMS)
        assert await arrived(stream) == others
        await connection.execute(RELEASE)
        await drained(connection)
    assert await arrived(stream) == [*others, head, *behind]


async def test_attempts_that_are_spent_park_and_what_has_no_key_moves(
    database: Database, connection: asyncpg.Connection
) -> None:
    (head,) = await add(connection, "a")
    (alone,) = await add(connection, None)
    (behind,) = await add(connection, "a")
    broker = refusing(head, alone, error=PublishFailed("no"))
    async with relay(database, broker):
        await until(connection, RECORDS, 2)
        await until(connection, PARKED, 1)
        await add(connection, "b")
        await broker.wait_for(1)
        await until(connection, ROWS, 2)
    assert behind not in broker.ids
    assert broker.refused.count(head) == 5
    records = await connection.fetch("SELECT event_id::text, reason, attempts FROM oncommit.dead_letter ORDER BY 1")
    assert sorted(map(tuple, records)) == sorted([(head, "exhausted", 5), (alone, "exhausted", 5)])
    kept = await connection.fetchrow("SELECT attempts, last_error FROM oncommit.outbox WHERE state = 'dead_letter'")
    assert tuple(kept) == (5, "no")


async def test_without_park_key_the_same_events_go_on(database: Database, connection: asyncpg.Connection) -> None:
    """What the other tests of this file would see if the setting did nothing."""
    (head,) = await add(connection, "a")
    (behind,) = await add(connection, "a")
    broker = refusing(head)
    async with relay(database, broker) as running:
        assert running.sinks["main"]._settings.on_dead == "park_key"
        await until(connection, PARKED, 1)
    settings = msgspec.structs.replace(QUICK, on_dead="continue")
    await connection.execute(RELEASE)
    async with Relay(database.dsn, {"main": broker}, settings=settings):
        await drained(connection)
    assert broker.ids == [behind]
    assert await connection.fetchval("SELECT count(*) FROM oncommit.dead_letter") == 1
    assert await connection.fetchval("SELECT jsonb_array_length(history) FROM oncommit.dead_letter") == 1


async def test_a_reservation_that_has_lapsed_can_be_parked_too(
    database: Database, connection: asyncpg.Connection
) -> None:
    head = await connection.fetchval(
        "INSERT INTO oncommit.outbox (event_type, key, state, available_at)"
        " VALUES ('t', 'a', 'optimistic', oncommit.now() + '200 ms') RETURNING event_id::text"
    )
    (behind,) = await add(connection, "a")
    broker = refusing(head)
    async with relay(database, broker):
        await until(connection, PARKED, 1)
        await add(connection, "b")
        await broker.wait_for(1)
    assert behind not in broker.ids
    assert await connection.fetchval(RECORDS) == 1


async def test_an_event_that_killed_too_often_parks(database: Database, connection: asyncpg.Connection) -> None:
    await add(connection, "a")
    (behind,) = await add(connection, "a")
    lane, place = await connection.fetchrow("SELECT lane, min(id) FROM oncommit.outbox GROUP BY lane")
    await connection.execute("UPDATE oncommit.outbox SET crashes = 4 WHERE id = $1", place)
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
    )  # fmt: skip
    broker = RecordingBroker()
    async with relay(database, broker):
        await until(connection, PARKED, 1)
        others = await add(connection, "b", 2)
        await broker.wait_for(2)
        await until(connection, ROWS, 2)
    assert broker.ids == others
    assert behind not in broker.ids
    record = await connection.fetchrow("SELECT reason, crashes, attempts FROM oncommit.dead_letter")
    assert tuple(record) == ("crashed", 5, 0)


@pytest.mark.parametrize("step", ["unreserve", "park", "bury"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_that_breaks_at_any_step_ends_with_one_record_and_a_parked_head(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    (head,) = await add(connection, "a")
    behind = await add(connection, "a", 2)
    whole = getattr(Store, step)
    broken: list[str] = []

    async def breaking(self: Store, *args: Any, **kwargs: Any) -> Any:
        if broken:
            return await whole(self, *args, **kwargs)
        broken.append(step)
        if when == "after":
            await whole(self, *args, **kwargs)
        raise asyncpg.ConnectionDoesNotExistError("the answer was lost: the test says so")

    monkeypatch.setattr(Store, step, breaking)
    broker = refusing(head)
    async with relay(database, broker):
        await until(connection, PARKED, 1)
        others = await add(connection, "b", 2)
        await broker.wait_for(2)
        await until(connection, ROWS, 3)
    assert broken
    assert broker.ids == others
    assert await connection.fetchval("SELECT attempts FROM oncommit.dead_letter") == 1
    assert await connection.fetchval("SELECT history::text FROM oncommit.dead_letter") == "[]"
    monkeypatch.setattr(Store, step, whole)
    broker.judge = None
    async with relay(database, broker):
        await connection.execute(RELEASE)
        await drained(connection)
    assert broker.ids == [*others, head, *behind]


async def killed_before_it_is_written(database: Database, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that dies when it has the broker's refusal, and has written nothing of it."""
    reached = asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    dying = relay(database, broker)
    dying._leave = _not_at_all  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        patch.setattr(Store, "unreserve", never)
        task = asyncio.create_task(dying.run())
        await asyncio.wait_for(reached.wait(), 15)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _not_at_all() -> None:
    """Nothing."""


async def test_a_relay_that_dies_before_it_could_park_is_replaced(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (head,) = await add(connection, "a")
    behind = await add(connection, "a", 2)
    broker = refusing(head)
    await killed_before_it_is_written(database, broker, monkeypatch)
    assert await connection.fetchval(PARKED) == 0
    async with relay(database, broker):
        await until(connection, PARKED, 1)
        await until(connection, CLAIMS)
    assert broker.refused == [head, head]
    assert not set(behind) & set(broker.ids)


# ── Fences ────────────────────────────────────────────────────────────────────────────────────────


async def zombie_parks(database: Database) -> tuple[int, int, int]:
    """A relay parks after another has taken its lane: how many it parked, dead letters, parked heads."""
    first, second = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    zombie, zombie_id, lane, epoch, place = await owned(first)
    await kill(second, zombie_id)
    successor, _ = await register(second, "successor")
    assert len(await successor.take_lanes(10.0, 64, urgent=False)) == 64
    parked = await zombie.park([Burial(lane, epoch, place, "permanent", "X", "x")])
    found = (len(parked), await second.fetchval(RECORDS), await second.fetchval(PARKED))
    await first.close()
    await second.close()
    return found


async def test_a_zombie_parks_nothing(database: Database) -> None:
    assert await zombie_parks(database) == (0, 0, 0)


async def test_mutation_without_the_fence_a_zombie_parks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = "batch.lane = l.lane AND batch.epoch = l.epoch\n    WHERE l.sink = $3::text AND l.owner = $4::uuid"
    none = "batch.lane = l.lane\n    WHERE l.sink = $3::text AND $4::uuid IS NOT NULL"
    monkeypatch.setattr(store_module, "query", altered("relay/park", fence, none))
    assert await zombie_parks(database) == (1, 1, 1)


async def test_a_live_reservation_is_left_alone(database: Database, connection: asyncpg.Connection) -> None:
    store, _, lane, epoch, place = await owned(connection)
    await connection.execute("UPDATE oncommit.outbox SET state = 'optimistic', available_at = oncommit.now() + '1 h'")
    dead = [Burial(lane, epoch, place, "permanent", "X", "x")]
    await store.unreserve(dead)
    assert await store.park(dead) == set()
    assert await connection.fetchval("SELECT state FROM oncommit.outbox") == "optimistic"


async def test_a_row_that_cannot_be_changed_is_buried_and_the_others_are_parked(
    database: Database, connection: asyncpg.Connection
) -> None:
    """Its writer has vouched for it by giving its lane; the table refuses every change of it."""
    (odd,) = await add(connection, "a", max_attempts=-1, lane=await lane_of(connection, "a"))
    (head,) = await add(connection, "b")
    broker = refusing(odd, head)
    async with relay(database, broker):
        await until(connection, RECORDS, 2)
        await until(connection, PARKED, 1)
    assert await connection.fetchval("SELECT event_id::text FROM oncommit.outbox") == head


async def test_a_lane_full_of_parked_keys_says_that_it_stands_still(
    database: Database, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    lane = await lane_of(connection, "k0")
    keys = [key for key in (f"k{n}" for n in range(400)) if await lane_of(connection, key) == lane][:3]
    heads = [event for key in keys[:2] for event in await add(connection, key)]
    broker = refusing(*heads)
    async with relay(database, broker, most_blocked=2):
        await until(connection, PARKED, 2)
        behind = await add(connection, keys[2])
        async with asyncio.timeout(15):
            while f"lane {lane} stands still: 2 of its keys wait for an operator" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)
        broker.judge = None
        await connection.execute(RELEASE)
        await drained(connection)
    assert broker.ids[-3:] == [*heads, *behind]


async def lane_of(connection: asyncpg.Connection, key: str) -> int:
    return await connection.fetchval("SELECT oncommit.lane_of(5::smallint, $1, NULL, NULL, NULL)", key)
