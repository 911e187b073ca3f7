"""An event is in the outbox exactly when its business row is there, in order, whatever happens to the connection.

Over every kind of connection, with random transactions and with one transaction cut at each of its protocol steps.
"""

from __future__ import annotations

import itertools
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings

from oncommit import Event, Outbox
from oncommit.testing.proxy import Proxy
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.programs import Again, Bench, Crash, Program, Step, Write, transactions
from tests.integration.outbox.writers import Writer

EXAMPLES = 30
# Killed between a write and the rollback of a savepoint, whose error some frameworks keep to themselves.
LOST_IN_A_SAVEPOINT = Program((Write(("a",)), Step("savepoint"), Step("rollback_to")), "commit", Crash("killed", 2))


def bench_of(writer: Writer, observer: Observer, proxy: Proxy, outbox: Outbox | None = None) -> Bench:
    return Bench(writer, observer, proxy, outbox or Outbox(), tag=uuid4().hex)


@pytest.mark.timeout(240)
def test_random_transactions(far_writer: Writer, observer: Observer, proxy: Proxy) -> None:
    outbox = Outbox()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(transactions())
    @example([LOST_IN_A_SAVEPOINT])
    def examples(programs: list[Program]) -> None:
        bench = bench_of(far_writer, observer, proxy, outbox)
        try:
            for program in programs:
                bench.run(program)
        except BaseException:
            # What comes after a failure, shrinking above all, must not inherit its connection.
            proxy.heal()
            far_writer.reconnect()
            raise

    examples()


@pytest.mark.parametrize("how", ["cut", "unanswered"])
def test_a_crash_at_each_step_of_the_protocol(far_writer: Writer, observer: Observer, proxy: Proxy, how: str) -> None:
    """Until no further request is needed, so that COMMIT, too, was cut before and after the server did it."""
    steps = (Write(("a",)), Step("savepoint"), Write(("a", "b")), Step("release"), Write(("b",)))
    outcomes = []
    for after in itertools.count():
        bench = bench_of(far_writer, observer, proxy)
        bench.run(Program(steps, "commit", Crash(how, after)))
        outcomes.append(len(bench.model.committed))
        if not bench.lost:
            break
    # Nothing before the commit, all of it from there on.
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 4}
    # The commit whose answer was lost has happened; the one that never arrived has not.
    assert outcomes[-2] == (4 if how == "unanswered" else 0)


def test_tried_again_after_an_unknown_outcome(far_writer: Writer, observer: Observer, proxy: Proxy) -> None:
    """The same events in a second attempt: once in the outbox, whichever way the first one went."""
    for how, after in itertools.product(("cut", "unanswered"), range(40)):
        bench = bench_of(far_writer, observer, proxy)
        events = [Event("order.placed", aggregate=(bench.tag, "a")) for _ in range(2)]
        bench.events.extend(events)
        attempt = Program((Again(0), Again(1)), "commit", Crash(how, after))
        bench.run(attempt)
        lost = bench.lost
        bench.run(Program(attempt.steps, "commit"))
        assert bench.model.committed == [("a", event.id) for event in events]
        if not lost:
            break
