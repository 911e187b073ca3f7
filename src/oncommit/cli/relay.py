"""``oncommit relay``: a relay as a process.

Failure story: that of cli/running.py. Settings that cannot be end it with 2, tables that are missing or too old with 4.
Killed, other relays take its lanes when its lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import click

from oncommit.cli.logs import log_to_stderr
from oncommit.cli.options import json_option, section_options
from oncommit.cli.running import run_until_stopped
from oncommit.config import Found, load_all
from oncommit.config.definition import Place
from oncommit.config.places import named_broker
from oncommit.identifiers import DEFAULT_SINK

log: Final = logging.getLogger("oncommit.relay")


@click.command("relay", short_help="Send what was committed to the brokers, until it is stopped.")
@click.option(
    "--broker",
    metavar="URL",
    help=f"Broker of the sink {DEFAULT_SINK}, such as nats://localhost:4222. [ONCOMMIT_BROKER]",
)
@click.option(
    "--sink",
    "sinks",
    metavar="NAME[=URL]",
    multiple=True,
    help="Serve only this sink; with a URL, that is its broker. Can be given several times. "
    "[ONCOMMIT_RELAY_SINKS; with URLs: ONCOMMIT_SINKS]",
)
@section_options("preset", "relay", "retry", without=("relay.sinks",))
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Any setting, named as in a file, such as 'retry.\"order.*\".max_attempts=3'. Can be given several times.",
)
@click.option("--show-settings", is_flag=True, help="Print all settings, with where each comes from, and end.")
@json_option
@click.option("--verbose", is_flag=True, help="Log more.")
def command(
    given: dict[Place, Found],
    broker: str | None,
    sinks: tuple[str, ...],
    assignments: tuple[str, ...],
    *,
    show_settings: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Send what was committed to the brokers, until it is stopped.

    Run as many as you like: they share the work, and one that dies is replaced within its lease. SIGTERM or Ctrl-C ends
    it gracefully: what is in flight is finished, its lanes are handed back. A second signal ends it at once.
    """
    from oncommit.app import make_relay
    from oncommit.brokers.registry import describe_broker

    loaded = load_all(assignments=assignments, given=given | sink_settings(broker, sinks))
    if show_settings:
        from oncommit.cli.shown_settings import show_settings as show

        show(loaded, as_json=as_json)
        return
    settings = loaded.settings
    relay = make_relay(settings)
    log_to_stderr(verbose=verbose)
    served = ", ".join(f"{name} to {describe_broker(sink.broker or '')}" for name, sink in settings.served().items())
    asyncio.run(run_until_stopped(relay, log, name=f"relay {relay.name}", does=f"serves {served}"))


def sink_settings(broker: str | None, sinks: tuple[str, ...]) -> dict[Place, Found]:
    """What ``--broker`` and ``--sink`` say. A fault is told without the URL, which may hold a password."""
    given: dict[Place, Found] = {}
    if broker:
        given[("sinks", DEFAULT_SINK, "broker")] = Found(broker, "--broker")
    names: list[str] = []
    for entry in sinks:
        if "=" in entry or "://" in entry:
            name, url = named_broker(entry, "--sink")
            place = ("sinks", name, "broker")
            if place in given:
                raise click.UsageError(f"the sink {name} is given twice")
            given[place] = Found(url, "--sink")
            names.append(name)
        else:
            names.append(entry)
    if any("=" not in entry for entry in sinks):
        given[("relay", "sinks")] = Found(names, "--sink")
    return given
