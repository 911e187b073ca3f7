"""Archived events again: as new events that name the old ones, in their order, batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from oncommit.cli.main import run
from oncommit.errors import ConfigError, DatabaseUnreachable
from oncommit.ops import replay as replay_module
from oncommit.ops.events import show_event
from oncommit.ops.replay import ReplayFilter, ReplayPlace, ReplayStep, plan_replay, replay_events
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.maintenance.tools import cleared, relay, set_clock
from tests.integration.relay.tools import add, drained, until

NOON = datetime(2026, 5, 20, 12, 0, tzinfo=UTC)
COLUMNS = (
    "created_at, saga_id, max_attempts, schema_version, priority, sink, event_type, aggregate_type, aggregate_id, key,"
    " topic, content_type, correlation_id, causation_id, payload::text, data"
)


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def database(shared: Database) -> Database:
    await cleared(shared.dsn)
    return shared


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.dsn)
    yield connection
    await connection.close()


async def archive(connection: asyncpg.Connection, sent: datetime, key: str | None = None, **columns: Any) -> str:
    """An event that was archived then; its id."""
    await connection.execute("SELECT oncommit.make_archive_partition($1)", sent.date())
    values = {
        "event_id": uuid4(), "event_type": "t", "key": key, "content_type": "application/json", "headers": "{}",
        "sink": "main", "priority": 5, "schema_version": 1, "attempts": 0, "crashes": 0, "lane": 0,
        "created_at": sent - timedelta(seconds=1), "sent_at": sent, "archived_at": sent, **columns,
    }  # fmt: skip
    values.setdefault("id", await connection.fetchval("SELECT nextval('oncommit.outbox_id_seq')"))
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await connection.execute(
        f"INSERT INTO oncommit.outbox_archive ({', '.join(values)}) VALUES ({places})", *values.values()
    )
    return str(values["event_id"])


async def replay(connection: asyncpg.Connection, start: datetime, **wanted: Any) -> list[ReplayStep]:
    return [step async for step in replay_events(connection, ReplayFilter(start=start, **wanted))]


async def named(connection: asyncpg.Connection) -> list[str]:
    """Which old events the live ones name, in the order of writing."""
    rows = await connection.fetch("SELECT headers ->> 'replay_of' FROM oncommit.outbox ORDER BY id")
    return [row[0] for row in rows]


async def test_all_the_way_to_the_broker_and_back(database: Database, connection: asyncpg.Connection) -> None:
    """Delivered, published again, delivered again: the same bytes, the same order, other ids that name the old."""
    body = '{"total": 9.90,  "n": 12345678901234567890.10}'
    written = [
        *await add(connection, "a", 3, payload=body, headers='{"tier":"gold","traceparent":"x"}'),
        *await add(connection, "b", 2, data=b"\x00\xff\x01", content_type="x/y"),
    ]
    broker = RecordingBroker()
    async with relay(database, broker):
        await drained(connection)
        first = list(broker.messages)
        start = await connection.fetchval("SELECT min(archived_at) FROM oncommit.outbox_archive")
        steps = await replay(connection, start)
        assert steps[-1].events == 5
        await broker.wait_for(10)
        await drained(connection)
        again = broker.messages[5:]
    by_old = {dict(message.headers)["replay_of"]: message for message in again}
    assert sorted(by_old) == sorted(written)
    for old in first:
        new = by_old[old.message_id]
        assert new.message_id != old.message_id
        assert (new.topic, new.key, new.body) == (old.topic, old.key, old.body)
        before = {name: value for name, value in dict(old.headers).items() if value != old.message_id}
        after = {name: value for name, value in dict(new.headers).items() if value != new.message_id}
        assert after == before | {"replay_of": old.message_id}
    for key in ("a", "b"):
        olds = [message.message_id for message in first if message.key == key]
        assert [dict(message.headers)["replay_of"] for message in again if message.key == key] == olds
    # A second time, from the beginning: what was published again is itself archived now, and names what it came from.
    assert (await replay(connection, start))[-1].events == 10


async def test_everything_but_id_and_header_is_as_it_was(connection: asyncpg.Connection) -> None:
    await set_clock(connection, NOON)
    old = await archive(
        connection, NOON - timedelta(hours=1), "k", saga_id=uuid4(), max_attempts=3, schema_version=2, priority=9,
        sink="audit", aggregate_type="o", aggregate_id="1", topic="x", correlation_id="c", causation_id="d",
        headers='{ "a": "1" , "n": 1.10 } ', payload='{"b": 1.000,  "a":2}', last_error="before", attempts=4, crashes=1,
    )  # fmt: skip
    await archive(connection, NOON - timedelta(minutes=59), data=b"\x00\xff", content_type="x/y", headers=" { } ")
    before = await connection.fetch(f"SELECT {COLUMNS} FROM oncommit.outbox_archive ORDER BY archived_at")
    await replay(connection, NOON - timedelta(days=1))
    after = await connection.fetch(f"SELECT {COLUMNS}, headers::text, event_id FROM oncommit.outbox ORDER BY id")
    assert [tuple(row)[:-2] for row in after] == [tuple(row) for row in before]
    assert after[0]["headers"] == f'{{ "a": "1" , "n": 1.10,"replay_of":"{old}"}}'
    assert json.loads(after[1]["headers"]).keys() == {"replay_of"}
    assert len({row["event_id"] for row in after} | {UUID(old)}) == 3
    rest = await connection.fetch("SELECT state, attempts, crashes, last_error, lane FROM oncommit.outbox ORDER BY id")
    assert [tuple(row)[:4] for row in rest] == [("pending", 0, 0, None)] * 2
    assert rest[0]["lane"] >= 64
    assert (await show_event(connection, after[0]["event_id"])).headers == {"a": "1", "n": 1.1, "replay_of": old}


async def test_what_is_wanted(connection: asyncpg.Connection) -> None:
    await set_clock(connection, NOON)
    hour = timedelta(hours=1)
    early = await archive(connection, NOON - 3 * hour, aggregate_type="o", aggregate_id="1", event_type="o.a")
    b_type = await archive(connection, NOON - 2 * hour, aggregate_type="o", aggregate_id="2", event_type="o.b")
    c_type = await archive(
        connection, NOON - 2 * hour, aggregate_type="p", aggregate_id="1", event_type="o.c", topic="x"
    )
    late = await archive(connection, NOON - hour, sink="audit", event_type="o.a")

    async def found(start: datetime = NOON - 9 * hour, **wanted: Any) -> list[str]:
        plan = await plan_replay(connection, ReplayFilter(start=start, **wanted))
        await replay(connection, start, **wanted)
        names = await named(connection)
        await connection.execute("TRUNCATE oncommit.outbox")
        assert plan.events == len(names)
        return names

    assert await found() == [early, b_type, c_type, late]
    assert await found(NOON - 2 * hour) == [b_type, c_type, late]
    assert await found(end=NOON - hour) == [early, b_type, c_type]
    assert await found(NOON - 2 * hour, end=NOON - hour) == [b_type, c_type]
    assert await found(types=("o.a", "o.b")) == [early, b_type, late]
    assert await found(aggregate_type="o") == [early, b_type]
    assert await found(aggregate_type="o", aggregate_id="2") == [b_type]
    assert await found(topic="x") == [c_type]
    assert await found(sink="audit") == [late]
    assert await found(start=NOON + hour) == []
    plan = await plan_replay(connection, ReplayFilter(start=NOON - 9 * hour))
    assert (plan.first, plan.last, plan.end) == (NOON - 3 * hour, NOON - hour, NOON)
    assert {(group.event_type, group.topic, group.sink): group.events for group in plan.groups} == {
        ("o.a", None, "main"): 1, ("o.a", None, "audit"): 1, ("o.b", None, "main"): 1, ("o.c", "x", "main"): 1,
    }  # fmt: skip


async def test_to_another_topic(connection: asyncpg.Connection) -> None:
    await set_clock(connection, NOON)
    await archive(connection, NOON - timedelta(hours=1), topic="x")
    await archive(connection, NOON - timedelta(hours=1))
    await replay(connection, NOON - timedelta(hours=2), to_topic="again")
    assert await connection.fetchval("SELECT array_agg(DISTINCT topic) FROM oncommit.outbox") == ["again"]


async def test_order_over_batches_and_windows(connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at one moment, long stretches of nothing, days between: all of it once, in the order of archiving."""
    monkeypatch.setattr(replay_module, "BATCH_ROWS", 7)
    await set_clock(connection, NOON)
    moments = [NOON - timedelta(days=3)] * 20
    moments += [NOON - timedelta(days=2, microseconds=-n) for n in range(30)]
    moments += [NOON - timedelta(microseconds=1)] * 9
    expected = [await archive(connection, moment, f"k{n % 3}") for n, moment in enumerate(moments)]
    steps = await replay(connection, NOON - timedelta(days=10))
    assert await named(connection) == expected
    assert steps[-1].events == len(expected)
    assert steps[-1].place.archived_at == NOON
    assert max(b.events - a.events for a, b in pairwise(steps)) == 7
    assert len(steps) < 60


async def test_a_batch_is_bounded_in_bytes_too(connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "BATCH_BYTES", 2_500_000)
    await set_clock(connection, NOON)
    bodies = [os.urandom(1_000_000) for _ in range(5)]
    for body in bodies:
        await archive(connection, NOON - timedelta(hours=1), data=body, content_type="x/y")
    counts = [step.events for step in await replay(connection, NOON - timedelta(hours=1))]
    assert counts[:2] == [3, 5]
    rows = await connection.fetch("SELECT data FROM oncommit.outbox ORDER BY id")
    assert [row["data"] for row in rows] == bodies
    monkeypatch.setattr(replay_module, "BATCH_BYTES", 1)
    assert (await replay(connection, NOON - timedelta(hours=1)))[-1].events == 5


async def test_it_can_stop_anywhere_and_go_on(connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "BATCH_ROWS", 4)
    await set_clock(connection, NOON)
    start = NOON - timedelta(hours=1)
    expected = [await archive(connection, start + timedelta(seconds=n // 6), "k") for n in range(20)]
    place: ReplayPlace | None = None
    for _ in range(100):
        stopped = False
        async for step in replay_events(connection, ReplayFilter(start=start, after=place)):
            place, stopped = ReplayPlace.parse(str(step.place)), True
            break
        if not stopped:
            break
    assert await named(connection) == expected


async def test_a_replay_does_not_meet_its_own_events(database: Database, connection: asyncpg.Connection) -> None:
    await add(connection, "a", 3)
    async with relay(database, RecordingBroker()):
        await drained(connection)
        start = await connection.fetchval("SELECT min(archived_at) FROM oncommit.outbox_archive")
        total, begun = 0, await connection.fetchval("SELECT now() + interval '1 minute'")
        async for step in replay_events(connection, ReplayFilter(start=start, end=start + timedelta(days=300))):
            total = step.events
            assert step.place.archived_at <= begun
            await drained(connection)  # they are archived again while it goes on
        assert total == 3
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == 6


async def test_older_than_is_kept_wants_a_word(connection: asyncpg.Connection) -> None:
    await set_clock(connection, NOON)
    await archive(connection, NOON - timedelta(days=20))
    kept = NOON.replace(hour=0) - timedelta(days=14)
    assert (await plan_replay(connection, ReplayFilter(start=kept))).events == 0
    before = kept - timedelta(seconds=1)
    with pytest.raises(ConfigError, match="14 days are agreed on"):
        await plan_replay(connection, ReplayFilter(start=before))
    with pytest.raises(ConfigError, match="14 days are agreed on"):
        await replay(connection, before)
    assert (await replay(connection, NOON - timedelta(days=30), older=True))[-1].events == 1


async def test_what_cannot_be_asked(connection: asyncpg.Connection) -> None:
    with pytest.raises(ConfigError, match="time zone"):
        ReplayFilter(start=datetime(2026, 5, 1))  # noqa: DTZ001 - that is what is refused
    with pytest.raises(ConfigError, match="must come after"):
        ReplayFilter(start=NOON, end=NOON)
    for topic in ("", "a\nb", "x" * 256):
        with pytest.raises(ConfigError, match="to_topic"):
            ReplayFilter(start=NOON, to_topic=topic)
    with pytest.raises(ConfigError, match="NUL"):
        ReplayFilter(start=NOON, types=("a\0",))
    for place in ("", "1", "1.2.3", "x.1", f"{10**30}.1"):
        with pytest.raises(ConfigError, match="no place"):
            ReplayPlace.parse(place)
    async with connection.transaction():
        with pytest.raises(ConfigError, match="commits batch by batch"):
            await replay(connection, datetime.now(UTC))


async def test_a_lost_connection_says_so(database: Database, connection: asyncpg.Connection) -> None:
    other = await asyncpg.connect(database.dsn)
    for n in range(3):
        await archive(connection, datetime.now(UTC) - timedelta(minutes=30 - n))
    steps = replay_events(other, ReplayFilter(start=datetime.now(UTC) - timedelta(hours=1)))
    await anext(steps)
    await connection.execute("SELECT pg_terminate_backend($1)", other.get_server_pid())
    with pytest.raises(DatabaseUnreachable):
        async for _ in steps:
            pass
    await other.close()


# ── On the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def three(connection: asyncpg.Connection) -> list[str]:
    now = await connection.fetchval("SELECT now()")
    return [await archive(connection, now - timedelta(minutes=9 - n), "a", topic="x") for n in range(3)]


async def command(database: Database, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oncommit", "events", "replay", "--database", database.dsn, *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_dry_run_publishes_nothing(
    database: Database, connection: asyncpg.Connection, three: list[str]
) -> None:
    code, out, _ = await command(database, "--from", "1h", "--dry-run", "--to-topic", "again")
    assert code == 0
    assert out.splitlines()[1].split() == ["3", "t", "again", "main"]
    code, out, _ = await command(database, "--from", "1h", "--dry-run", "--json")
    assert json.loads(out)["groups"] == [{"event_type": "t", "topic": "x", "sink": "main", "events": 3}]
    assert await named(connection) == []


async def test_it_publishes_when_told_to(database: Database, connection: asyncpg.Connection, three: list[str]) -> None:
    for refused in ([], ["--json"]):
        code, _, err = await command(database, "--from", "1h", *refused)
        assert code == 2
        assert "say --yes" in err
    assert await named(connection) == []
    code, out, _ = await command(database, "--from", "1h", "--yes", "--json")
    assert (code, json.loads(out)["events"], json.loads(out)["done"]) == (0, 3, True)
    assert await named(connection) == three
    code, out, _ = await command(database, "--from", "1h", "--yes", "--after", json.loads(out)["place"])
    assert (code, out) == (0, "no events\n")
    code, out, _ = await command(database, "--from", "1h", "--yes", "--type", "nothing", "--json")
    assert (code, json.loads(out)) == (0, {"events": 0, "place": None, "done": True})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing option '--from'"),
        (["--from", "yesterday"], "is no time"),
        (["--from", "1h", "--to", "2h"], "must come after its start"),
        (["--from", "1h", "--after", "x"], "no place in a replay"),
        (["--from", "1h", "--to-topic", ""], "to_topic"),
        (["--from", "400d"], "--older"),
    ],
)
async def test_bad_arguments(
    database: Database, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await asyncio.to_thread(run, ["events", "replay", "--database", database.dsn, "--yes", *arguments])
    assert code == 2
    assert told in capsys.readouterr().err


async def test_a_ctrl_c_ends_the_batch_and_says_where_to_go_on(
    database: Database, connection: asyncpg.Connection, three: list[str]
) -> None:
    """Somebody holds the table, so that it is in the middle of its first batch for sure."""
    holding = await asyncpg.connect(database.dsn)
    transaction = holding.transaction()
    await transaction.start()
    await holding.execute("LOCK TABLE oncommit.outbox IN SHARE MODE")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oncommit", "events", "replay", "--database", database.dsn, "--from", "1h", "--yes",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until(connection, "SELECT count(*) FROM pg_locks WHERE NOT granted", 1)
    process.send_signal(signal.SIGINT)
    await until(connection, "SELECT count(*) FROM pg_locks WHERE NOT granted", 1)
    await transaction.rollback()
    _, err = await process.communicate()
    assert process.returncode == 130
    published = len(await named(connection))
    assert f"stopped: {published} of 3 events are published again; to go on: --after " in err.decode()
    place = err.decode().split("--after ")[1].strip()
    code, _, _ = await command(database, "--from", "1h", "--yes", "--after", place)
    assert code == 0
    assert await named(connection) == three
    await holding.close()


async def test_somebody_at_a_terminal_is_asked_and_sees_how_it_goes(
    database: Database, connection: asyncpg.Connection, three: list[str]
) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oncommit", "events", "replay", "--database", database.dsn, "--from", "1h",
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"Publish 3 events again?" not in seen:
        seen += await asyncio.to_thread(os.read, ours, 4096)
    assert await named(connection) == []
    os.write(ours, b"y\n")
    with contextlib.suppress(OSError):  # the other end has been closed
        while chunk := await asyncio.to_thread(os.read, ours, 4096):
            seen += chunk
    assert await process.wait() == 0
    os.close(ours)
    assert b"3/3" in seen
    assert b"3 events are published again" in seen
    assert await named(connection) == three
