"""``oncommit bench latency``: from commit to broker, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from oncommit.cli.bench.progress import progress
from oncommit.cli.options import json_option
from oncommit.cli.output import print_json, print_table

if TYPE_CHECKING:
    from oncommit.testing.bench.latency import Latency


@click.command("latency")
@click.option("--mode", "modes", multiple=True, metavar="NAME", help="Only this one; may be given more than once.")
@click.option("--broker", default="nats", metavar="nats|URL", show_default=True, help="NATS, on this machine.")
@click.option("--database", metavar="DSN", help="Measure there, in a schema of its own. Default: one of its own.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=20.0, show_default=True, help="Of writing.")
@click.option("--idle-seconds", type=click.FloatRange(0, 3600), default=30.0, show_default=True, help="Of idling.")
@click.option("--check", is_flag=True, help="Exit with 1 where a figure is not what it has to be.")
@json_option
def latency(
    *,
    modes: tuple[str, ...],
    broker: str,
    database: str | None,
    seconds: float,
    idle_seconds: float,
    check: bool,
    as_json: bool,
) -> int:
    """Milliseconds from the commit of an event to its place in NATS, at 200 transactions a second.

    By the way in which the relay, or the application itself, hears of the commit; and how much of a core a relay takes
    that has nothing to do. Takes a minute a mode.
    """
    from oncommit.errors import OncommitError
    from oncommit.testing.bench.latency import MODES, LatencyPlan, run
    from oncommit.testing.servers import ServerError

    if unknown := set(modes) - set(MODES):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(MODES)}", param_hint="--mode")
    plan = LatencyPlan(
        modes=modes or tuple(MODES), seconds=seconds, idle_seconds=idle_seconds, broker=broker, dsn=database
    )
    try:
        with progress() as say:
            found = run(plan, say)
    except ServerError as error:
        raise OncommitError(str(error)) from error
    if as_json:
        print_json(found)
    else:
        _print_latency(found)
    return 1 if check and not all(gate.passed for one in found for gate in one.gates) else 0


def _print_latency(found: Sequence[Latency]) -> None:
    print_table(
        ("mode", "p50 ms", "p99 ms", "max ms", "events/s", "by the application", "idle CPU %"),
        [
            (
                one.mode,
                f"{one.p50_ms:g}",
                f"{one.p99_ms:g}",
                f"{one.max_ms:g}",
                f"{one.events_per_s:g}",
                f"{one.sent_behind_commit / one.events:.0%}",
                "" if one.idle_cpu_percent is None else f"{one.idle_cpu_percent:g}",
            )
            for one in found
        ],
    )
    for one in found:
        for gate in one.gates:
            if not gate.passed:
                click.echo(f"missed: {one.mode}: {gate.of} is {gate.value:g} and may be {gate.gate:g}")
