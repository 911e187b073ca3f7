"""The reader, the lanes' order and the outcomes against a model, in thousands of interleavings.

What has to hold: no row is lost, none stalls once all is due, first deliveries of a key come in the order in which its
writers, who serialise, wrote them, and a row is delivered twice only where an answer or a connection was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from oncommit.relay.lane import Lane
from oncommit.relay.late import LateCommits
from oncommit.relay.limits import Limits
from oncommit.relay.ordering import Block, LaneOrder
from oncommit.relay.reader import Reader
from tests.unit.relay.machine import OUTCOMES, Loop
from tests.unit.relay.model import ModelTable

KEYS = st.sampled_from(["a", "a", "b", "c", "x", None])
DEED = st.tuples(st.sampled_from(["step", "step", "step", "fail", "begin", "write", "write", "end"]), KEYS)
GOOD = st.sampled_from(["sent"] * 6 + list(OUTCOMES[1:]))


class RelayMachine(RuleBasedStateMachine):
    """Writers, the relay's loop by steps, and time."""

    loop: Loop
    table: ModelTable

    @initialize(cap=st.sampled_from([1, 2, 50]))
    def start(self, cap: int) -> None:
        self.table = ModelTable()
        self.loop = Loop(self.table, cap=cap)
        self.checked = 0
        self.excused: set[int] = set()

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def write_and_commit(self, keys: list[str | None]) -> None:
        writer = self.table.begin()
        for key in keys:
            if not self.table.locked(key) or any(row.key == key for row in writer.rows):
                self.table.write(writer, key)
        self.table.end(writer, commit=True)

    @rule(key=KEYS)
    def write(self, key: str | None) -> None:
        if not self.table.locked(key):
            self.table.write(self.table.begin(), key)

    @rule(data=st.data(), commit=st.sampled_from([True, True, True, False]))
    def end(self, data: st.DataObject, commit: bool) -> None:
        if self.table.writers:
            self.table.end(data.draw(st.sampled_from(self.table.writers)), commit=commit)

    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        if self.table.writers:
            self.table.prepare(data.draw(st.sampled_from(self.table.writers)))

    @rule(times=st.integers(1, 6))
    def read(self, times: int) -> None:
        for _ in range(times):
            self.loop.read_step()

    @rule()
    def admit(self) -> None:
        self.loop.admit()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        def choose() -> str:
            return data.draw(GOOD)

        if self.loop.publishing:
            before = len(self.loop.deliveries)
            published = [row.place for row in self.loop.publishing[1]]
            self.loop.answer(choose)
            settled = self.loop.settled_batches()[-1].verdict.sent
            sent = {row.place for row in settled}
            self.excused |= {place for place in published if place not in sent}
            assert len(self.loop.deliveries) >= before

    @rule(times=st.integers(1, 3))
    def settle(self, times: int) -> None:
        for _ in range(times):
            self.loop.write_step()

    @rule(whole=st.integers(1, 3))
    def round(self, whole: int) -> None:
        """The loop as it goes when nothing is wrong, so that runs get somewhere."""
        for _ in range(whole):
            for _ in range(6):
                self.loop.read_step()
            self.loop.admit()
            self.loop.read_step()
            self.loop.answer(lambda: "sent")
            for _ in range(2):
                self.loop.write_step()

    @rule(deeds=st.lists(DEED, min_size=4, max_size=16))
    def rounds_among_writers(self, deeds: list[tuple[str, str | None]]) -> None:
        """Rounds in which little is wrong, with something written, begun or ended between any two statements."""
        for deed, key in deeds:
            if deed == "end" and self.table.writers:
                self.table.end(self.table.writers[0], commit=True)
            elif deed in ("begin", "write") and not self.table.locked(key):
                writer = self.table.begin()
                self.table.write(writer, key)
                if deed == "write":
                    self.table.end(writer, commit=True)
            elif deed in ("step", "fail"):
                self.loop.read_step()
                self.loop.admit()
                self.loop.answer(lambda: "failed" if deed == "fail" else "sent")  # noqa: B023 - called at once
                self.loop.write_step()
                self.loop.write_step()

    @rule(seconds=st.floats(0.1, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.table.now += seconds

    @rule()
    def reconnect(self) -> None:
        if self.loop.publishing:
            self.excused |= {row.place for row in self.loop.publishing[1]}
        self.loop.reconnect()

    @rule()
    def forget(self) -> None:
        self.loop.forget()

    @invariant()
    def first_deliveries_come_in_order(self) -> None:
        if self.checked == len(self.loop.deliveries):
            return
        self.checked = len(self.loop.deliveries)
        by_key: dict[str, list[int]] = {}
        for row in self.table.committed:
            if row.key is not None and row.place not in self.loop.dead:
                by_key.setdefault(row.key, []).append(row.place)
        first = list(dict.fromkeys(self.loop.deliveries))
        for key, places in by_key.items():
            theirs = [place for place in first if place in set(places)]
            assert theirs == sorted(places)[: len(theirs)], f"key {key}: {theirs} of {sorted(places)}"

    @invariant()
    def only_lost_answers_repeat(self) -> None:
        again = [place for place in set(self.loop.deliveries) if self.loop.deliveries.count(place) > 1]
        assert set(again) <= self.excused, f"delivered twice without a reason: {again}"

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            for writer in list(self.table.writers):
                self.table.end(writer, commit=True)
            self.loop.drain()
            self.first_deliveries_come_in_order()
            delivered = set(self.loop.deliveries)
            lost = [row.place for row in self.table.committed if row.place not in delivered | self.loop.dead]
            assert not lost, f"lost: {lost}"
        finally:
            self.loop.close()


def search(examples: int, steps: int = 50, *, shrink: bool = True) -> None:
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))
    run_state_machine_as_test(
        RelayMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
            derandomize=True,
            database=None,
            print_blob=False,
        ),
    )


def test_nothing_is_lost_reordered_or_stalled() -> None:
    search(250)


# ── What the machine is worth: without any of these rules it finds a violation ────────────────────


class _Forgetful(dict[str, Block]):
    """Keeps nothing, and says so to nobody who asks."""

    def __missing__(self, name: str) -> Block:
        return Block(0, 0, 0.0)


def _no_block(self: Any, name: str, head: int, due: float) -> None:
    """O-block gone: no key ever waits."""
    self._blocked = _Forgetful()


def _no_sweep(self: Any, last_value: int, holders: Any) -> list[tuple[int, int]]:
    """The sweep gone: what is noted is taken for sure."""
    self._noted = last_value
    return []


def _always_fresh(self: Lane, place: int) -> bool:
    return True


def _blind_to_prepared(plain: Callable[..., Any]) -> Callable[..., Any]:
    def look(self: LateCommits, last_value: int, holders: Any) -> Any:
        return plain(self, last_value, [name for name in holders if not name.startswith("-1/")])

    return look


def _beyond_the_ceiling(plain: Callable[..., Any]) -> Callable[..., Any]:
    def windows(self: Reader, lanes: Any) -> Any:
        return [window._replace(ceiling=2**62) for window in plain(self, lanes)]

    return windows


def _as_far_as_found(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Where a floor would be without a ceiling: at the last row that was found."""

    def advance(self: Reader, lanes: Any, windows: Any, found: Any, rewinds: Any) -> None:
        highest = {window.lane: max(window.floor, self._late.noted) for window in windows}
        for row in found:
            highest[row.lane] = max(highest[row.lane], row.place)
        plain(self, lanes, [w._replace(ceiling=highest[w.lane]) for w in windows], found, rewinds)

    return advance


MUTATIONS: dict[str, list[tuple[type, str, Any]]] = {
    "O-block": [(LaneOrder, "_block", _no_block)],
    "sweep": [(LateCommits, "look", _no_sweep)],
    "S-flight": [(Lane, "is_fresh", _always_fresh)],
    "S-prepared": [(LateCommits, "look", _blind_to_prepared(LateCommits.look))],
    "S-ceiling": [
        (Reader, "_windows", _beyond_the_ceiling(Reader._windows)),
        (Reader, "_advance", _as_far_as_found(Reader._advance)),
    ],
}


# What Hypothesis draws depends on the constants of all modules that are loaded, so on which tests run beside these: a
# search that finds its violation early here may need thousands of examples there. It ends with the first.
@pytest.mark.timeout(400)
@pytest.mark.rule("O-block", "S-flight", "S-prepared", "S-ceiling")
@pytest.mark.parametrize("rule", MUTATIONS)
def test_without_this_rule_the_machine_goes_red(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, name, mutant in MUTATIONS[rule]:
        monkeypatch.setattr(target, name, mutant)
    with pytest.raises(AssertionError):
        search(6000, shrink=False)


def failed_beside_the_next_batch(*, waits: bool) -> list[int]:
    """The second event of a key has been read while the first is published, which then fails: what was delivered."""
    loop = with_rows(1)
    for _ in range(4):
        loop.read_step()
    loop.admit()
    write_rows(loop, 1)
    for _ in range(5):
        loop.read_step()
    (batch,) = loop.ready
    if waits:
        loop.answer(lambda: "failed")
        loop.admit()
    else:
        loop.ready.clear()
        going = loop.sink._admit(batch)
        loop.answer(lambda: "failed")
        loop.publishing = (batch, going)
    loop.answer(lambda: "sent")
    delivered = list(loop.deliveries)
    loop.close()
    return delivered


def test_a_batch_is_ordered_when_the_outcomes_of_the_one_before_are_known() -> None:
    assert failed_beside_the_next_batch(waits=True) == []


@pytest.mark.rule("O-outcome")
def test_mutation_ordered_before_that_the_second_goes_first() -> None:
    assert failed_beside_the_next_batch(waits=False) == [2]


# ── What longer searches have found ───────────────────────────────────────────────────────────────


def test_a_full_lane_that_is_read_from_zero_still_asks_for_its_head() -> None:
    table = ModelTable()
    loop = Loop(table, cap=1)
    writer = table.begin()
    table.write(writer, "a")
    table.end(writer, commit=True)
    for _ in range(4):
        loop.read_step()
    loop.admit()
    loop.forget()
    loop.answer(lambda: "failed")
    loop.drain()
    assert loop.deliveries == [1]


def with_rows(count: int) -> Loop:
    """Committed rows of one key."""
    loop = Loop(ModelTable(), cap=50)
    write_rows(loop, count)
    return loop


def write_rows(loop: Loop, count: int, key: str = "a") -> None:
    for _ in range(count):
        writer = loop.table.begin()
        loop.table.write(writer, key)
        loop.table.end(writer, commit=True)


def rows_that_came_back_beside_a_read() -> Loop:
    """The floor is low, a read from there is under way, and a row in flight comes back that this read has dropped."""
    loop = with_rows(2)
    for _ in range(4):
        loop.read_step()
    loop.admit()
    loop.forget()
    write_rows(loop, 1, "b")  # so that the batch is not empty
    loop.sink._reader._limits = Limits(rows=20, budget=100, guess=5)
    for _ in range(3):
        loop.read_step()
    assert loop.reading is not None
    loop.answer(lambda: "unavailable")
    for _ in range(4):
        loop.read_step()
    loop.admit()
    return loop


def test_what_comes_back_beside_a_read_is_read_again() -> None:
    loop = rows_that_came_back_beside_a_read()
    loop.drain()
    assert sorted(loop.deliveries) == [1, 2, 3]


@pytest.mark.rule("O-rewind")
def test_mutation_a_rewind_that_counts_only_above_the_floor_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewind(self: LaneOrder, place: int) -> None:
        if place <= self.floor:
            self.floor = place - 1
            self.rewinds += 1

    monkeypatch.setattr(LaneOrder, "rewind", rewind)
    loop = rows_that_came_back_beside_a_read()
    with pytest.raises(AssertionError, match="left behind"):
        loop.drain()


def head_that_went_beside_a_read() -> Loop:
    """A failed head goes at last, while a read above the row that waited for it is under way."""
    loop = with_rows(2)
    for _ in range(4):
        loop.read_step()
    loop.admit()
    loop.answer(lambda: "failed")
    for _ in range(4):
        loop.write_step()
    loop.table.now += 10.0
    for _ in range(4):
        loop.read_step()
    loop.admit()
    write_rows(loop, 1)
    for _ in range(3):
        loop.read_step()
    assert loop.reading is not None
    loop.answer(lambda: "sent")
    loop.drain()
    return loop


def test_what_waited_goes_before_what_a_read_has_found_meanwhile() -> None:
    assert head_that_went_beside_a_read().deliveries == [1, 2, 3]


def _advances_always(plain: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: Reader, lanes: Any, windows: Any, found: Any, _rewinds: Any) -> None:
        plain(self, lanes, windows, found, {number: lane.order.rewinds for number, lane in lanes.items()})

    return advance


@pytest.mark.rule("O-rewind")
def test_mutation_a_floor_that_moves_all_the_same_passes_it_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_advance", _advances_always(Reader._advance))
    with pytest.raises(AssertionError, match="left behind"):
        head_that_went_beside_a_read()


def forgotten_before_it_was_written() -> Loop:
    """The head has failed, that is not written yet, and the lane is read from zero."""
    loop = with_rows(2)
    for _ in range(4):
        loop.read_step()
    loop.admit()
    loop.answer(lambda: "failed")
    loop.forget()
    for _ in range(4):
        loop.read_step()
    loop.admit()
    loop.answer(lambda: "sent")
    loop.drain()
    return loop


def test_a_lane_that_is_forgotten_still_knows_what_is_not_written_yet() -> None:
    assert forgotten_before_it_was_written().deliveries == [1, 2]


def _forget_all(self: Lane) -> None:
    self.order.forget()


@pytest.mark.rule("S-unwritten")
def test_mutation_without_that_the_head_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "forget", _forget_all)
    with pytest.raises(AssertionError, match="left behind"):
        forgotten_before_it_was_written()
