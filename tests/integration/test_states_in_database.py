"""The database refuses by trigger what the table of moves does not have, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product

import asyncpg
import pytest

from oncommit import states
from oncommit.states import State
from oncommit.testing.servers import Database

INSERT = """
    INSERT INTO oncommit.outbox (event_type, state, available_at)
    VALUES ('order.placed', $1, CASE WHEN $1 = 'pending' THEN NULL ELSE 'infinity'::timestamptz END) RETURNING id
"""
UPDATE = """
    UPDATE oncommit.outbox
    SET state = $2, available_at = CASE WHEN $2 = 'pending' THEN NULL ELSE 'infinity'::timestamptz END
    WHERE id = $1
"""


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn)
    yield connected
    await connected.close()


async def refusal(connection: asyncpg.Connection, statement: str, *values: object) -> str | None:
    """The table and constraint that refused the statement; nothing where it was let through."""
    try:
        async with connection.transaction():
            await connection.execute(statement, *values)
    except asyncpg.CheckViolationError as error:
        return f"{error.schema_name}.{error.table_name} {error.constraint_name}"
    return None


async def a_row(connection: asyncpg.Connection, state: State) -> int:
    """A row that came to its state on a legal way."""
    born = state in states.BIRTHS
    row: int = await connection.fetchval(INSERT, str(state if born else State.PENDING))
    if not born:
        assert (State.PENDING, state) in states.table_updates()
        await connection.execute(UPDATE, row, str(state))
    return row


async def test_the_triggers_and_the_table_of_moves_agree_on_every_pair(connection: asyncpg.Connection) -> None:
    refused = {}
    for origin, target in product(states.STORED, State):
        row = await a_row(connection, origin)
        refused[origin, target] = await refusal(connection, UPDATE, row, str(target))
        after = await connection.fetchval("SELECT state FROM oncommit.outbox WHERE id = $1", row)
        assert after == (origin if refused[origin, target] else target)
    let_through = {pair for pair, constraint in refused.items() if constraint is None and pair[0] != pair[1]}
    assert let_through == states.table_updates()
    assert {constraint for constraint in refused.values() if constraint} == {"oncommit.outbox outbox_moves"}
    # Writing the state that is there already is no move.
    assert all(refused[state, state] is None for state in states.STORED)


async def test_an_event_is_born_as_the_table_says(connection: asyncpg.Connection) -> None:
    refused = {state: await refusal(connection, INSERT, str(state)) for state in State}
    assert {state for state, constraint in refused.items() if constraint is None} == set(states.BIRTHS)
    assert {constraint for constraint in refused.values() if constraint} == {"oncommit.outbox outbox_birth"}


async def test_a_state_that_nobody_knows_is_refused(connection: asyncpg.Connection) -> None:
    row = await a_row(connection, State.PENDING)
    assert await refusal(connection, UPDATE, row, "limbo") is not None
    assert await refusal(connection, INSERT, "limbo") is not None


async def test_the_rules_know_the_stored_states_and_no_others(connection: asyncpg.Connection) -> None:
    await connection.execute("ALTER TABLE oncommit.outbox DISABLE TRIGGER outbox_moves")
    row = await a_row(connection, State.PENDING)
    refused = {state: await refusal(connection, UPDATE, row, str(state)) for state in State}
    assert {state for state, constraint in refused.items() if constraint is None} == set(states.STORED)
    assert {constraint for constraint in refused.values() if constraint} == {"oncommit.outbox outbox_state"}


async def test_what_is_refused_leaves_the_transaction_usable_behind_a_savepoint(
    connection: asyncpg.Connection,
) -> None:
    async with connection.transaction():
        row = await a_row(connection, State.OPTIMISTIC)
        with pytest.raises(asyncpg.CheckViolationError, match="cannot go from optimistic to failed"):
            async with connection.transaction():
                await connection.execute(UPDATE, row, "failed")
    assert await connection.fetchval("SELECT state FROM oncommit.outbox WHERE id = $1", row) == "optimistic"
