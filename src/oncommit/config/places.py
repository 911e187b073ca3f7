"""Where settings stand: a file, the environment, and ``--set``. Only names are looked at here, values later."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from oncommit.config.definition import PREFIX, Place, dotted
from oncommit.config.lookup import find, is_table, nearest
from oncommit.config.program import FILE_NAME, definitions
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SINK, check_sink

# What Kubernetes tells every pod of a Service called oncommit, or oncommit-relay.
_OF_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\w+)?)$")
MAIN_BROKER: Final = ("sinks", DEFAULT_SINK, "broker")
_ALONE: Final = (PREFIX + "CONFIG", PREFIX + "SETTINGS", PREFIX + "BROKER", PREFIX + "SINKS")


class Found(NamedTuple):
    """A value, as it was written until it has been read, and where it stands."""

    value: Any
    origin: str


def from_file(file: Path | None, environment: Mapping[str, str]) -> dict[Place, Found]:
    """What stands in the file, if there is one."""
    named = environment.get(PREFIX + "CONFIG")
    wanted = file or (Path(named) if named else None)
    path = wanted or Path(FILE_NAME)
    try:
        written = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if wanted is None:
            return {}
        msg = f"settings file {path} is not there"
        raise ConfigError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        msg = f"settings file {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    return _from_toml(written, str(path), f"settings file {path} cannot be read")


def _from_toml(written: str, place: str, unreadable: str) -> dict[Place, Found]:
    try:
        table = tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        msg = f"{unreadable}: {error}"
        raise ConfigError(msg) from error
    return {path: Found(value, f"{dotted(path)} in {place}") for path, value in _leaves(table, (), place)}


def _leaves(table: Mapping[str, Any], above: Place, place: str) -> Iterator[tuple[Place, Any]]:
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and is_table(path):
            yield from _leaves(value, path, place)
        else:
            find(path, f"setting in {place}")
            yield path, value


def from_environment(environment: Mapping[str, str]) -> dict[Place, Found]:
    """What the environment says. Raises ``ConfigError`` for a variable that looks like a slip."""
    found: dict[Place, Found] = {}
    if written := environment.get(PREFIX + "SETTINGS"):
        name = PREFIX + "SETTINGS"
        found |= _from_toml(written, name, f"{name} must be what could stand in {FILE_NAME}")
    if url := environment.get(PREFIX + "BROKER"):
        found[MAIN_BROKER] = Found(url, PREFIX + "BROKER")
    for entry in environment.get(PREFIX + "SINKS", "").split():
        name, url = named_broker(entry, PREFIX + "SINKS")
        found[("sinks", name, "broker")] = Found(url, PREFIX + "SINKS")
    for setting in definitions():
        for variable in reversed(setting.variables):
            if environment.get(variable):
                found[setting.path] = Found(environment[variable], variable)
    _no_slips(environment)
    return found


def _no_slips(environment: Mapping[str, str]) -> None:
    """Only what looks like a slip is refused: others own ``ONCOMMIT_`` variables too."""
    variables = [variable for setting in definitions() for variable in setting.variables] + list(_ALONE)
    for variable in environment:
        if not variable.startswith(PREFIX) or variable in variables or _OF_KUBERNETES.search(variable):
            continue
        if near := nearest(variable, variables, 0.85):
            msg = f"the environment has {variable}, which is no setting; did you mean {near}?"
            raise ConfigError(msg)


def named_broker(entry: str, place: str) -> tuple[str, str]:
    """Name and URL of ``NAME=URL``. A fault is told without the URL, which may hold a password."""
    name, equals, url = entry.partition("=")
    if not equals or not url or "://" in name:
        msg = f"{place} is NAME=URL, such as audit=nats://localhost:4222"
        raise ConfigError(msg)
    try:
        return check_sink(name), url
    except ConfigError as error:
        msg = f"{place}: {error}"
        raise ConfigError(msg) from error


def assigned(assignment: str) -> dict[Place, Found]:
    """``KEY=VALUE`` as TOML; a value that is none is text, so that nobody has to quote it twice for the shell."""
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        msg = "--set is KEY=VALUE, such as --set relay.lease=15s; KEY as it would stand in a file"
        raise ConfigError(msg)
    try:
        tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        value = msgspec.json.encode(value).decode()  # JSON's text is TOML's too
    return _from_toml(f"{key} = {value}", "--set", "--set has a key that cannot be read")
