"""From file, environment and arguments to one value.

``oncommit.toml`` < ``ONCOMMIT_SETTINGS`` (the same text, in the environment) < ``ONCOMMIT_…`` < ``--set`` < options. A
preset lies below all of them. To add a setting, add a field to the struct of its section (config/relay.py, …).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from oncommit.config.definition import Clash, Place, dotted
from oncommit.config.lookup import find
from oncommit.config.places import MAIN_BROKER, Found, assigned, from_environment, from_file
from oncommit.config.presets import PRESETS
from oncommit.config.program import Settings, SinkSettings, definitions
from oncommit.config.relay import RelayProgram, RelaySettings
from oncommit.errors import ConfigError
from oncommit.identifiers import check_sink
from oncommit.retry import RetryPolicy

T = TypeVar("T")
Read = Mapping[Place, Found]

# Where one of these is set, libpq's own variables say which database is meant.
_LIBPQ: Final = ("PGHOST", "PGDATABASE")
_FROM_LIBPQ: Final = "postgresql://"
_KAFKA: Final = "KAFKA_BOOTSTRAP_SERVERS"
_DEPTH_OF_A_TYPE: Final = 3  # retry, the type, the setting


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and where each that was given comes from."""

    settings: Settings
    found: Mapping[Place, Found]


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **arguments: str | None,
) -> Settings:
    """The settings from all places. Arguments that are None were not given.

    Example:
        >>> load(environment={}, database="postgresql://db/shop").schema
        'oncommit'

    Args:
        file: Default: ``ONCOMMIT_CONFIG`` of the environment, else ``oncommit.toml`` here, if there is one.
        environment: Default: that of the process.
        arguments: By name of the setting.

    Raises:
        ConfigError: A setting that is unknown or cannot be, with the place where it was given.
    """
    given: dict[Place, Found] = {(name,): Found(value, f"--{name}") for name, value in arguments.items()}
    return load_all(file=file, environment=environment, given=given).settings


def load_all(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    given: Mapping[Place, Found] | None = None,
) -> Loaded:
    """The settings with their origins; ``assignments`` are of ``--set``, ``given`` is what has an option."""
    environment = os.environ if environment is None else environment
    found = from_file(file, environment)
    found |= from_environment(environment)
    for assignment in assignments:
        found |= assigned(assignment)
    for path, argument in (given or {}).items():
        find(path, "argument")
        if argument.value is not None:
            found[path] = argument
    read = {path: _read(path, *at) for path, at in found.items()}
    if (preset := read.get(("preset",))) is not None:
        below = {path: _read(path, value, f"preset {preset.value}") for path, value in PRESETS[preset.value].items()}
        read = below | read
    # What others understand too counts only where nothing of ours was said.
    if ("database",) not in read and any(environment.get(variable) for variable in _LIBPQ):
        read[("database",)] = Found(_FROM_LIBPQ, "libpq's variables")
    if (servers := environment.get(_KAFKA)) and not any(path[0] == "sinks" for path in read):
        read[MAIN_BROKER] = Found(f"kafka://{servers}", _KAFKA)
    return Loaded(_build(read), read)


def _read(path: Place, value: object, origin: str) -> Found:
    if path[0] == "sinks":
        _told(origin, check_sink, path[1])
    return Found(_told(origin, find(path, "setting").kind.read, value), origin)


def _told(origin: str, function: Callable[[Any], T], value: Any) -> T:
    try:
        return function(value)
    except ConfigError as error:
        msg = f"{origin}: {error}"
        raise ConfigError(msg) from error


def _build(read: Read) -> Settings:
    retry = _section(read, RetryPolicy(), ("retry",))
    by_type = {
        path[1]: _section(read, retry, ("retry", path[1]))
        for path in read
        if path[0] == "retry" and len(path) == _DEPTH_OF_A_TYPE
    }
    relay = _section(read, RelaySettings(retry=retry, retry_by_type=by_type), ("relay",))
    sinks = {path[1]: _sink(read, path[1]) for path in read if path[0] == "sinks"}
    return Settings(
        **{path[0]: at.value for path, at in read.items() if len(path) == 1},
        program=_section(read, RelayProgram(), ("relay",)),
        relay=relay,
        sinks=sinks,
    )


def _sink(read: Read, name: str) -> SinkSettings:
    above = ("sinks", name, "topics")
    topics = {path[-1]: at.value for path, at in read.items() if path[:-1] == above}
    return _section(read, SinkSettings(topics=topics), ("sinks", name))


def _section(read: Read, start: T, section: Place) -> T:
    """The struct with the values that were given. A clash is told with the places of those that clash."""
    inside = {path: find(path, "setting").field for path in read if path[:-1] == section}
    inside = {path: field for path, field in inside.items() if hasattr(start, field[0])}
    try:
        return _with(start, {field: read[path].value for path, field in inside.items()})
    except ConfigError as error:
        fields = error.fields if isinstance(error, Clash) else tuple(field[0] for field in inside.values())
        known = {entry.path for entry in definitions() if entry.path[:-1] == section and entry.field[0] in fields}
        involved = {path for path, field in inside.items() if field[0] in fields} | known
        places = [_origin(path, read) for path in sorted(involved)]
        msg = f"{dotted(section)}: {error} ({', '.join(places)})"
        raise ConfigError(msg) from error


def _origin(path: Place, read: Read) -> str:
    return f"{dotted(path)} is {f'from {read[path].origin}' if path in read else 'the default'}"


def _with(start: T, values: Mapping[Place, Any]) -> T:
    direct = {field[0]: value for field, value in values.items() if len(field) == 1}
    for name in {field[0] for field in values if len(field) > 1}:
        inner = {field[1:]: value for field, value in values.items() if field[0] == name}
        direct[name] = _with(getattr(start, name), inner)
    changed: T = msgspec.structs.replace(start, **direct)  # type: ignore[type-var]  # T is one of our structs
    return changed
