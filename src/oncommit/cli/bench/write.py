"""``oncommit bench write``: what an event costs the transaction that adds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from oncommit.cli.bench.progress import progress
from oncommit.cli.options import json_option
from oncommit.cli.output import print_json, print_table

if TYPE_CHECKING:
    from oncommit.testing.bench.results import Result

_HEADS: Final = ("driver", "schema", "what", "without", "with", "ratio", "spread", "gate", "")


@click.command("write")
@click.option("--database", metavar="DSN", help="Measure there, in a schema of its own. Default: one of its own.")
@click.option("--driver", "drivers", multiple=True, metavar="NAME", help="Only this one; may be given more than once.")
@click.option("--pairs", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds without and with.")
@click.option("--seconds", type=click.FloatRange(0.05, 3600), default=2.0, show_default=True, help="Of each round.")
@click.option(
    "--batch", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Events in one call."
)
@click.option("--check", is_flag=True, help="Exit with 1 where a ratio is below its gate.")
@json_option
def write(
    *,
    database: str | None,
    drivers: tuple[str, ...],
    pairs: int,
    seconds: float,
    batch: int,
    check: bool,
    as_json: bool,
) -> int:
    """Commits per second of one business transaction, without and with one event in it, for each driver.

    The transaction is BEGIN, one INSERT, one UPDATE by key, COMMIT, by 16 writers at once; both sides are measured in
    turns. Then 10 000 events in one call, beside raw rows; and the same with the outbox table that most projects have.
    Takes about five minutes. The writers share this machine's cores with PostgreSQL.
    """
    from oncommit.errors import ConfigError, OncommitError
    from oncommit.testing.bench.forms import FORMS
    from oncommit.testing.bench.write import Plan, run
    from oncommit.testing.servers import ServerError

    if unknown := set(drivers) - set(FORMS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(FORMS)}", param_hint="--driver")
    plan = Plan(drivers or tuple(FORMS), pairs, seconds, batch, database, must=bool(drivers))
    found: list[Result] = []
    try:
        with progress() as say:
            found.extend(run(plan, say))
    except ServerError as error:
        raise OncommitError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed here, and a driver that was asked for needs it") from error
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 1 if check and any(result.passed is False for result in found) else 0


def _print(found: Sequence[Result]) -> None:
    print_table(_HEADS, [_row(result) for result in found])
    about = found[-1].about
    load = max(result.load_before for result in found)
    click.echo(
        f"\nPer second, medians of {found[-1].pairs} pairs. PostgreSQL {about['postgresql']}, fsync {about['fsync']}, "
        f"synchronous_commit {about['synchronous_commit']}; Python {about['python']}; {about['cores']} cores, shared "
        f"by the writers and PostgreSQL; load {load} at most before a measurement."
    )


def _row(result: Result) -> tuple[str, ...]:
    what = f"{result.batch} events in one call" if result.batch else f"commits, {result.writers} writers"
    base = result.raw_events_per_s if result.batch else result.without_per_s
    other = result.events_per_s if result.batch else result.with_per_s
    low, high = result.spread
    verdict = {None: "", True: "ok", False: "missed"}[result.passed]
    return (
        result.driver,
        result.schema,
        what,
        f"{base:,.0f}",
        f"{other:,.0f}",
        f"{result.ratio:.2f}",
        f"{low:.2f}-{high:.2f}",
        "" if result.gate is None else f"{result.gate:g}",
        verdict,
    )
