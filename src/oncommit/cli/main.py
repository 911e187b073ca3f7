"""``oncommit``: finds the command, runs it, and turns what it raises into one sentence and an exit code.

Commands are imported when they are called, so that help and completion stay quick. To add one, add a line to
``COMMANDS``; the module has a ``command``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from oncommit._version import __version__

# Name: module, and the line that `oncommit --help` shows for it.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "bench": ("oncommit.cli.bench", "Measure what it costs, on this machine."),
    "demo": ("oncommit.cli.demo", "Show what it does, on a PostgreSQL of its own."),
    "events": ("oncommit.cli.events", "Look at events; publish archived ones again."),
    "migrate": ("oncommit.cli.migrate", "Bring the tables in a database up to this version."),
    "relay": ("oncommit.cli.relay", "Send what was committed to the brokers, until it is stopped."),
    "retention": ("oncommit.cli.retention", "Show, or change, for how many days things are kept."),
    "run": ("oncommit.cli.run", "Run loops of your own code, such as relays, until they are stopped."),
    "stats": ("oncommit.cli.stats", "Show what waits, who serves it, and what died."),
    "tune": ("oncommit.cli.tune", "Find settings that suit this database and broker."),
}


class ReaderLeft(Exception):
    """Whoever read our output has seen enough (``| head``)."""


class _Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[name][0]).command
        return found

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            raise ReaderLeft from error  # click would end the program with 1

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 database unreachable, 4 needs migration.",
)
@click.version_option(__version__, prog_name="oncommit", message="%(prog)s %(version)s")
def oncommit() -> None:
    """What your transaction commits gets delivered."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the entry point of the package."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code."""
    try:
        result = oncommit.main(args=list(arguments), prog_name="oncommit", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - what is not ours to explain is raised again there
        from oncommit.cli.failures import report

        return report(error, as_json="--json" in arguments)
    except KeyboardInterrupt:
        return 130
    # click hands back its own exit code (of --help, say); a command may return one.
    return result if isinstance(result, int) else 0
