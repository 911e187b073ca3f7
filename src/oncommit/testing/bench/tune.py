"""`oncommit tune`: which size of batches suits this database, this broker and this machine.

The rate grows with the batch, up to a point; memory, and how much is sent again after a crash, grow with it beyond. So
the settings that are found are those of the smallest batch whose rate is within a twentieth of the best.

Failure story. Everything happens in a schema and in a place at the broker that are made for it, and are removed however
it ends; killed, it leaves them behind, and their names tell what they are. It stops trying when its time is over, so
that what it costs a server in use is bounded; no checkpoint is asked for.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from oncommit.errors import OncommitError
from oncommit.testing.bench.place import Place, a_place
from oncommit.testing.bench.relay.backlog import make_backlog
from oncommit.testing.bench.relay.homes import Target, a_target
from oncommit.testing.bench.relay.plan import Plan, fitting_events
from oncommit.testing.bench.relay.results import versions
from oncommit.testing.bench.relay.rounds import Round, Rounds
from oncommit.testing.bench.relay.timeline import TooShort, typical_batch
from oncommit.testing.bench.usual import usual_schema

Say = Callable[[str], None]

# In this order: should the time be over early, what was tried lies on both sides of what mostly suits.
SIZES: Final = (1000, 5000, 500, 2000, 10_000, 250)
ENOUGH: Final = 0.95
_PROBE: Final = 4000
_BATCHES: Final = 3
"""A size is tried where the events make so many batches of it."""
_SHARE: Final = 0.2
"""Of a try's time that is the relay's own work, going by the first look; there is filling, starting, emptying, too, and
small batches are slower."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the command."""

    dsn: str
    broker: str
    seconds: float
    payload: int
    sizes: Sequence[int] = SIZES


class Try(msgspec.Struct, kw_only=True):
    """One size of batches."""

    batch_rows: int
    events_per_s: float
    """The median of its rounds."""
    rounds: list[float]
    batch: int
    """Events in a batch, as it came."""
    batch_seconds: float
    cpu_us_per_event: float
    peak_rss_mb: float


class Tuned(msgspec.Struct, kw_only=True):
    """What was found."""

    broker: str
    payload_bytes: int
    events: int
    tries: list[Try]
    not_tried: list[int]
    """Sizes for which the time, or the events that fit into it, did not suffice."""
    settings: dict[str, int]
    seconds: float
    about: dict[str, Any]


def run(ask: Ask, say: Say) -> Tuned:
    """Try sizes until the time is over.

    Raises:
        ConfigError: A broker that this cannot prepare.
        DatabaseUnreachable, OncommitError: The servers do not do their part.
    """
    begun = time.monotonic()
    say("making a schema, and a place at the broker")
    with a_target(ask.broker, f"bench_{secrets.token_hex(4)}") as target, a_place(ask.dsn, usual_schema()) as place:
        most = fitting_events(ask.payload)
        plan = Plan(broker=ask.broker, payload=ask.payload, events=most, checkpoints=False)
        asyncio.run(_make(place, plan))
        say("a first look")
        probe = Rounds(place, target, _with_events(plan, min(_PROBE, most))).relay()
        left = ask.seconds - (time.monotonic() - begun)
        events = int(min(max(probe.per_s * max(left, 0.0) / len(ask.sizes) * _SHARE, _PROBE), most))
        found = _tried(ask, Rounds(place, target, _with_events(plan, events)), events, begun, say)
        about = place.about | target.about | versions()
        return _tuned(ask, target, events, found, about, time.monotonic() - begun)


async def _make(place: Place, plan: Plan) -> None:
    async with place.connection() as connection:
        await make_backlog(connection, plan)


def _with_events(plan: Plan, events: int) -> Plan:
    return msgspec.structs.replace(plan, events=events)


def _tried(ask: Ask, rounds: Rounds, events: int, begun: float, say: Say) -> dict[int, list[Round]]:
    """Rounds by size: all sizes, and all again, while a further round is likely to fit."""
    found: dict[int, list[Round]] = {}
    sizes = [size for size in ask.sizes if size * _BATCHES <= events] or [min(ask.sizes)]
    longest = 0.0
    while True:
        for size in sizes:
            since = time.monotonic()
            if found and since - begun + longest > ask.seconds:
                return found
            say(f"batches of {size}: round {len(found.get(size, [])) + 1}")
            try:
                found.setdefault(size, []).append(rounds.relay(ONCOMMIT_RELAY_BATCH_ROWS=str(size)))
            except TooShort as error:
                raise OncommitError("the events that fit into this time tell nothing: give it more seconds") from error
            longest = max(longest, time.monotonic() - since)


def _tuned(
    ask: Ask, target: Target, events: int, found: Mapping[int, list[Round]], about: dict[str, Any], seconds: float
) -> Tuned:
    tries = [_summed(size, rounds) for size, rounds in sorted(found.items())]
    return Tuned(
        broker=target.name,
        payload_bytes=ask.payload,
        events=events,
        tries=tries,
        not_tried=sorted(size for size in ask.sizes if size not in found),
        settings={"batch_rows": smallest_of_the_best({one.batch_rows: one.events_per_s for one in tries})},
        seconds=round(seconds, 1),
        about=about,
    )


def _summed(size: int, rounds: Sequence[Round]) -> Try:
    per_s = median([one.per_s for one in rounds])
    batch = int(median([typical_batch(one.marks) for one in rounds]))
    return Try(
        batch_rows=size,
        events_per_s=round(per_s, 1),
        rounds=[round(one.per_s, 1) for one in rounds],
        batch=batch,
        batch_seconds=round(batch / per_s, 4),
        cpu_us_per_event=round(median([one.cpu_us for one in rounds]), 1),
        peak_rss_mb=round(max(one.peak_rss_mb for one in rounds), 1),
    )


def smallest_of_the_best(rates: Mapping[int, float]) -> int:
    """The smallest size whose rate is within a twentieth of the best."""
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= best * ENOUGH)
