"""Options that several commands share. Those of settings are made from the settings' definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import click

from oncommit.config import Found, definitions, load
from oncommit.config.definition import ANY, Definition
from oncommit.config.kinds import SWITCH

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")

# Of every program that talks to the database.
_COMMON = ("database", "schema")


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every program, and hand the command one ``settings`` made of file, environment and options."""

    @wraps(function)
    def command(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in _COMMON}
        return function(settings=load(**given), **arguments)

    return _with_options(command, [entry for entry in definitions() if entry.name in _COMMON])


def section_options(*sections: str, without: tuple[str, ...] = ()) -> Callable[[F], Callable[..., Any]]:
    """Add an option for every setting of these sections and of every program; the command gets them as ``given``."""
    entries = [
        entry
        for entry in definitions()
        if entry.path[0] in (*_COMMON, *sections) and ANY not in entry.path and entry.name not in without
    ]

    def decorate(function: F) -> Callable[..., Any]:
        @wraps(function)
        def command(**arguments: Any) -> Any:
            given = {entry.path: Found(arguments.pop(_variable(entry)), option_of(entry)) for entry in entries}
            return function(given=given, **arguments)

        return _with_options(command, entries)

    return decorate


def option_of(entry: Definition) -> str:
    """How a setting is called on the command line: without the section whose program it is."""
    parts = entry.path[1:] if entry.path[0] == "relay" else entry.path
    return "--" + "-".join(parts).replace("_", "-")


def _variable(entry: Definition) -> str:
    return option_of(entry).removeprefix("--").replace("-", "_")


def _with_options(command: Callable[..., Any], entries: Iterable[Definition]) -> Callable[..., Any]:
    for entry in reversed(list(entries)):
        default = f" Default: {entry.shown_default}." if entry.shown_default else ""
        told = f"{entry.help}{default} [{', '.join(entry.variables)}]"
        option = option_of(entry)
        if entry.kind is SWITCH:
            both = f"{option}/--no-{option.removeprefix('--')}"
            command = click.option(both, _variable(entry), default=None, help=told)(command)
        else:
            metavar = entry.kind.name.upper() if entry.kind.name.isalpha() else "TEXT"
            command = click.option(option, _variable(entry), metavar=metavar, help=told)(command)
    return command
