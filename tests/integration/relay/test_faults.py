"""Whole relays against what goes wrong: failing events, topics, brokers, databases, tables and other relays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import asyncpg
import msgspec
import nats
import pytest
from asyncpg.transaction import Transaction

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.db.sql import query
from oncommit.errors import ConfigError, PublishFailed, PublishRejected, TopicUnavailable
from oncommit.relay import suspects as suspects_module
from oncommit.relay.lane import Lane
from oncommit.relay.relay import Relay
from oncommit.relay.store import Store
from oncommit.relay.suspects import next_stretch
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.tools import QUICK, add, drained, emptied, until

OWNED = "SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL"
FAIR = (
    "SELECT count(*) FROM"
    " (SELECT FROM oncommit.outbox_lane WHERE owner IS NOT NULL GROUP BY owner HAVING count(*) = 36) f"
)


@pytest.fixture(scope="module")
def shared(postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def database(shared: Database) -> Database:
    await emptied(shared.dsn)
    return shared


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    if not connection.is_closed():
        await connection.close()


def relay(database: Database, broker: Any, **changes: Any) -> Relay:
    return Relay(database.dsn, {"main": broker}, settings=msgspec.structs.replace(QUICK, **changes))


async def test_a_failing_event_holds_back_only_its_key(database: Database, connection: asyncpg.Connection) -> None:
    poison, *behind = await add(connection, "a", 4)
    others = await add(connection, "b", 4)
    failures = Counter[str]()

    def judge(message: Message) -> Outcome:
        if message.message_id == poison and failures[poison] < 3:
            failures[poison] += 1
            return PublishFailed("not now")
        return None

    broker = FailingBroker(judge)
    async with relay(database, broker):
        await broker.wait_for(8)
        await drained(connection)
    assert broker.ids[:4] == others
    assert broker.ids[4:] == [poison, *behind]
    attempts = await connection.fetch("SELECT event_id::text, attempts FROM oncommit.outbox_archive")
    assert {row["event_id"]: row["attempts"] for row in attempts if row["attempts"]} == {poison: 3}


async def test_what_fails_for_good_becomes_a_dead_letter_and_its_key_goes_on(
    database: Database, connection: asyncpg.Connection
) -> None:
    (refused,) = await add(connection, "a")
    (exhausted,) = await add(connection, "a")
    (last,) = await add(connection, "a")

    def judge(message: Message) -> Outcome:
        errors: dict[str, Outcome] = {refused: PublishRejected("too large"), exhausted: PublishFailed("no")}
        return errors.get(message.message_id)

    broker = FailingBroker(judge)
    async with relay(database, broker):
        await broker.wait_for(1)
        await drained(connection)
    assert broker.ids == [last]
    rows = await connection.fetch(
        "SELECT event_id::text, reason, attempts FROM oncommit.dead_letter ORDER BY outbox_id"
    )
    assert [tuple(row) for row in rows] == [(refused, "permanent", 1), (exhausted, "exhausted", 5)]


async def test_a_missing_topic_holds_back_only_itself(database: Database, connection: asyncpg.Connection) -> None:
    waiting = await add(connection, "a", 3, topic="missing")
    behind = await add(connection, "a", 1, topic="there")
    others = await add(connection, "b", 2, topic="there")
    missing = True

    def judge(message: Message) -> Outcome:
        return TopicUnavailable("no such topic") if missing and message.topic == "missing" else None

    broker = FailingBroker(judge)
    async with relay(database, broker):
        await broker.wait_for(2)
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 4)
        missing = False
        await drained(connection)
    assert broker.ids == [*others, *waiting, *behind]
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0


async def test_a_broker_that_is_down_costs_no_attempt(database: Database, connection: asyncpg.Connection) -> None:
    broker = FailingBroker()
    broker.down = True
    events = await add(connection, "a", 3)
    async with relay(database, broker):
        await until(connection, "SELECT count(*) FROM oncommit.outbox_lane", 72)
        await asyncio.wait_for(_refused(broker), 5)
        broker.down = False
        await broker.wait_for(3)
        broker.down = True
        later = await add(connection, "a", 2)
        await asyncio.wait_for(_refused(broker), 5)
        broker.down = False
        await drained(connection)
    assert broker.ids == events + later
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    assert await connection.fetchval("SELECT count(*) FROM oncommit.dead_letter") == 0


async def _refused(broker: FailingBroker) -> None:
    """Until it has been asked and has refused. A broker that is down from the start is only asked by pings."""
    broker.asked.clear()
    await broker.asked.wait()


async def test_lanes_are_shared_with_who_joins_and_taken_from_who_leaves(
    database: Database, connection: asyncpg.Connection
) -> None:
    first, second = RecordingBroker(), RecordingBroker()
    async with relay(database, first):
        await until(connection, OWNED, 72)
        async with relay(database, second):
            await until(connection, FAIR, 2)
            for number in range(20):
                await add(connection, f"k{number}", 2)
            await drained(connection)
        await until(connection, OWNED, 72)
        await add(connection, "k", 1)
        await drained(connection)
    assert first.messages
    assert second.messages
    assert len({*first.ids, *second.ids}) == 41
    assert len(first.ids) + len(second.ids) == 41
    assert await connection.fetchval(OWNED) == 0


async def test_the_lanes_of_the_dead_are_taken_when_the_lease_is_over(
    database: Database, connection: asyncpg.Connection
) -> None:
    hanging, living = RecordingBroker(), RecordingBroker()
    hanging.hold()
    events = await add(connection, "a", 3)
    dying = relay(database, hanging)
    task = asyncio.create_task(dying.run())
    await hanging.publishing.wait()
    dying._leave = _not_at_all  # type: ignore[method-assign] # killed, it takes leave of nobody
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_claim") == 1
    async with relay(database, living):
        await living.wait_for(3)
        await drained(connection)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_claim")
    assert living.ids == events
    assert living.batches[0] == 1, "suspects go by half"


async def _not_at_all() -> None:
    """Nothing."""


async def suspect_behind_a_failed_head(
    database: Database, connection: asyncpg.Connection
) -> tuple[list[str], list[str]]:
    """The claim of a dead relay covers a row whose key waits for one below it: what was sent, and what was written."""
    head, follower = await add(connection, "a", 2)
    lane, last = await connection.fetchrow("SELECT lane, max(id) FROM oncommit.outbox GROUP BY lane")
    await connection.execute(
        "UPDATE oncommit.outbox SET state = 'failed', attempts = 1, available_at = oncommit.now() + '1 second'"
        " WHERE event_id = $1::uuid", head,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1)", lane, last,
    )  # fmt: skip
    broker = RecordingBroker()
    async with relay(database, broker):
        await drained(connection)
    return broker.ids, [head, follower]


async def test_a_suspect_waits_for_the_failed_head_of_its_key(
    database: Database, connection: asyncpg.Connection
) -> None:
    sent, written = await suspect_behind_a_failed_head(database, connection)
    assert sent == written


@pytest.mark.rule("C-below")
async def test_mutation_suspects_that_are_tried_at_once_overtake(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(lane: Lane) -> tuple[int, int, bool] | None:
        if lane.suspects:
            lane.order.floor = max(lane.order.floor, lane.suspects[0].first - 1)
        return next_stretch(lane)

    monkeypatch.setattr(suspects_module, "next_stretch", at_once)
    sent, written = await suspect_behind_a_failed_head(database, connection)
    assert sent == written[::-1]


class CommittingBroker(RecordingBroker):
    """Ends somebody's transaction with the first thing that it takes."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__()
        self._transaction: Transaction | None = transaction

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            await transaction.commit()
        return await super().publish(batch, timeout=timeout)


async def suspects_around_a_late_commit(database: Database, connection: asyncpg.Connection) -> list[bool]:
    """Between two suspects lies the second event of a transaction that commits when the first of them is tried.

    Of its two events, in the order of their arrival: whether it is the first.
    """
    place = "oncommit.lane_of(5::smallint, {}, NULL, NULL, oncommit.make_id())"
    before, behind = await connection.fetchrow(
        f"SELECT min(k), max(k) FROM (SELECT 'x' || n AS k FROM generate_series(1, 500) AS n) AS keys"
        f" WHERE {place.format('k')} = {place.format(repr('a'))}"
    )
    writer = await asyncpg.connect(database.dsn)
    transaction = writer.transaction()
    await transaction.start()
    (first,) = await add(writer, "a")
    await add(connection, before)
    (second,) = await add(writer, "a")
    await add(connection, behind)
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows)"
        " SELECT gen_random_uuid(), 'main', 1, lane, 1, min(id), max(id), 2 FROM oncommit.outbox GROUP BY lane"
    )
    broker = CommittingBroker(transaction)
    async with relay(database, broker):
        await broker.wait_for(4)
        await drained(connection)
    await writer.close()
    return [one == first for one in broker.ids if one in (first, second)]


@pytest.mark.rule("S-whole")
async def test_what_commits_among_suspects_comes_in_order(database: Database, connection: asyncpg.Connection) -> None:
    assert await suspects_around_a_late_commit(database, connection) == [True, False]


@pytest.mark.rule("S-whole")
async def test_mutation_suspects_without_a_look_back_reorder(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(_self: Store) -> list[str]:
        return []

    monkeypatch.setattr(Store, "holders", nobody)
    assert await suspects_around_a_late_commit(database, connection) == [False, True]


async def test_the_full_pass_finds_what_no_rule_foresaw(database: Database, connection: asyncpg.Connection) -> None:
    """A hand-placed id below the floor, and a parked head that somebody deleted without a word."""
    broker = RecordingBroker()
    async with relay(database, broker, full_pass_every=0.3):
        await add(connection, "a")
        await drained(connection)
        async with connection.transaction():
            parked = await add(connection, "b")
            await connection.execute("UPDATE oncommit.outbox SET state = 'dead_letter', available_at = 'infinity'")
            behind = await add(connection, "b")
        others = await add(connection, "a", 3)
        await broker.wait_for(4)
        await connection.execute(
            "INSERT INTO oncommit.outbox (id, event_type, key) OVERRIDING SYSTEM VALUE VALUES (1, 't', 'c')"
        )
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 2)
        await connection.execute("DELETE FROM oncommit.outbox WHERE event_id = $1::uuid", parked[0])
        await drained(connection)
    assert broker.ids[1:4] == others
    assert broker.ids[5:] == behind
    assert parked[0] not in broker.ids


async def test_a_broker_that_is_away_charges_no_suspect(database: Database, connection: asyncpg.Connection) -> None:
    (event,) = await add(connection, "a")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
    )  # fmt: skip
    refusals = Counter[str]()

    def judge(message: Message) -> Outcome:
        from oncommit.errors import BrokerUnavailable

        refusals[message.message_id] += 1
        return BrokerUnavailable("away") if refusals[message.message_id] < 8 else None

    broker = FailingBroker(judge)
    async with relay(database, broker):
        await broker.wait_for(1)
        await drained(connection)
    assert broker.ids == [event]
    assert await connection.fetchval("SELECT crashes FROM oncommit.outbox_archive") == 1


async def test_an_event_that_kills_is_found_and_buried(database: Database, connection: asyncpg.Connection) -> None:
    """Each relay dies with what it publishes, where the poison is in it; the others of the batch are not charged."""
    events = await add(connection, "a", 1) + [one for n in range(5) for one in await add(connection, "a", 1)]
    poison = events[3]
    sent: list[str] = []
    for _ in range(20):
        broker = _Deadly(poison)
        victim = relay(database, broker, lease=0.8, statement_timeout=0.5)
        victim._leave = _not_at_all  # type: ignore[method-assign]
        task = asyncio.create_task(victim.run())
        done = asyncio.create_task(drained(connection))
        died = asyncio.create_task(broker.died.wait())
        await asyncio.wait({done, died}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sent += broker.ids
        finished = done.done()
        for other in (done, died):
            other.cancel()
        await asyncio.gather(done, died, return_exceptions=True)
        if finished:
            break
        # The lease of the dead is over at once, so that the test need not wait for it.
        await connection.execute("DELETE FROM oncommit.outbox_relay")
    else:
        raise AssertionError("not found in 20 lives")
    assert list(dict.fromkeys(sent)) == [event for event in events if event != poison]
    (dead,) = await connection.fetch("SELECT event_id::text, reason, crashes FROM oncommit.dead_letter")
    assert tuple(dead) == (poison, "crashed", 5)
    assert await connection.fetchval("SELECT max(crashes) FROM oncommit.outbox_archive") == 0


class _Deadly(RecordingBroker):
    """Never comes back from a batch with the poison in it."""

    def __init__(self, poison: str) -> None:
        super().__init__()
        self.poison = poison
        self.died = asyncio.Event()

    async def publish(self, batch: Any, *, timeout: float) -> Any:
        if self.poison in [message.message_id for message in batch]:
            self.died.set()
            await asyncio.Event().wait()
        return await super().publish(batch, timeout=timeout)


async def test_an_adapter_that_raises_does_not_stop_the_sink(
    database: Database, connection: asyncpg.Connection
) -> None:
    raised = Counter[str]()

    def judge(message: Message) -> Outcome:
        raised[message.message_id] += 1
        if raised[message.message_id] == 1:
            raise KeyError("a bug of an adapter")
        return None

    broker = FailingBroker(judge)
    events = await add(connection, "a", 2)
    async with relay(database, broker):
        await drained(connection)
    assert [one for one in broker.ids if one in events] == events


async def test_odd_rows_of_plain_sql_hold_nobody_up(database: Database, connection: asyncpg.Connection) -> None:
    odd = [
        *await add(connection, "a", headers='{"a": 1e999}'),
        *await add(connection, "b", headers='{"a": "\\ud800"}'),
        *await add(connection, "c", headers="[" * 0 + '{"deep": ' + "[" * 3000 + "]" * 3000 + "}"),
        *await add(connection, "d", headers='{"message_id": "forged", "n": 5, "o": {"x": 1}, "nul": "\\u0000"}'),
    ]
    good = [one for key in "abcdx" for one in await add(connection, key)]
    broker = RecordingBroker()
    async with relay(database, broker):
        await drained(connection)
    dead = [row[0] for row in await connection.fetch("SELECT event_id::text FROM oncommit.dead_letter")]
    assert set(good) <= set(broker.ids)
    assert sorted({*dead, *broker.ids}) == sorted({*odd, *good})
    assert set(odd[:2]) <= set(dead)
    assert all(message.headers["message_id"] == message.message_id for message in broker.messages)


async def test_hands_in_the_tables(database: Database, connection: asyncpg.Connection) -> None:
    """Lanes emptied, the relay's row deleted, a row changed behind its back and a rescan: it goes on."""
    broker = FailingBroker()
    async with relay(database, broker) as running:
        await add(connection, "a")
        await drained(connection)
        await connection.execute("TRUNCATE oncommit.outbox_lane")
        await add(connection, "a")
        await drained(connection)
        before = running.relay_id
        await connection.execute("DELETE FROM oncommit.outbox_relay")
        await until(connection, f"SELECT count(*) FROM oncommit.outbox_relay WHERE relay_id <> '{before}'", 1)
        await add(connection, "a")
        await drained(connection)
        await until(connection, f"SELECT count(*) FROM oncommit.outbox_lane WHERE owner = '{before}'", 0)
        failing = True
        broker.judge = lambda message: PublishFailed("no") if failing else None
        await add(connection, "a", max_attempts=100)
        await until(connection, "SELECT count(*) FROM oncommit.outbox WHERE state = 'failed'", 1)
        await connection.execute("UPDATE oncommit.outbox SET available_at = 'infinity'")
        await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
        await until(connection, "SELECT count(*) FROM oncommit.outbox WHERE available_at = 'infinity'", 1)
        failing = False
        await connection.execute("UPDATE oncommit.outbox SET state = 'pending', available_at = NULL")
        await connection.execute("UPDATE oncommit.outbox_lane SET rescan = rescan + 1")
        await drained(connection)
    assert len(broker.ids) == 4


async def drop_today(connection: asyncpg.Connection) -> str:
    name = await connection.fetchval("SELECT to_char(oncommit.now() AT TIME ZONE 'UTC', '\"outbox_archive_\"YYYYMMDD')")
    await connection.execute(f"ALTER TABLE oncommit.outbox_archive DETACH PARTITION oncommit.{name}")
    return str(name)


async def test_a_partition_that_is_missing_is_made(database: Database, connection: asyncpg.Connection) -> None:
    await connection.execute(f"DROP TABLE oncommit.{await drop_today(connection)}")
    await add(connection, "a", 3)
    async with relay(database, RecordingBroker()):
        await drained(connection)
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == 3


async def test_without_a_partition_that_can_be_made_delivery_goes_on(
    database: Database, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    name = await drop_today(connection)  # detached only: its name is taken
    await add(connection, "a", 3)
    broker = RecordingBroker()
    async with relay(database, broker):
        await drained(connection)
    assert len(broker.ids) == 3
    assert "without a copy in the archive" in caplog.text
    await connection.execute(f"DROP TABLE oncommit.{name}")
    await connection.execute("SELECT oncommit.make_archive_partition((oncommit.now() AT TIME ZONE 'UTC')::date)")


async def test_a_sink_that_hangs_holds_up_no_other(database: Database, connection: asyncpg.Connection) -> None:
    hanging, living = RecordingBroker(), RecordingBroker()
    hanging.hold()
    await add(connection, "a", 2)
    await add(connection, "a", 2, sink="other")
    both = Relay(database.dsn, {"main": hanging, "other": living}, settings=QUICK)
    async with both:
        await hanging.publishing.wait()
        await living.wait_for(2)
        await until(connection, "SELECT count(*) FROM oncommit.outbox WHERE sink = 'other'")
        # Past its lease, which is renewed meanwhile, it still has its lanes.
        assert hanging.messages == []
        hanging.release()
        await drained(connection)


async def test_a_url_that_is_none_ends_the_relay_with_its_error() -> None:
    with pytest.raises(ConfigError):
        await asyncio.wait_for(Relay("nonsense://", {"main": RecordingBroker()}).run(), 10)


async def test_a_relay_whose_registration_got_no_answer_registers_again(
    database: Database, connection: asyncpg.Connection
) -> None:
    one = relay(database, RecordingBroker())
    for _ in range(2):
        await connection.fetch(query("relay/register"), one.relay_id, "r", [], "x")
    async with one:
        await add(connection, "a")
        await drained(connection)


async def test_postgresql_restarts_in_mid_stream(oncommit_servers: Any, oncommit_make_template: Any) -> None:
    """A batch is in flight while the server goes away and comes back; what was acknowledged is not sent again."""
    from oncommit.testing.servers import postgres

    server = await asyncio.to_thread(lambda: postgres(18).__enter__())
    try:
        databases = Databases(server, oncommit_make_template)
        database = await asyncio.to_thread(databases.create)
        connection = await asyncpg.connect(database.dsn)
        events = await add(connection, "a", 3) + await add(connection, "b", 3)
        await connection.close()
        broker = RecordingBroker()
        broker.hold()
        async with relay(database, broker, lease=20.0):
            await broker.publishing.wait()
            await asyncio.to_thread(server.kill)
            broker.release()
            await broker.wait_for(6)
            await asyncio.to_thread(server.start)
            connection = await asyncpg.connect(database.dsn)
            await drained(connection)
            events += await add(connection, "a", 2)
            await drained(connection)
            await connection.close()
        assert sorted(broker.ids) == sorted(events)
    finally:
        await asyncio.to_thread(server.close)


async def test_a_payload_that_nats_does_not_take(
    database: Database, connection: asyncpg.Connection, oncommit_nats: AnyServer
) -> None:
    client = await nats.connect(oncommit_nats.url)
    stream = client.jetstream()
    await stream.add_stream(name="big", subjects=["big.>"])
    try:
        (large,) = await add(connection, "a", topic="big.one", payload='"' + "x" * client.max_payload + '"')
        await add(connection, "a", topic="big.one")
        (nowhere,) = await add(connection, "b", topic="nowhere.yet")
        async with relay(database, NatsBroker(oncommit_nats.url)):
            await until(connection, "SELECT count(*) FROM oncommit.outbox", 1)
            await stream.add_stream(name="nowhere", subjects=["nowhere.>"])
            await drained(connection)
        rows = await connection.fetch("SELECT event_id::text, reason FROM oncommit.dead_letter")
        assert [tuple(row) for row in rows] == [(large, "permanent")]
        assert (await stream.stream_info("big")).state.messages == 1
        assert (await stream.stream_info("nowhere")).state.messages == 1
        assert nowhere
    finally:
        await stream.delete_stream("big")
        await stream.delete_stream("nowhere")
        await client.close()
