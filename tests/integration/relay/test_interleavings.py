"""Each S-rule of the protocol on real transactions: what happens between two statements, with the rule and without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from oncommit.relay.late import LateCommits
from oncommit.relay.reader import Reader
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.relay.hand import Hand, at_hand, neighbours
from tests.integration.relay.tools import add

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def shared(any_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    with oncommit_databases(any_postgres).fresh() as fresh:
        yield fresh


@pytest.fixture
async def hand(shared: Database) -> AsyncIterator[Hand]:
    async with at_hand(shared.dsn) as hand:
        yield hand


@pytest.fixture
async def connect(shared: Database, hand: Hand) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def another() -> asyncpg.Connection:
            connection = await asyncpg.connect(shared.dsn)
            stack.push_async_callback(connection.close)
            return connection

        yield another


# ── S-order: the last value first, the holders after it ───────────────────────────────────────────


async def written_between_the_looks(hand: Hand, connect: Connect, *, swapped: bool) -> str:
    """A writer begins between the two looks; another of his lane goes by. What the slow one wrote."""
    slow, quick = await connect(), await connect()
    key, other = await neighbours(quick)
    written: list[str] = []
    last_value, holders = hand.store.last_value, hand.store.holders
    noted: list[list[str]] = []

    async def first() -> int:
        value = None if swapped else await last_value()
        noted.append(await holders() if swapped else [])
        if not written:
            await slow.execute("BEGIN")
            written.extend(await add(slow, key))
            await add(quick, other)
        return await last_value() if value is None else value

    async def second() -> list[str]:
        return noted[-1] if swapped else await holders()

    hand.store.last_value = first  # type: ignore[method-assign]
    hand.store.holders = second  # type: ignore[method-assign]
    await add(quick, other)
    for _ in range(2):
        await hand.round()
    await slow.execute("COMMIT")
    await add(quick, other)
    for _ in range(3):
        await hand.round()
    assert len(set(hand.sent) - set(written)) == 3
    return written[0]


async def test_who_writes_between_the_looks_is_seen_by_one_of_them(hand: Hand, connect: Connect) -> None:
    assert await written_between_the_looks(hand, connect, swapped=False) in hand.sent


@pytest.mark.rule("S-order")
async def test_mutation_with_the_looks_the_other_way_round_it_is_lost(hand: Hand, connect: Connect) -> None:
    assert await written_between_the_looks(hand, connect, swapped=True) not in hand.sent


# ── S-snapshot: what is read has a younger snapshot than the look at the holders ──────────────────


async def committed_before_the_look(hand: Hand, connect: Connect) -> str:
    """A writer ends just before the look at the holders; what he wrote."""
    slow, quick = await connect(), await connect()
    key, other = await neighbours(quick)
    await slow.execute("BEGIN")
    (late,) = await add(slow, key)
    await add(quick, other)
    await hand.round()

    async def deed() -> None:
        await slow.execute("COMMIT")

    hand.once(deed, before="holders")
    await hand.round()
    return late


async def test_who_has_left_by_the_look_is_found_by_the_sweep(hand: Hand, connect: Connect) -> None:
    assert await committed_before_the_look(hand, connect) in hand.sent


@pytest.mark.rule("S-snapshot")
async def test_mutation_with_an_older_snapshot_it_is_lost(hand: Hand, connect: Connect) -> None:
    plain = hand.reader.read

    async def in_one_snapshot(*args: Any) -> Any:
        async with hand.connection.transaction(isolation="repeatable_read"):
            await hand.connection.fetch("SELECT FROM oncommit.outbox LIMIT 1")
            return await plain(*args)

    hand.reader.read = in_one_snapshot  # type: ignore[method-assign]
    late = await committed_before_the_look(hand, connect)
    for _ in range(3):
        await hand.round()
    assert late not in hand.sent
    assert hand.reader._late.is_quiet, "nobody will look there again"


# ── S-ceiling: no read goes beyond what was noted before it ───────────────────────────────────────


async def written_before_the_fetch(hand: Hand, connect: Connect) -> list[int]:
    """Twice something is written between look and fetch: the order in which the two of one key went."""
    slow, quick = await connect(), await connect()
    key, other = await neighbours(quick)
    written: list[str] = []

    async def begins() -> None:
        await slow.execute("BEGIN")
        written.extend(await add(slow, key))
        await add(quick, other)

    async def goes_on() -> None:
        await slow.execute("COMMIT")
        written.extend(await add(quick, key))

    await add(quick, other)
    hand.once(begins, before="fetch")
    await hand.round()
    hand.once(goes_on, before="fetch")
    await add(quick, other)
    for _ in range(4):
        await hand.round()
    assert len(written) == 2
    return [written.index(event) for event in hand.sent if event in written]


async def test_what_is_written_beside_a_read_waits_for_the_next(hand: Hand, connect: Connect) -> None:
    assert await written_before_the_fetch(hand, connect) == [0, 1]


@pytest.mark.rule("S-ceiling")
async def test_mutation_beyond_the_ceiling_the_later_goes_first(
    hand: Hand, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Reader._windows

    def unlimited(self: Reader, lanes: Any) -> Any:
        return [window._replace(ceiling=2**62) for window in windows(self, lanes)]

    def advance(_self: Reader, lanes: Any, _windows: Any, found: Any, _rewinds: Any) -> None:
        for row in found:
            lanes[row.lane].order.floor = row.place

    async def blind(*_: Any) -> None:
        """S-whole would find the earlier one here, by its writer's leaving; it does not always."""

    monkeypatch.setattr(Reader, "_look_back", blind)
    monkeypatch.setattr(Reader, "_windows", unlimited)
    monkeypatch.setattr(Reader, "_advance", advance)
    assert await written_before_the_fetch(hand, connect) == [1, 0]


# ── S-holder: an idle writer does not make sweeps grow ────────────────────────────────────────────


async def swept_beside_an_idle_writer(hand: Hand, connect: Connect) -> int:
    """How many stretches were read again in forty rounds."""
    idle, busy = await connect(), await connect()
    await idle.execute("BEGIN")
    await add(idle, "idle")
    swept = 0
    plain = hand.store.sweep

    async def counted(stretches: Any, *, most: int) -> Any:
        nonlocal swept
        swept += len(stretches)
        return await plain(stretches, most=most)

    hand.store.sweep = counted  # type: ignore[method-assign]
    for _ in range(40):
        await add(busy, "busy")
        await hand.round()
    assert len(hand.sent) == 40
    await idle.execute("COMMIT")
    await hand.round()
    assert len(hand.sent) == 41
    return swept


async def test_an_idle_writer_is_looked_for_when_he_has_gone(hand: Hand, connect: Connect) -> None:
    assert await swept_beside_an_idle_writer(hand, connect) <= 64


@pytest.mark.rule("S-holder")
async def test_mutation_read_again_each_time_sweeps_grow(
    hand: Hand, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LateCommits.look

    def each_time(self: LateCommits, last_value: int, holders: Any) -> Any:
        for region in self._regions:
            region.to_read = True
        return plain(self, last_value, holders)

    monkeypatch.setattr(LateCommits, "look", each_time)
    assert await swept_beside_an_idle_writer(hand, connect) > 64 * 30


# ── S-forget: a sequence that falls ───────────────────────────────────────────────────────────────


async def after_a_fall(hand: Hand, connect: Connect) -> str:
    """A failover or a restore; then a writer is slow, under an id that was drawn before. What he wrote."""
    slow, quick = await connect(), await connect()
    key, other = await neighbours(quick)
    await add(quick, other, 5)
    await hand.round()
    await quick.execute("ALTER SEQUENCE oncommit.outbox_id_seq RESTART WITH 2")
    await slow.execute("BEGIN")
    (late,) = await add(slow, key)
    for _ in range(3):
        await add(quick, other)
        await hand.round()
    await slow.execute("COMMIT")
    for _ in range(3):
        await hand.round()
    return late


async def test_after_a_fall_of_the_sequence_everything_is_looked_at_anew(hand: Hand, connect: Connect) -> None:
    assert await after_a_fall(hand, connect) in hand.sent
    assert len(set(hand.sent)) == 9


@pytest.mark.rule("S-forget")
async def test_mutation_that_trusts_its_notes_after_a_fall_loses_it(
    hand: Hand, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LateCommits, "has_fallen", lambda _self, _last_value: False)
    assert await after_a_fall(hand, connect) not in hand.sent
