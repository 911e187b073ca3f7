"""``oncommit relay``: a relay as a process.

Failure story. The database need not be there at the start: the relay says so and goes on trying, as it does when it
loses it later; a supervisor would do nothing else. What cannot heal by waiting ends it at once: settings (2), tables
that are missing or too old (4). The first SIGTERM or SIGINT ends it gracefully, within its stop limit, with 0; the
second at once, as the signal would have done by itself, and other relays take its lanes when its lease has run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from typing import TYPE_CHECKING, Any, Final

import click

from oncommit.cli.logs import log_to_stderr
from oncommit.cli.options import json_option, section_options
from oncommit.config import Found, Settings, load_all
from oncommit.config.definition import Place
from oncommit.config.places import named_broker
from oncommit.errors import DatabaseUnreachable
from oncommit.identifiers import DEFAULT_SINK

if TYPE_CHECKING:
    from oncommit.relay.relay import Relay

log: Final = logging.getLogger("oncommit.relay")
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0


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
    asyncio.run(_run(relay, settings, served))


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


async def _run(relay: Relay, settings: Settings, served: str) -> None:
    stopping = asyncio.Event()
    _listen(relay, stopping)
    if not await _database_is_ready(settings, stopping):
        return
    log.info("relay %s serves %s", relay.name, served)
    await relay.run()
    log.info("relay %s has stopped", relay.name)


def _listen(relay: Relay, stopping: asyncio.Event) -> None:
    """The first signal asks for a graceful end, the second does what it does to any program."""
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: ending at once, in mid-work", number.name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        log.info("%s: finishing what is in flight; again ends at once", number.name)
        stopping.set()
        relay.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


async def _database_is_ready(settings: Settings, stopping: asyncio.Event) -> bool:
    """Wait for the database, and check its tables; False where the end came first."""
    from oncommit.db.migrate import check

    pause = _FIRST_PAUSE
    checking: asyncio.Task[Any]
    ended = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set():
            checking = asyncio.create_task(check(settings.require_database(), settings.schema))
            await asyncio.wait({checking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
                return False
            try:
                checking.result()
            except DatabaseUnreachable as error:
                log.warning("%s; trying again", error)
                await asyncio.wait({ended}, timeout=random.uniform(pause / 2, pause))
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                return True
        return False
    finally:
        ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ended
