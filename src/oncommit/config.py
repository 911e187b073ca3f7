"""Settings: one definition each, from a file, the environment or arguments, checked once and handed down as one value.

``oncommit.toml`` < environment (``ONCOMMIT_…``, also ``DATABASE_URL``) < arguments. To add a setting, add a field to
``Settings``; reading, checking, the command line's help and the documentation follow from it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema

FILE_NAME: Final = "oncommit.toml"
PREFIX: Final = "ONCOMMIT_"

_DATABASE: Final = re.compile(r"postgres(ql)?(\+[a-z0-9_]+)?://")
# Where one of these is set, libpq's own variables say which database is meant.
_LIBPQ: Final = ("PGHOST", "PGDATABASE")
_FROM_LIBPQ: Final = "postgresql://"


class Definition(msgspec.Struct, frozen=True):
    """What there is to know about one setting."""

    name: str
    help: str
    check: Callable[[str], str]
    default: str | None
    aliases: tuple[str, ...]
    secret: bool

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it; the first that is set wins."""
        return (PREFIX + self.name.upper(), *self.aliases)


def _setting(
    help: str,
    *,
    check: Callable[[str], str],
    default: str | None = None,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    about = {"help": help, "check": check, "aliases": aliases, "secret": secret}
    return field(default=default, repr=not secret, metadata=about)


def check_database(url: str) -> str:
    """A URL of a PostgreSQL database, as far as one can see without asking it. The error does not repeat it."""
    if not _DATABASE.match(url):
        msg = "must be a URL such as postgresql://user:password@host:5432/database"
        raise ConfigError(msg)
    return url


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a program. Make it with ``load``."""

    database: str | None = _setting(
        "URL of the PostgreSQL database: postgresql://user:password@host:5432/database. "
        "Without it, libpq's PGHOST, PGDATABASE and so on count where they are set.",
        check=check_database,
        aliases=("DATABASE_URL",),
        secret=True,
    )
    schema: str = _setting("Schema of the tables.", check=check_schema, default=DEFAULT_SCHEMA)

    def require_database(self) -> str:
        """The database's URL. Raises ``ConfigError`` that names the ways to give one."""
        if self.database is None:
            msg = (
                "no database is given: say --database URL, set ONCOMMIT_DATABASE (or DATABASE_URL) in the environment, "
                f'or write database = "URL" into {FILE_NAME}'
            )
            raise ConfigError(msg)
        return self.database


def definitions() -> tuple[Definition, ...]:
    """Every setting there is.

    Example:
        >>> [setting.name for setting in definitions()]
        ['database', 'schema']
    """
    return tuple(
        Definition(name=entry.name, default=str(entry.default) if entry.default else None, **entry.metadata)
        for entry in fields(Settings)
    )


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **arguments: str | None,
) -> Settings:
    """The settings from all three places. Arguments that are None were not given.

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
    environment = os.environ if environment is None else environment
    found = _from_file(file, environment)
    found |= _from_environment(environment)
    for name, value in arguments.items():
        _known(name, "argument")
        if value is not None:
            found[name] = (value, f"--{name}")
    values = {entry.name: _checked(entry, *found[entry.name]) for entry in definitions() if entry.name in found}
    if "database" not in values and any(environment.get(variable) for variable in _LIBPQ):
        values["database"] = _FROM_LIBPQ
    return Settings(**values)


def _from_file(file: Path | None, environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    named = environment.get(PREFIX + "CONFIG")
    wanted = file or (Path(named) if named else None)
    path = wanted or Path(FILE_NAME)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if wanted is None:
            return {}
        msg = f"settings file {path} is not there"
        raise ConfigError(msg) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"settings file {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    for name in table:
        _known(name, f"setting in {path}")
    return {name: (value, f"{name} in {path}") for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    for entry in definitions():
        for variable in reversed(entry.variables):
            if environment.get(variable):
                found[entry.name] = (environment[variable], variable)
    variables = [variable for entry in definitions() for variable in entry.variables] + [PREFIX + "CONFIG"]
    for variable in environment:
        # Only what looks like a slip: others own ONCOMMIT_ variables too, such as Kubernetes, which gives every pod
        # ONCOMMIT_SERVICE_HOST as soon as a Service has our name.
        if variable.startswith(PREFIX) and variable not in variables and (near := _nearest(variable, variables, 0.85)):
            msg = f"the environment has {variable}, which is no setting; did you mean {near}?"
            raise ConfigError(msg)
    return found


def _known(name: str, what: str) -> None:
    names = [entry.name for entry in definitions()]
    if name not in names:
        near = _nearest(name, names, 0.5)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
        msg = f"unknown {what}: {name!r}; {hint}"
        raise ConfigError(msg)


def _nearest(word: str, words: Iterable[str], cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), None)


def _checked(entry: Definition, value: object, origin: str) -> str:
    if not isinstance(value, str):
        msg = f"{origin} must be text, not {type(value).__name__}"
        raise ConfigError(msg)
    try:
        return entry.check(value)
    except ConfigError as error:
        msg = f"{origin}: {error}"
        raise ConfigError(msg) from error
