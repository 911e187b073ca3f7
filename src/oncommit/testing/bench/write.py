"""`oncommit bench write`: what an event costs the transaction that adds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from oncommit.outbox import Outbox
from oncommit.testing.bench import batch, results
from oncommit.testing.bench.forms import FORMS, Run
from oncommit.testing.bench.loads import Adds
from oncommit.testing.bench.pairs import in_turns
from oncommit.testing.bench.place import Place, a_place
from oncommit.testing.bench.results import Result
from oncommit.testing.bench.usual import UsualOutbox, usual_schema
from oncommit.testing.bench.workload import BATCH

WARM_UP = 0.5

Say = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """What to measure, and how long."""

    drivers: Sequence[str] = tuple(FORMS)
    pairs: int = 5
    seconds: float = 2.0
    batch: int = BATCH
    dsn: str | None = None
    must: bool = False
    """Whether a driver that is not installed is an error; otherwise it is left out, and said so."""


def run(plan: Plan, say: Say) -> Iterator[Result]:
    """Measure one thing after the other; each result as soon as it is there.

    Raises:
        ServerError: No DSN was given and PostgreSQL 18 cannot be started here.
        DatabaseUnreachable: The given database does not answer.
    """
    say("starting PostgreSQL" if plan.dsn is None else "making a schema of its own")
    with a_place(plan.dsn, usual_schema()) as place:
        ours, usual = Outbox(schema=place.schema), UsualOutbox()
        for driver in plan.drivers:
            say(driver)
            try:
                yield _driver(plan, place, driver, ours, say)
            except ModuleNotFoundError as missing:
                if plan.must:
                    raise
                say(f"{driver}: {missing.name} is not installed here, left out")
        if "asyncpg" in plan.drivers:
            yield _driver(plan, place, "asyncpg", usual, say, ours=False)
            for adds in (ours, usual):
                yield _batch(plan, place, adds, say, ours=adds is ours)


def _driver(plan: Plan, place: Place, driver: str, adds: Adds, say: Say, *, ours: bool = True) -> Result:
    title = driver if ours else f"{driver}, usual schema"
    place.reset()
    load = results.load_now()
    with FORMS[driver](place) as rounds:
        for side in (None, adds):
            rounds(side, min(WARM_UP, plan.seconds))
        found = in_turns(
            partial(_round, rounds, None, plan.seconds, partial(say, f"{title}: without")),
            partial(_round, rounds, adds, plan.seconds, partial(say, f"{title}: with an event")),
            plan.pairs,
        )
    return results.of_driver(place, driver, found, load, ours=ours)


def _round(rounds: Run, adds: Adds | None, seconds: float, told: Callable[[], None]) -> float:
    told()
    return rounds(adds, seconds).per_second


def _batch(plan: Plan, place: Place, adds: Adds, say: Say, *, ours: bool) -> Result:
    title = f"{plan.batch} events at once" + ("" if ours else ", usual schema")
    place.reset()
    load = results.load_now()
    found = batch.measure(place, adds, plan.batch, plan.pairs, progress=partial(say, title))
    return results.of_batch(place, found, load, ours=ours)
