"""``oncommit run``: loops of your own code as a process."""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oncommit.cli.logs import log_to_stderr
from oncommit.cli.running import run_until_stopped
from oncommit.errors import ConfigError

if TYPE_CHECKING:
    from oncommit.runtime.several import Loop

log: Final = logging.getLogger("oncommit.run")


@click.command("run", short_help="Run loops of your own code, such as relays, until they are stopped.")
@click.argument("path", metavar="MODULE:NAME")
@click.option(
    "--app-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Where modules are looked for first. Default: here.",
)
@click.option("--verbose", is_flag=True, help="Log more.")
def command(path: str, app_dir: Path, *, verbose: bool) -> None:
    """Run loops of your own code until they are stopped.

    MODULE:NAME is a Relay, Several of them, or anything else with run() and stop(); or a function without arguments
    that makes it. SIGTERM or Ctrl-C ends it gracefully, a second one at once.
    """
    log_to_stderr(verbose=verbose)
    directory = str(app_dir.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    asyncio.run(_run(path))


async def _run(path: str) -> None:
    # Within the event loop, since what is made may want one.
    await run_until_stopped(load_loop(path), log, name=path, does="runs")


def load_loop(path: str) -> Loop:
    """What this path names. Raises ``ConfigError`` that says which part of it is wrong."""
    from oncommit.runtime.several import check_loop

    module_name, colon, names = path.partition(":")
    if not colon or not module_name or not names:
        msg = f"{path!r} is no MODULE:NAME, such as shop.loops:relay"
        raise ConfigError(msg)
    found: Any = _module(module_name)
    for name in names.split("."):
        if not hasattr(found, name):
            raise ConfigError(_missing(module_name, names, name, found))
        found = getattr(found, name)
    if isfunction(found):
        found = found()
    try:
        check_loop(found)
    except ConfigError as error:
        msg = f"{path}: {error}"
        raise ConfigError(msg) from error
    loop: Loop = found
    return loop


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A module that the user's code misses is that code's fault, with its own trace.
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        msg = f"there is no module {error.name!r} here ({sys.path[0]}); say --app-dir, or check the name"
        raise ConfigError(msg) from error


def _missing(module: str, names: str, name: str, found: Any) -> str:
    there = [known for known, thing in vars(found).items() if callable(getattr(thing, "run", None))]
    there = [known for known in there if not known.startswith("_") and not isinstance(getattr(found, known), type)]
    hint = f"; it has {', '.join(sorted(there))}" if there else ""
    return f"{module}:{names}: there is no {name!r} in {getattr(found, '__name__', found)!r}{hint}"
