"""Rows that only plain SQL writes, or who gives the lane and so vouches for his row: none of them stops the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import nats
import pytest

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats import NatsBroker
from oncommit.errors import PublishFailed, PublishRejected
from oncommit.relay.relay import Relay
from oncommit.relay.store import Window
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.tools import QUICK, add, drained, emptied, register, until

MB = 2**20


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


async def vouched(connection: asyncpg.Connection, key: str, **columns: Any) -> str:
    """A row that nobody looks at, since its writer gives the lane."""
    lane = await connection.fetchval("SELECT oncommit.lane_of(5::smallint, $1, NULL, NULL, NULL)", key)
    return (await add(connection, key, lane=lane, **columns))[0]


async def recorded(connection: asyncpg.Connection) -> dict[str, str]:
    """Events by id, with how they ended."""
    rows = await connection.fetch(
        "SELECT event_id::text, 'sent' AS ended FROM oncommit.outbox_archive"
        " UNION ALL SELECT event_id::text, reason FROM oncommit.dead_letter"
    )
    assert len({row["event_id"] for row in rows}) == len(rows)
    return dict(rows)


async def test_many_large_rows_can_be_read_within_the_time_limit(connection: asyncpg.Connection) -> None:
    """Forty times 30 MB, small on disk: only what fits the budget is unpacked."""
    store, _ = await register(connection, timeout=5.0)
    await store.make_lanes()
    lanes = {row.lane: row.epoch for row in await store.take_lanes(10.0, 64, urgent=False)}
    await connection.execute(
        "INSERT INTO oncommit.outbox (event_type, key, payload)"
        " SELECT 't', 'k' || n, ('\"' || repeat('x', $1) || '\"')::json FROM generate_series(1, 40) AS n", 30 * MB,
    )  # fmt: skip
    rows = await store.fetch(
        [Window(lane, epoch, 0, 2**40, 32) for lane, epoch in lanes.items()], batch=1, budget=8 * MB
    )
    assert [len(row.data or b"") for row in rows] == [30 * MB + 2]
    named = await connection.fetch("SELECT lane, id FROM oncommit.outbox")
    rows = await store.fetch_ids(lanes, [(row["lane"], row["id"]) for row in named], batch=2, budget=8 * MB)
    assert len(rows) == 1


async def test_what_is_too_large_for_nats_is_dead_and_others_flow(
    connection: asyncpg.Connection, shared: Database, oncommit_nats: AnyServer
) -> None:
    client = await nats.connect(oncommit_nats.url)
    stream = client.jetstream()
    await stream.add_stream(name="large", subjects=["large.>"])
    try:
        payload = '"' + "x" * 30 * MB + '"'
        (large,) = await add(connection, "a", topic="large.one", payload=payload)
        others = [one for key in "aabc" for one in await add(connection, key, topic="large.one")]
        async with Relay(shared.dsn, {"main": NatsBroker(oncommit_nats.url)}, settings=QUICK):
            await drained(connection)
        assert await recorded(connection) == {large: "permanent", **dict.fromkeys(others, "sent")}
        assert (await stream.stream_info("large")).state.messages == 4
    finally:
        await stream.delete_stream("large")
        await client.close()


async def test_headers_that_are_none_end_their_event_alone(connection: asyncpg.Connection, shared: Database) -> None:
    bad = {
        await vouched(connection, "a", headers="[1, 2]"),
        await vouched(connection, "a", headers='"text"'),
        await vouched(connection, "b", headers="null"),
        await vouched(connection, "b", headers="17"),
    }
    odd = [
        *await add(connection, "c", headers='{"n": 17, "list": [1], "none": null, "true": true}'),
        *await add(connection, "d", headers='{"line": "a\\r\\nb", "bell": "\\u0007", "": "no name", "é ü": "ö"}'),
        *await add(connection, "e", headers='{"traceparent": 17, "tracestate": [], "ce_id": "forged", "id": "x"}'),
    ]  # fmt: skip
    good = [one for key in "abcde" for one in await add(connection, key, 2)]
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=QUICK):
        await drained(connection)
    ended = await recorded(connection)
    assert {event for event in bad if ended[event] == "permanent"} == bad
    assert {ended[event] for event in good} == {"sent"}
    assert set(ended) == {*bad, *odd, *good}
    for message in broker.messages:
        assert all(isinstance(value, str) for value in message.headers.values())
        assert not [value for value in message.headers.values() if set(value) & set("\r\n\0")]
        assert message.headers["message_id"] == message.message_id


async def test_counts_at_their_end_do_not_overflow(connection: asyncpg.Connection, shared: Database) -> None:
    (most,) = await add(connection, "a", attempts=2**31 - 1)
    (rejected,) = await add(connection, "b", attempts=2**31 - 1, crashes=2**31 - 1)
    good = [*await add(connection, "a"), *await add(connection, "b")]

    def judge(message: Message) -> Outcome:
        errors: dict[str, Outcome] = {most: PublishFailed("no"), rejected: PublishRejected("never")}
        return errors.get(message.message_id)

    async with Relay(shared.dsn, {"main": FailingBroker(judge)}, settings=QUICK):
        await drained(connection)
    assert await recorded(connection) == {most: "exhausted", rejected: "permanent", **dict.fromkeys(good, "sent")}


async def test_what_died_alone_is_charged_also_at_the_end_of_the_count(
    connection: asyncpg.Connection, shared: Database
) -> None:
    (event,) = await add(connection, "a", crashes=2**31 - 1)
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
    )  # fmt: skip
    async with Relay(shared.dsn, {"main": RecordingBroker()}, settings=QUICK):
        await drained(connection)
    assert await recorded(connection) == {event: "crashed"}


async def test_a_row_that_says_too_much_can_still_die(connection: asyncpg.Connection, shared: Database) -> None:
    """Both bodies, which the dead letters do not allow."""
    both = await vouched(connection, "a", payload='{"n": 1}', data=b"bytes")
    (good,) = await add(connection, "a")

    def judge(message: Message) -> Outcome:
        return PublishRejected("never") if message.message_id == both else None

    async with Relay(shared.dsn, {"main": FailingBroker(judge)}, settings=QUICK):
        await drained(connection)
    assert await recorded(connection) == {both: "permanent", good: "sent"}


async def test_a_row_that_nobody_can_change_dies_of_its_failure(
    connection: asyncpg.Connection, shared: Database
) -> None:
    both = await vouched(connection, "a", payload='{"n": 1}', data=b"bytes")
    failing = await add(connection, "b", 3)
    (good,) = await add(connection, "a")
    refused: set[str] = set()

    def judge(message: Message) -> Outcome:
        if message.message_id == good or message.message_id in refused:
            return None
        refused.add(message.message_id)
        return PublishFailed("not now")

    async with Relay(shared.dsn, {"main": FailingBroker(judge)}, settings=QUICK):
        await drained(connection)
    assert await recorded(connection) == {both: "permanent", **dict.fromkeys([*failing, good], "sent")}


async def test_a_row_that_cannot_be_charged_is_not_tried_for_ever(
    connection: asyncpg.Connection, shared: Database
) -> None:
    event = await vouched(connection, "a", payload='{"n": 1}', data=b"bytes")
    lane, place = await connection.fetchrow("SELECT lane, id FROM oncommit.outbox")
    await connection.execute(
        "INSERT INTO oncommit.outbox_claim (relay_id, sink, batch, lane, epoch, first_id, last_id, rows, alone)"
        " VALUES (gen_random_uuid(), 'main', 1, $1, 1, $2, $2, 1, true)", lane, place,
    )  # fmt: skip
    async with Relay(shared.dsn, {"main": RecordingBroker()}, settings=QUICK):
        await drained(connection)
    assert await recorded(connection) == {event: "crashed"}


async def test_what_no_index_of_the_archive_takes_is_sent_without_a_copy(
    connection: asyncpg.Connection, shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    long = "".join(await connection.fetchval("SELECT array_agg(md5(n::text)) FROM generate_series(1, 400) AS n"))
    await vouched(connection, "a", correlation_id=long)
    good = await add(connection, "a", 2)
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=QUICK):
        await drained(connection)
    assert broker.ids[1:] == good
    assert len(broker.ids) == 3
    assert set(good) <= set(await recorded(connection))
    assert "without a copy in the archive" in caplog.text


async def test_a_sink_that_nobody_serves_waits_and_is_shown(connection: asyncpg.Connection, shared: Database) -> None:
    from oncommit.ops.stats import read_stats

    await add(connection, "a", 2, sink="nowhere")
    good = await add(connection, "a", 2)
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=QUICK):
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 2)
        (waiting,) = [sink for sink in (await read_stats(connection)).sinks if sink.sink == "nowhere"]
        assert waiting.pending == 2
    assert broker.ids == good
    assert await connection.fetchval("SELECT count(*) FROM oncommit.events WHERE sink = 'nowhere'") == 2


async def test_places_that_were_given_by_hand(connection: asyncpg.Connection, shared: Database) -> None:
    """Below the floor, above the sequence, at the end of the numbers: sent when they are reached, nobody waits."""
    by_hand = "INSERT INTO oncommit.outbox (id, event_type, key) OVERRIDING SYSTEM VALUE VALUES ($1, 't', $2)"
    first = await add(connection, "a", 3)
    broker = RecordingBroker()
    async with Relay(shared.dsn, {"main": broker}, settings=QUICK):
        await drained(connection)
        await connection.execute(by_hand, 10, "a")
        await connection.execute(by_hand, 2**63 - 1, "b")
        others = [*await add(connection, "a", 2), *await add(connection, "b", 2)]
        await broker.wait_for(len(first) + len(others))
        await add(connection, "c", 5)  # now the sequence has come to the place above it
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 1)
        assert await connection.fetchval("SELECT id FROM oncommit.outbox") == 2**63 - 1
    assert set(first + others) <= set(broker.ids)
