"""``oncommit bench relay``: events a second from the outbox to the broker."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import click

from oncommit.cli.bench.progress import progress
from oncommit.cli.bench.sizes import size_in_bytes
from oncommit.cli.options import json_option
from oncommit.cli.output import print_json, print_table

if TYPE_CHECKING:
    from oncommit.testing.bench.relay.results import RelayResult


@click.command("relay")
@click.option(
    "--broker", required=True, metavar="NAME|URL", help="nats, redis, rabbitmq, kafka start one; or one that runs."
)
@click.option("--database", metavar="DSN", help="Measure there, in a schema of its own. Default: one of its own.")
@click.option("--events", type=click.IntRange(100, 100_000_000), help="Default: 100000, fewer of large ones.")
@click.option("--keys", type=click.Choice(["uniform", "zipf", "1", "unique"]), default="uniform", show_default=True)
@click.option("--payload", default="300", metavar="SIZE", show_default=True, help="Bytes of a payload; 10kB, 1MB.")
@click.option("--pairs", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds of each side.")
@click.option("--side", "sides", multiple=True, metavar="NAME", help="Only this side; may be given more than once.")
@click.option(
    "--waiting", type=click.IntRange(0, 100_000_000), default=0, help="With so many waiting, beside --events."
)
@click.option("--open-transaction", is_flag=True, help="With a transaction left open elsewhere, beside without.")
@click.option("--relays", type=click.IntRange(1, 64), default=1, help="With so many relays, beside one.")
@click.option("--delayed", type=click.IntRange(0, 100_000_000), default=0, help="With so many delayed, beside none.")
@click.option("--quick", is_flag=True, help="One pair of 6000 events: whether it runs, not how fast.")
@click.option("--check", is_flag=True, help="Exit with 1 where a figure is not what it has to be.")
@json_option
def relay(
    *, database: str | None, events: int | None, payload: str, quick: bool, check: bool, as_json: bool, **told: Any
) -> int:
    """Events per second from the outbox to the broker, beside what holds it back.

    Five sides in turns, each on a backlog written before: the relay, a process as users start it; the same messages
    in the same batches published by the broker's client without a database; the same by our adapter; the relay's loop
    without a broker; and what most libraries do (claim 100, publish, mark one by one). The ratio is that of the relay
    to the slower of client and loop. With a condition (--waiting, --open-transaction, --relays, --delayed): the relay
    under it beside itself without. Takes some minutes; all share this machine's cores.
    """
    from oncommit.errors import OncommitError
    from oncommit.testing.bench.relay.plan import Plan, fitting_events
    from oncommit.testing.bench.relay.run import run
    from oncommit.testing.servers import ServerError

    size = size_in_bytes(payload)
    if quick:
        told |= {"pairs": 1, "reference_seconds": 0.5}
        events = events or min(6000, fitting_events(size))
    plan = Plan(dsn=database, events=events or fitting_events(size), payload=size, **told)
    try:
        with progress() as say:
            found = run(plan, say)
    except ServerError as error:
        raise OncommitError(str(error)) from error
    if as_json:
        print_json(found)
    else:
        _print_relay(found)
    return 1 if check and not all(gate.passed for gate in found.gates) else 0


def _print_relay(found: RelayResult) -> None:
    rates = [(side, found.rounds[side]) for side in found.rounds]
    print_table(
        ("side", "events/s", "from", "to"),
        [(side, f"{median(each):,.0f}", f"{min(each):,.0f}", f"{max(each):,.0f}") for side, each in rates],
    )
    click.echo("")
    if found.ratio is not None:
        click.echo(f"{found.ratio:.2f} of the ceiling ({found.ceiling}), pairs {_range(found.spread)}.")
    if found.factor is not None:
        click.echo(f"{found.factor:g} times the reference.")
    if found.kept is not None:
        click.echo(
            f"{found.kept:.2f} of the rate without {', '.join(found.conditions)}, pairs {_range(found.kept_spread)}."
        )
    if found.cpu_us_per_event is not None:
        click.echo(
            f"{found.cpu_us_per_event:g} µs of CPU an event, {found.peak_rss_mb:g} MB at most, "
            f"{found.batch} events a batch."
        )
    about = found.about
    click.echo(
        f"{about['broker_version']}: {about['broker_storage']}; {about['broker_durability']}. PostgreSQL "
        f"{about['postgresql']}, fsync {about['fsync']}; {about['cores']} cores; load {found.load_before} before."
    )
    for gate in found.gates:
        if not gate.passed:
            click.echo(f"missed: {gate.of} is {gate.value:g} and has to be {gate.gate:g}")


def _range(spread: tuple[float, float] | None) -> str:
    low, high = spread or (0.0, 0.0)
    return f"{low:.2f} to {high:.2f}"
