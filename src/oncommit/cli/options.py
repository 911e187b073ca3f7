"""Options that several commands share. Those of settings are made from the settings' definitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from oncommit.config import definitions, load

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every setting, and hand the command one ``settings`` made of file, environment and options."""

    @wraps(function)
    def command(**arguments: Any) -> Any:
        given = {entry.name: arguments.pop(entry.name) for entry in definitions()}
        return function(settings=load(**given), **arguments)

    for entry in reversed(definitions()):
        default = f" Default: {entry.default}." if entry.default else ""
        told = f"{entry.help}{default} [{', '.join(entry.variables)}]"
        command = click.option(f"--{entry.name}", entry.name, metavar="TEXT", help=told)(command)
    return command
