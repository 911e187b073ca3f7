"""`oncommit bench relay`: rounds of all sides in turns, and what is made of them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from statistics import median

from oncommit.testing.bench.place import Place, a_place
from oncommit.testing.bench.relay.backlog import make_backlog
from oncommit.testing.bench.relay.homes import Target, a_target
from oncommit.testing.bench.relay.plan import Plan
from oncommit.testing.bench.relay.results import RelayResult, compared, gates, middle, versions
from oncommit.testing.bench.relay.rounds import Round, Rounds, in_rotation
from oncommit.testing.bench.relay.timeline import typical_batch
from oncommit.testing.bench.results import load_now
from oncommit.testing.bench.usual import usual_schema

Say = Callable[[str], None]


class Book:
    """Figures as they come."""

    def __init__(self, sides: Sequence[str]) -> None:
        self.rates: dict[str, list[float]] = {side: [] for side in sides}
        self.relays: dict[str, list[Round]] = {side: [] for side in sides}
        self.seconds: dict[str, float] = {}

    def note(self, side: str, found: Round | float) -> None:
        """One round."""
        if isinstance(found, Round):
            self.relays[side].append(found)
        self.rates[side].append(found.per_s if isinstance(found, Round) else found)

    def took(self, phase: str, since: float) -> None:
        """A phase has ended."""
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - since, 2)


def run(plan: Plan, say: Say) -> RelayResult:
    """Measure.

    Raises:
        ConfigError: No such broker, or events that cannot be.
        ServerError: A server cannot be started here.
        OncommitError: A side failed, or events were lost on the way.
    """
    book = Book(plan.going)
    begun = time.monotonic()
    say("starting the servers")
    with a_target(plan.broker, f"bench_{secrets.token_hex(4)}") as target, a_place(plan.dsn, usual_schema()) as place:
        book.took("servers", begun)
        load = load_now()
        begun = time.monotonic()
        say("making the events")
        asyncio.run(_make(place, plan))
        book.took("backlog", begun)
        rounds = Rounds(place, target, plan)
        begun = time.monotonic()
        say("warming up")
        rounds.relay()
        book.took("warm_up", begun)
        for pair, side in in_rotation(plan.going, plan.pairs):
            begun = time.monotonic()
            say(f"{side}: pair {pair + 1} of {plan.pairs}")
            book.note(side, _one(rounds, side))
            book.took(side, begun)
        book.seconds["of_which_filling"] = round(rounds.fill_seconds, 2)
        return _result(plan, place, target, book, load)


async def _make(place: Place, plan: Plan) -> None:
    async with place.connection() as connection:
        await make_backlog(connection, plan)


def _one(rounds: Rounds, side: str) -> Round | float:
    match side:
        case "direct":
            return rounds.direct()
        case "adapter":
            return rounds.adapter()
        case "database":
            return rounds.database()
        case "reference":
            return rounds.reference()
        case "plain":
            return rounds.relay()
        case _:
            return rounds.relay(conditions=True)


def _result(plan: Plan, place: Place, target: Target, book: Book, load: float) -> RelayResult:
    result = RelayResult(
        broker=target.name,
        events=plan.waiting or plan.events,
        keys=plan.keys,
        payload_bytes=plan.payload,
        pairs=plan.pairs,
        conditions=plan.conditions,
        rounds={side: [round(rate, 1) for rate in rates] for side, rates in book.rates.items()},
        seconds=book.seconds,
        load_before=load,
        about=place.about | target.about | versions(),
    )
    if relays := book.relays.get("relay"):
        result.cpu_us_per_event = middle([one.cpu_us for one in relays])
        result.peak_rss_mb = round(max(one.peak_rss_mb for one in relays), 1)
        result.batch = int(median([typical_batch(one.marks) for one in relays]))
    if databases := book.relays.get("database"):
        result.database_cpu_us_per_event = middle([one.cpu_us for one in databases])
    for side, rates in book.rates.items():
        setattr(result, f"{side}_per_s", middle(rates))
    _compare(result, book.rates)
    result.gates = gates(result)
    return result


def _compare(result: RelayResult, rates: dict[str, list[float]]) -> None:
    """Sides with each other, as far as they were measured."""
    if result.relay_per_s is None:
        return
    if result.direct_per_s is not None and result.database_per_s is not None:
        # Which is the ceiling is decided once, by the medians: the lower of each pair would be lower than either.
        result.ceiling = "direct" if result.direct_per_s <= result.database_per_s else "database"
        result.ratio, result.spread = compared(rates[result.ceiling], rates["relay"])
    if result.adapter_per_s is not None and result.database_per_s is not None:
        higher = "adapter" if result.adapter_per_s <= result.database_per_s else "database"
        result.adapter_ratio = compared(rates[higher], rates["relay"])[0]
    if result.reference_per_s is not None:
        result.factor = round(compared(rates["reference"], rates["relay"])[0], 1)
    if result.plain_per_s is not None:
        result.kept, result.kept_spread = compared(rates["plain"], rates["relay"])
