"""The interleaving of the decision on sweeps (docs/adr), exactly, on real transactions; the reader goes by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from oncommit.relay.late import LateCommits
from oncommit.relay.reader import Reader
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.hand import Hand, at_hand, neighbours
from tests.integration.relay.tools import add


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def hand(shared: Database) -> AsyncIterator[Hand]:
    async with at_hand(shared.dsn) as hand:
        yield hand


async def interleave(hand: Hand, database: Database, how: str = "plain") -> list[str]:
    """K draws, L draws and commits, is fetched; K commits, and its next writer, who waited: the ids of K, in order."""
    one, two = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    try:
        key, other = await neighbours(two)
        await one.execute("BEGIN")
        if how == "savepoint":
            await one.execute("SAVEPOINT inner_one")
        first = await add(one, key)
        if how == "savepoint":
            await one.execute("RELEASE inner_one")
        if how == "prepared before":
            await one.execute("PREPARE TRANSACTION 'late'")
        (passed,) = await add(two, other)
        await hand.round()
        assert hand.sent == [passed]
        if how == "prepared after":
            await one.execute("PREPARE TRANSACTION 'late'")
            await hand.round()
        await one.execute("COMMIT PREPARED 'late'" if how.startswith("prepared") else "COMMIT")
        second = await add(two, key)
        for _ in range(3):
            await hand.round()
        return [*first, *second]
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("how", ["plain", "savepoint", "prepared before", "prepared after"])
async def test_a_late_commit_goes_before_what_was_written_after_it(hand: Hand, shared: Database, how: str) -> None:
    expected = await interleave(hand, shared, how)
    assert hand.sent[1:] == expected


async def test_mutation_without_the_sweep_it_is_lost(
    hand: Hand, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LateCommits.look

    def look(self: LateCommits, last_value: int, holders: Any) -> list[tuple[int, int]]:
        plain(self, last_value, holders)
        return []

    monkeypatch.setattr(LateCommits, "look", look)
    first, second = await interleave(hand, shared)
    assert hand.sent[1:] == [second]
    assert first not in hand.sent


async def test_mutation_without_the_holders_it_is_lost(
    hand: Hand, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LateCommits.look
    monkeypatch.setattr(LateCommits, "look", lambda self, last_value, _holders: plain(self, last_value, []))
    assert hand.sent[1:] != await interleave(hand, shared)


async def test_a_writer_that_idles_for_long_costs_one_region(hand: Hand, shared: Database) -> None:
    idle, busy = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await idle.execute("BEGIN")
    await add(idle, "idle")
    for _ in range(20):
        await add(busy, "busy")
        await hand.round()
    assert len(hand.sent) == 20
    assert len(hand.reader._late._regions) <= 2
    await idle.execute("COMMIT")
    await hand.round()
    assert len(hand.sent) == 21
    await hand.round()
    assert hand.reader._late.is_quiet
    await idle.close()
    await busy.close()


async def test_a_sequence_that_falls_makes_it_start_anew(hand: Hand, shared: Database) -> None:
    """A failover or a restore: what is there now is read, wherever the floors were."""
    await add(hand.connection, "k", 5)
    await hand.round()
    assert len(hand.sent) == 5
    await hand.connection.execute("ALTER SEQUENCE oncommit.outbox_id_seq RESTART WITH 2")
    (again,) = await add(hand.connection, "k")
    await hand.round()
    assert hand.sent[5:] == [again]
    assert UUID(again)


async def commits_in_mid_read(hand: Hand, database: Database, *, after: str) -> tuple[list[str], list[str]]:
    """One transaction writes a key twice, a relay reads in between, and it commits behind this statement of a read.

    Its events as they were sent, and as they were written.
    """
    one, two = await asyncpg.connect(database.dsn), await asyncpg.connect(database.dsn)
    try:
        key, other = await neighbours(two)
        await one.execute("BEGIN")
        first = await add(one, key)
        await add(two, other)
        await hand.round()
        second = await add(one, key)
        await add(two, other)
        store: Any = hand.reader._store
        plain = getattr(store, after)

        async def then_commit(*parameters: Any, **named: Any) -> Any:
            answer = await plain(*parameters, **named)
            if one.is_in_transaction():
                await one.execute("COMMIT")
            return answer

        hand.sent.clear()
        setattr(store, after, then_commit)
        for _ in range(4):
            await hand.round()
        return [event for event in hand.sent if event in {*first, *second}], [*first, *second]
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("after", ["last_value", "holders", "fetch"])
async def test_a_transaction_s_events_stay_in_order_though_a_read_came_between(
    hand: Hand, shared: Database, after: str
) -> None:
    sent, written = await commits_in_mid_read(hand, shared, after=after)
    assert sent == written


@pytest.mark.rule("S-whole")
async def test_mutation_without_looking_back_they_do_not(
    hand: Hand, shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def blind(*_: Any) -> None:
        """Looks nowhere."""

    monkeypatch.setattr(Reader, "_look_back", blind)
    sent, written = await commits_in_mid_read(hand, shared, after="holders")
    assert sent == written[::-1]
