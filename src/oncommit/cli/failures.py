"""From an exception to one sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Final

import click
import msgspec

from oncommit.cli.main import ReaderLeft
from oncommit.errors import ConfigError, DatabaseUnreachable, OncommitError, SchemaMissing, SchemaOutdated

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NEEDS_MIGRATION: Final = 4
INTERRUPTED: Final = 130


def report(error: Exception, *, as_json: bool) -> int:
    """Tell of the error; the exit code. What is nobody's fault but ours is raised again, with its trace."""
    if isinstance(error, ReaderLeft | BrokenPipeError):
        # What is still buffered goes nowhere, or the interpreter's own flush at exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    if isinstance(error, click.Abort):
        return INTERRUPTED
    code = exit_code(error)
    if code is None:
        raise error
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if as_json:
        told = {"error": type(error).__name__, "message": message, "exit_code": code}
        click.echo(msgspec.json.encode(told), err=True)
        return code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"{error.ctx.get_usage()}\n", err=True)
    click.echo(f"oncommit: {' '.join(message.split())}", err=True)
    return code


# The first that fits counts.
_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (click.UsageError, USAGE),
    (ConfigError, USAGE),
    (DatabaseUnreachable, UNREACHABLE),
    (SchemaMissing, NEEDS_MIGRATION),
    (SchemaOutdated, NEEDS_MIGRATION),
    (OncommitError, FAILED),
    (click.ClickException, FAILED),
)


def exit_code(error: Exception) -> int | None:
    """What the program ends with; None for what it does not know."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    # PostgreSQL said no, in a way that nobody foresaw.
    return FAILED if getattr(error, "sqlstate", None) is not None else None
