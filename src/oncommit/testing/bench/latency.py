"""`oncommit bench latency`: from the return of a commit to the moment at which NATS has stored the event.

The writer is paced: it begins a business transaction, with its event, at fixed moments, whether or not the one before
has ended, so that a slow one hides none. It notes the clock on the wall when PostgreSQL has answered its COMMIT. What
this is subtracted from is the time that NATS gave the message when it stored it, which is when it acknowledges. Both
clocks are this machine's, so the broker has to be here; nobody has to listen while it is measured. A commit is visible
to a relay a little before its writer knows of it: such a latency may be shorter than nothing, and is left so.

The relay is a process as users start it. After the last event it is left alone, and then its CPU time is taken.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import msgspec

from oncommit.errors import ConfigError, OncommitError
from oncommit.outbox import Outbox
from oncommit.testing.bench.place import Place, a_place
from oncommit.testing.bench.relay.backlog import reset
from oncommit.testing.bench.relay.homes import Target, a_target
from oncommit.testing.bench.relay.homes.nats import NatsHome
from oncommit.testing.bench.relay.process import Watched
from oncommit.testing.bench.relay.results import Gate, versions
from oncommit.testing.bench.results import load_now
from oncommit.testing.bench.usual import usual_schema
from oncommit.testing.bench.workload import INSERT_ORDER, SEED, UPDATE_ACCOUNT, Order, orders, uniform

if TYPE_CHECKING:
    from oncommit.message import Event

Say = Callable[[str], None]

RATE: Final = 200
CONNECTIONS: Final = 8
WARM_UP: Final = 2.0
QUIET: Final = 10.0
"""After so long of silence a relay counts as idle: by then it looks as seldom as it ever will."""
_DRAINED_WITHIN: Final = 60.0
_IDLE: Final = 1.0
# Milliseconds at most: of the median, and of the hundredth that takes longest.
_GATES: Final[dict[str, dict[str, float]]] = {
    "wake": {"p50_ms": 5.0, "p99_ms": 25.0},
    "optimistic": {"p50_ms": 4.0},
    "poll": {"p50_ms": 60.0},
}


class LatencyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the command."""

    modes: tuple[str, ...]
    seconds: float = 20.0
    idle_seconds: float = 30.0
    broker: str = "nats"
    dsn: str | None = None


class Latency(msgspec.Struct, kw_only=True):
    """Of one mode."""

    mode: str
    p50_ms: float
    p99_ms: float
    max_ms: float
    idle_cpu_percent: float | None
    """Of one core, by the relay's process; nothing where it was not measured."""
    events: int
    events_per_s: float
    sent_behind_commit: int
    """Of these events, so many were sent by the application itself."""
    gates: list[Gate]
    load_before: float
    about: dict[str, Any]


_COMMITTED: Final[ContextVar[list[float]]] = ContextVar("oncommit_bench_committed")


if TYPE_CHECKING:
    _Connection = asyncpg.Connection[Any]
else:
    _Connection = asyncpg.Connection  # generic for checkers only


class TimedConnection(_Connection):
    """Notes when a COMMIT was answered: giving the connection back to its pool takes a while, too."""

    async def execute(self, query: str, *arguments: Any, timeout: float | None = None) -> str:
        """As its base."""
        answer: str = await super().execute(query, *arguments, timeout=timeout)
        if query.startswith("COMMIT"):
            _COMMITTED.get().append(time.time())
        return answer


def _poll(_pool: Any, _target: Target, schema: str) -> Outbox:
    return Outbox(schema=schema)


def _optimistic(pool: Any, target: Target, schema: str) -> Outbox:
    return Outbox(schema=schema, after_commit=pool, broker=target.url)


def _wake(pool: Any, _target: Target, schema: str) -> Outbox:
    return Outbox(schema=schema, after_commit=pool)


MODES: Final[dict[str, Callable[[Any, Target, str], Outbox]]] = {
    "wake": _wake,
    "optimistic": _optimistic,
    "poll": _poll,
}
"""How the application makes its outbox; the relay is the same."""


def run(plan: LatencyPlan, say: Say) -> list[Latency]:
    """Measure one mode after the other.

    Raises:
        ConfigError: A broker that keeps no times of its own.
        ServerError: A server cannot be started here.
    """
    if plan.broker != "nats" and not plan.broker.startswith("nats://"):
        raise ConfigError("latency is measured with NATS, which keeps the time of each message: nats, or its URL")
    say("starting the servers")
    run_name = f"bench_{secrets.token_hex(4)}"
    with a_target(plan.broker, run_name) as target, a_place(plan.dsn, usual_schema()) as place:
        return [asyncio.run(_measure(plan, place, target, mode, say)) for mode in plan.modes]


async def _measure(plan: LatencyPlan, place: Place, target: Target, mode: str, say: Say) -> Latency:
    async with place.connection() as connection:
        await reset(connection)
    await asyncio.to_thread(place.reset)
    await target.home.empty()
    load = load_now()
    settings = {"search_path": place.schema}
    async with asyncpg.create_pool(
        place.dsn,
        min_size=CONNECTIONS,
        max_size=CONNECTIONS,
        server_settings=settings,
        connection_class=TimedConnection,
    ) as pool:
        outbox = MODES[mode](pool, target, place.schema)
        with Watched(["oncommit", "relay"], _environment(place, target)) as relay:
            say(f"{mode}: writing")
            await _serves(pool, relay)
            await _write(pool, outbox, target.event_type, WARM_UP)
            before = outbox.optimistic.successes if outbox.optimistic else 0
            committed = await _write(pool, outbox, target.event_type, plan.seconds)
            await _drained(pool, relay)
            behind = outbox.optimistic.successes - before if outbox.optimistic else 0
            await outbox.close()
            idle = await _idle(plan, mode, relay, say)
    assert isinstance(target.home, NatsHome)
    stored = await target.home.times()
    return _result(mode, plan, committed, stored, idle, behind, load, place.about | target.about | versions())


def _environment(place: Place, target: Target) -> Mapping[str, str]:
    return {"ONCOMMIT_DATABASE": place.dsn, "ONCOMMIT_SCHEMA": place.schema, "ONCOMMIT_BROKER": target.url}


async def _serves(pool: Any, relay: Watched) -> None:
    """Until the relay has its lanes."""
    async with asyncio.timeout(_DRAINED_WITHIN):
        while not await pool.fetchval("SELECT EXISTS (SELECT FROM outbox_lane WHERE owner IS NOT NULL)"):
            relay.check()
            await asyncio.sleep(0.05)


async def _write(pool: Any, outbox: Outbox, event_type: str, seconds: float) -> dict[UUID, float]:
    """Transactions at their moments; when the commit of each event was answered."""
    committed: dict[UUID, float] = {}
    source = orders(uniform(SEED))
    begin = time.monotonic()

    async def one(order: Order) -> None:
        event: Event[Any] = msgspec.structs.replace(order.event(), type=event_type)
        moments: list[float] = []
        _COMMITTED.set(moments)
        async with outbox.transaction(pool) as connection:
            await connection.execute(INSERT_ORDER, order.account, order.cents, order.note)
            await connection.execute(UPDATE_ACCOUNT, order.account, order.cents)
            await outbox.add(connection, event)
        (committed[event.id],) = moments

    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(max(begin + number / RATE - time.monotonic(), 0.0))
            group.create_task(one(next(source)))
    return committed


async def _drained(pool: Any, relay: Watched) -> None:
    async with asyncio.timeout(_DRAINED_WITHIN):
        while await pool.fetchval("SELECT EXISTS (SELECT FROM outbox)"):
            relay.check()
            await asyncio.sleep(0.05)


async def _idle(plan: LatencyPlan, mode: str, relay: Watched, say: Say) -> float | None:
    """How much of a core the relay takes with nothing to do, in percent."""
    if not plan.idle_seconds:
        return None
    say(f"{mode}: idle")
    await asyncio.sleep(QUIET)
    begin = time.time()
    await asyncio.sleep(plan.idle_seconds)
    relay.check()
    end = time.time()
    return round(relay.cpu_seconds(begin, end) / (end - begin) * 100, 2)


def _result(
    mode: str,
    plan: LatencyPlan,
    committed: Mapping[UUID, float],
    stored: Mapping[str, float],
    idle: float | None,
    behind: int,
    load: float,
    about: dict[str, Any],
) -> Latency:
    missing = [event for event in committed if str(event) not in stored]
    if missing:
        raise OncommitError(f"{len(missing)} of {len(committed)} events are not at the broker: please report it")
    taken = sorted((stored[str(event)] - moment) * 1000 for event, moment in committed.items())
    result = Latency(
        mode=mode,
        p50_ms=percentile(taken, 50),
        p99_ms=percentile(taken, 99),
        max_ms=percentile(taken, 100),
        idle_cpu_percent=idle,
        events=len(taken),
        events_per_s=round(len(taken) / plan.seconds, 1),
        sent_behind_commit=behind,
        gates=[],
        load_before=load,
        about=about,
    )
    for name, most in _GATES[mode].items():
        value = getattr(result, name)
        result.gates.append(Gate(name, value, most, passed=value <= most))
    if idle is not None:
        result.gates.append(Gate("idle_cpu_percent", idle, _IDLE, passed=idle <= _IDLE))
    return result


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent are not above."""
    return round(ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1], 2)
