"""Handlers in the same database: effects exactly once, in order, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from oncommit import Event, Outbox
from oncommit.errors import ConfigError, PublishRejected
from oncommit.relay.handling import LocalDispatcher
from oncommit.relay.local import LocalBroker
from oncommit.relay.relay import Relay
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay import local_program
from tests.integration.relay.tools import QUICK, add, drained, emptied, until

PROGRAM = Path(local_program.__file__)
KEYS = 5
EACH = 8


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
    # No constraint: a second effect is to be seen, not refused.
    await connection.execute(
        """
        DROP TABLE IF EXISTS effects, notes;
        CREATE TABLE effects (at bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, key text, n integer);
        CREATE TABLE notes (at bigint GENERATED ALWAYS AS IDENTITY, cause text, key text, n integer);
        """
    )
    yield connection
    await connection.close()


def relay(database: Database, handlers: Any, **changes: Any) -> Relay:
    settings = msgspec.structs.replace(QUICK, **changes)
    return Relay(database.dsn, {"main": LocalBroker(handlers)}, settings=settings)


async def place(connection: asyncpg.Connection, keys: int = KEYS, each: int = EACH) -> list[str]:
    outbox = Outbox()
    events = [Event("placed", key=f"k{key}", payload={"n": n}) for n in range(each) for key in range(keys)]
    async with connection.transaction():
        await outbox.add(connection, *events)
    return [str(event.id) for event in events]


async def check_effects(connection: asyncpg.Connection, written: list[str]) -> None:
    effects = await connection.fetch("SELECT event_id::text, key FROM effects ORDER BY at")
    assert Counter(row["event_id"] for row in effects) == Counter(written)
    for key in {row["key"] for row in effects}:
        places = [written.index(row["event_id"]) for row in effects if row["key"] == key]
        assert places == sorted(places)
    notes = await connection.fetch("SELECT cause, key, n FROM notes ORDER BY at")
    assert Counter(row["cause"] for row in notes) == Counter(written), "what a handler adds comes with its effect"
    archived = await connection.fetch("SELECT event_id::text FROM oncommit.outbox_archive WHERE event_type = 'placed'")
    assert sorted(row["event_id"] for row in archived) == sorted(written)
    assert await connection.fetchval("SELECT count(*) FROM oncommit.dead_letter") == 0


HANDLERS = {"placed": local_program.handle, "noted": local_program.note}


async def test_every_event_is_handled_once_and_in_order(database: Database, connection: asyncpg.Connection) -> None:
    written = await place(connection)
    async with relay(database, HANDLERS):
        await drained(connection)
        written += await place(connection)
        await drained(connection)
        await until(connection, "SELECT count(*) FROM oncommit.outbox_claim")
    await check_effects(connection, written)
    held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await until(connection, held)


STEPS = ["begun", "handled", "settled", "committed", "batch before settle", "batch settled"]


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step_the_effects_are_there_once(
    database: Database, connection: asyncpg.Connection, step: str
) -> None:
    written = await place(connection)
    for count in (1, 7):
        if count > 1 and step.startswith("batch"):
            continue  # there may be no seventh batch
        command = [sys.executable, str(PROGRAM), database.dsn, step, str(count), str(signal.SIGKILL.value)]
        done = await asyncio.to_thread(subprocess.run, command, cwd=PROGRAM.parents[3], timeout=60, check=False)
        assert done.returncode == -9
        # The lease of the dead is over at once, so that the test need not wait for it.
        await connection.execute("DELETE FROM oncommit.outbox_relay")
    async with relay(database, HANDLERS):
        await drained(connection)
    await check_effects(connection, written)


async def zombie_and_successor(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A relay loses its lanes in the middle of a handler, does not notice, and goes on when another has handled it."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(event: Event[Any], its: Any) -> None:
        await its.execute("INSERT INTO effects (event_id, key, n) VALUES ($1, 'slow', 0)", event.id)
        entered.set()
        await go_on.wait()

    zombie = relay(database, {"placed": slow})
    zombie._lease.seconds = 1000.0  # it counts wrong, as one that has slept
    async with zombie:
        await asyncio.wait_for(entered.wait(), 15)
        monkeypatch.setattr(zombie, "_ask", _silent)
        await connection.execute("DELETE FROM oncommit.outbox_relay")
        async with relay(database, {"placed": _quick}):
            await drained(connection)
            go_on.set()
            await until(connection, "SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL", 72)
        zombie.sinks["main"].lanes.owned.clear()
    return [row["key"] for row in await connection.fetch("SELECT key FROM effects")]


async def _silent(*_: Any) -> list[Any]:
    return [1]


async def _quick(event: Event[Any], connection: Any) -> None:
    await connection.execute("INSERT INTO effects (event_id, key, n) VALUES ($1, 'quick', 0)", event.id)


async def test_who_lost_the_lane_in_the_middle_of_a_handler_commits_nothing(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place(connection, 1, 1)
    assert await zombie_and_successor(database, connection, monkeypatch) == ["quick"]


async def test_mutation_without_the_settle_in_its_transaction_both_commit(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LocalDispatcher._settle

    async def unasked(*args: Any, **kwargs: Any) -> bool:
        await whole(*args, **kwargs)
        return True

    await place(connection, 1, 1)
    monkeypatch.setattr(LocalDispatcher, "_settle", unasked)
    assert sorted(await zombie_and_successor(database, connection, monkeypatch)) == ["quick", "slow"]


async def test_who_sleeps_in_the_middle_of_a_handler_lets_go_of_its_locks(
    database: Database, connection: asyncpg.Connection
) -> None:
    """A process is stopped with a row of the business locked; its successor needs the same row (H-guard)."""
    written = await place(connection, 1, 2)
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS stock (n integer); TRUNCATE stock; INSERT INTO stock VALUES (0)"
    )
    await connection.execute(
        """
        CREATE OR REPLACE FUNCTION take_stock() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN UPDATE stock SET n = n + 1; RETURN NEW; END $$;
        CREATE TRIGGER take_stock AFTER INSERT ON effects FOR EACH ROW EXECUTE FUNCTION take_stock();
        """
    )
    command = [sys.executable, str(PROGRAM), database.dsn, "handled", "1", str(signal.SIGSTOP.value)]
    sleeping = await asyncio.create_subprocess_exec(*command, cwd=PROGRAM.parents[3])
    try:
        locked = "SELECT count(*) FROM pg_locks WHERE relation = 'stock'::regclass AND mode = 'RowExclusiveLock'"
        await until(connection, locked, 1)
        async with relay(database, HANDLERS, publish_timeout=10.0):
            await until(connection, "SELECT count(*) FROM oncommit.outbox", 0, timeout=30.0)
        assert await connection.fetchval("SELECT n FROM stock") == 2
    finally:
        sleeping.kill()
        await sleeping.wait()
    await check_effects(connection, written)


async def test_a_failing_handler_holds_back_only_its_key(database: Database, connection: asyncpg.Connection) -> None:
    written = await place(connection, 2, 3)
    failures = Counter[str]()

    async def failing(event: Event[Any], its: Any) -> None:
        await local_program.handle(event, its)
        if str(event.id) == written[0] and failures[written[0]] < 3:
            failures[written[0]] += 1
            raise ValueError("not now")

    async with relay(database, {**HANDLERS, "placed": failing}):
        await drained(connection)
    await check_effects(connection, written)
    keys = [row["key"] for row in await connection.fetch("SELECT key FROM effects ORDER BY at")]
    assert keys == ["k1"] * 3 + ["k0"] * 3
    spent = "SELECT attempts FROM oncommit.outbox_archive WHERE event_id = $1::uuid"
    assert await connection.fetchval(spent, written[0]) == 3


async def test_what_fails_for_good_is_a_dead_letter_without_effects(
    database: Database, connection: asyncpg.Connection
) -> None:
    written = await place(connection, 3, 1)

    async def refusing(event: Event[Any], its: Any) -> None:
        await local_program.handle(event, its)
        if str(event.id) == written[0]:
            raise PublishRejected("never")
        if str(event.id) == written[1]:
            await its.execute("SELECT 1 / 0")

    async with relay(database, {**HANDLERS, "placed": refusing}):
        await drained(connection)
    effects = await connection.fetch("SELECT event_id::text FROM effects")
    assert [row["event_id"] for row in effects] == [written[2]]
    dead = await connection.fetch("SELECT message_id, reason, attempts, error_message FROM oncommit.dead_letter")
    assert {row["message_id"]: (row["reason"], row["attempts"], row["error_message"]) for row in dead} == {
        written[0]: ("permanent", 1, "never"),
        written[1]: ("exhausted", 5, "DivisionByZeroError: division by zero"),
    }


async def test_a_type_without_a_handler_waits_and_spends_no_attempt(
    database: Database, connection: asyncpg.Connection
) -> None:
    unknown = await add(connection, "k0", event_type="unheard")
    written = await place(connection, 1, 2)
    async with relay(database, HANDLERS):
        others = await add(connection, "k1", event_type="noted", payload='{"n": 0}')
        await until(connection, "SELECT count(*) FROM notes", 1)
        await until(connection, "SELECT count(*) FROM oncommit.outbox", 3)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox") == 0
    handled: list[str] = []

    async def noting(event: Event[Any], _connection: Any) -> None:
        handled.append(str(event.id))

    async with relay(database, {"unheard": noting, "placed": noting, "noted": noting}):
        await drained(connection)
    assert handled == [*unknown, *written]
    assert others[0] not in handled


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_handler_must_not_end_the_transaction(
    database: Database, connection: asyncpg.Connection, ending: str
) -> None:
    await place(connection, 1, 1)

    async def ends(_event: Event[Any], its: Any) -> None:
        await its.execute(ending)

    async with relay(database, {"placed": ends}):
        await until(connection, "SELECT count(*) FROM oncommit.dead_letter", 1)
    told = await connection.fetchval("SELECT error_message FROM oncommit.dead_letter")
    assert "has ended the transaction" in told


async def test_a_handler_that_takes_too_long_is_rolled_back(database: Database, connection: asyncpg.Connection) -> None:
    written = await place(connection, 1, 1)
    begun: list[str] = []

    async def slow(event: Event[Any], its: Any) -> None:
        begun.append(str(event.id))
        await local_program.handle(event, its)
        if len(begun) == 1:
            await asyncio.Event().wait()

    async with relay(database, {**HANDLERS, "placed": slow}, publish_timeout=0.3):
        await drained(connection)
    await check_effects(connection, written)
    assert len(begun) == 2


async def test_contention_is_tried_again_at_once_and_spends_no_attempt(
    database: Database, connection: asyncpg.Connection
) -> None:
    written = await place(connection, 1, 1)
    begun: list[int] = []

    async def contended(event: Event[Any], its: Any) -> None:
        begun.append(1)
        await local_program.handle(event, its)
        if len(begun) < 3:
            raise asyncpg.DeadlockDetectedError("deadlock detected")

    async with relay(database, {**HANDLERS, "placed": contended}):
        await drained(connection)
    await check_effects(connection, written)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0


async def test_the_connection_that_breaks_in_a_handler_counts_as_an_attempt(
    database: Database, connection: asyncpg.Connection
) -> None:
    written = await place(connection, 1, 2)
    begun: list[int] = []

    async def breaking(event: Event[Any], its: Any) -> None:
        begun.append(1)
        await local_program.handle(event, its)
        if len(begun) == 1:
            other = await asyncpg.connect(database.dsn)
            await other.execute("SELECT pg_terminate_backend($1)", its.get_server_pid())
            await other.close()

    async with relay(database, {**HANDLERS, "placed": breaking}):
        await drained(connection)
    await check_effects(connection, written)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 1


async def test_the_answer_to_a_commit_that_was_lost_repeats_nothing(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await place(connection, 2, 3)
    whole = LocalDispatcher._once
    lost: list[int] = []

    async def losing(self: LocalDispatcher, *args: Any, **kwargs: Any) -> Any:
        outcome = await whole(self, *args, **kwargs)
        if not lost:
            lost.append(1)
            raise ConnectionResetError("the answer was lost: the test says so")
        return outcome

    monkeypatch.setattr(LocalDispatcher, "_once", losing)
    async with relay(database, HANDLERS):
        await drained(connection)
    assert lost
    await check_effects(connection, written)


async def test_a_missing_partition_of_the_archive_is_made(database: Database, connection: asyncpg.Connection) -> None:
    written = await place(connection, 2, 2)
    today = await connection.fetchval("SELECT 'outbox_archive_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    await connection.execute(f"DROP TABLE oncommit.{today}")
    async with relay(database, HANDLERS, maintenance=False):
        await drained(connection)
    await check_effects(connection, written)


async def test_rows_that_no_event_can_be_are_dead_letters(database: Database, connection: asyncpg.Connection) -> None:
    await add(connection, "k", event_type="placed", headers='{"x": 1}', correlation_id="a\nb")
    async with relay(database, HANDLERS):
        await until(connection, "SELECT count(*) FROM oncommit.dead_letter WHERE reason = 'permanent'", 1)


async def test_nobody_but_a_relay_can_send_through_it() -> None:
    broker = LocalBroker({})
    (outcome,) = await broker.publish([None], timeout=1)  # type: ignore[list-item]
    assert "by a relay alone" in str(outcome)
    with pytest.raises(ConfigError, match="no function"):
        LocalBroker({"a": None})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="connections"):
        LocalBroker({}, connections=0)
