"""``oncommit tune``: finds the size of batches that suits this database, broker and machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from oncommit.cli.bench.progress import progress
from oncommit.cli.bench.sizes import size_in_bytes
from oncommit.cli.options import json_option, settings_options
from oncommit.cli.output import print_json
from oncommit.config import Settings

if TYPE_CHECKING:
    from oncommit.testing.bench.tune import Tuned

_WIDTH: Final = 40


@click.command("tune", short_help="Find settings that suit this database and broker.")
@click.option(
    "--broker", metavar="URL|NAME", required=True, envvar="ONCOMMIT_BROKER", help="The broker. [ONCOMMIT_BROKER]"
)
@click.option("--seconds", type=click.FloatRange(5, 3600), default=60.0, show_default=True, help="For how long to try.")
@click.option("--payload", default="300", metavar="SIZE", show_default=True, help="Of your events: 2kB, say.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings_options
@json_option
def command(settings: Settings, broker: str, seconds: float, payload: str, *, yes: bool, as_json: bool) -> None:
    """Find settings that suit this database and broker, by trying them.

    Makes a schema oncommit_bench_… in the database, and a stream, topic or queue with bench_… in its name at the
    broker; writes events and has them relayed in batches of several sizes; removes both. Your tables and topics are not
    touched, but your servers are busy meanwhile: better not at noon.
    """
    from oncommit.errors import OncommitError
    from oncommit.testing.bench.tune import Ask, run
    from oncommit.testing.servers import ServerError

    ask = Ask(dsn=settings.require_database(), broker=broker, seconds=seconds, payload=size_in_bytes(payload))
    if not yes:
        _confirm(seconds)
    try:
        with progress("tune") as say:
            found = run(ask, say)
    except ServerError as error:
        raise OncommitError(str(error)) from error
    if as_json:
        print_json(found)
    else:
        _print(found)


def _confirm(seconds: float) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to ask whether your servers may be busy for a while: say --yes")
    click.confirm(
        f"For about {seconds:g} s, this makes a schema oncommit_bench_… in the database and a place named bench_… at "
        "the broker, fills them with events, and removes both. Go on?",
        abort=True,
        err=True,
    )


def _print(found: Tuned) -> None:
    best = max(one.events_per_s for one in found.tries)
    chosen = found.settings["batch_rows"]
    click.echo(f"Events per second by batch_rows ({found.events} of {found.payload_bytes} bytes to {found.broker}):\n")
    for one in found.tries:
        bar = "█" * max(round(one.events_per_s / best * _WIDTH), 1)
        mark = "  <- the smallest within 5 % of the best" if one.batch_rows == chosen else ""
        click.echo(f"{one.batch_rows:>7,}  {bar:<{_WIDTH}} {one.events_per_s:>9,.0f}  {one.peak_rss_mb:g} MB{mark}")
    if found.not_tried:
        click.echo(f"\nNot tried in this time: {', '.join(map(str, found.not_tried))}; more --seconds reach them.")
    click.echo("\nFor oncommit.toml:\n\n[relay]")
    for name, value in found.settings.items():
        click.echo(f"{name} = {value}")
    click.echo(f"\nor ONCOMMIT_RELAY_BATCH_ROWS={chosen} in the environment. It took {found.seconds:g} s.")
