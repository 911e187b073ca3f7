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
from oncommit.cli.options import settings_options
from oncommit.config import Settings
from oncommit.errors import ConfigError, DatabaseUnreachable
from oncommit.identifiers import DEFAULT_SINK, check_sink

if TYPE_CHECKING:
    from oncommit.brokers.base import Broker
    from oncommit.relay.relay import Relay
    from oncommit.relay.settings import RelaySettings

log: Final = logging.getLogger("oncommit.relay")
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0


@click.command("relay", short_help="Send what was committed to the brokers, until it is stopped.")
@click.option(
    "--broker",
    metavar="URL",
    envvar="ONCOMMIT_BROKER",
    help=f"Broker of the sink {DEFAULT_SINK}, such as nats://localhost:4222. [ONCOMMIT_BROKER]",
)
@click.option(
    "--sink",
    "sinks",
    metavar="NAME=URL",
    multiple=True,
    envvar="ONCOMMIT_SINKS",
    help="Broker of another sink; can be given several times. [ONCOMMIT_SINKS, separated by spaces]",
)
@click.option("--name", help="What others see it as. Default: host and process.")
@click.option("--lease", type=float, help="Seconds without a renewal after which others take its lanes. Default: 10.")
@click.option("--statement-timeout", type=float, help="Limit of a statement, shorter than the lease. Default: 5.")
@click.option("--publish-timeout", type=float, help="Limit of a publish. Default: 30.")
@click.option("--stop-timeout", type=float, help="Limit of a graceful stop. Default: 30.")
@click.option("--batch-rows", type=int, help="Events in a batch, at most. Default: 2000.")
@click.option("--batch-bytes", type=int, help="Bytes in a batch, about, at most. Default: 8388608.")
@click.option("--no-archive", is_flag=True, help="Delete what was sent instead of moving it to the archive.")
@click.option("--verbose", is_flag=True, help="Log more.")
@settings_options
def command(
    settings: Settings,
    broker: str | None,
    sinks: tuple[str, ...],
    name: str | None,
    *,
    no_archive: bool,
    verbose: bool,
    **given: float | None,
) -> None:
    """Send what was committed to the brokers, until it is stopped.

    Run as many as you like: they share the work, and one that dies is replaced within its lease. SIGTERM or Ctrl-C ends
    it gracefully: what is in flight is finished, its lanes are handed back. A second signal ends it at once.
    """
    from oncommit.brokers.registry import describe_broker, make_broker
    from oncommit.relay.relay import Relay
    from oncommit.relay.settings import RelaySettings

    urls = sink_urls(broker, sinks)
    brokers: dict[str, Broker] = {sink: make_broker(url) for sink, url in urls.items()}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    relay_settings: RelaySettings = RelaySettings(archive=not no_archive, **chosen)
    database = settings.require_database()
    log_to_stderr(verbose=verbose)
    relay = Relay(database, brokers, schema=settings.schema, settings=relay_settings, name=name)
    served = ", ".join(f"{sink} to {describe_broker(url)}" for sink, url in urls.items())
    asyncio.run(_run(relay, settings, served))


def sink_urls(broker: str | None, sinks: tuple[str, ...]) -> dict[str, str]:
    """Sinks with their brokers' URLs. A fault is told without the URL, which may hold a password."""
    urls = {DEFAULT_SINK: broker} if broker else {}
    for given in sinks:
        name, equals, url = given.partition("=")
        if not equals or "://" in name:
            raise click.UsageError("--sink is NAME=URL, such as audit=nats://localhost:4222")
        try:
            check_sink(name)
        except ConfigError as error:
            raise click.UsageError(f"--sink: {error}") from error
        if name in urls:
            raise click.UsageError(f"the sink {name} is given twice")
        urls[name] = url
    if not urls:
        raise click.UsageError("no broker is given: say --broker URL (or set ONCOMMIT_BROKER), or --sink NAME=URL")
    return urls


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
