"""What there is to know about a setting, said once: beside the field of the struct that holds its value.

``Annotated[float, Setting("How long …", SECONDS)]`` makes a setting of a field; ``Annotated[Backoff, Nested(…)]`` makes
settings of the fields of another struct. Reading, checking, options and documentation follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeAlias, cast, get_type_hints

import msgspec

from oncommit.config.kinds import Kind
from oncommit.errors import ConfigError

PREFIX: Final = "ONCOMMIT_"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+|\*")
ANY: Final = "*"
"""In a path: a name that the user chooses, such as that of a sink."""


Place: TypeAlias = tuple[str, ...]
"""Where a setting stands: its section's name, and its own."""


class Setting(msgspec.Struct, frozen=True):
    """Marks a field as a setting."""

    help: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    """Further environment variables that set it."""
    secret: bool = False


class Nested(msgspec.Struct, frozen=True):
    """Marks a field whose struct knows nothing of settings; its fields appear beside the others, with a prefix."""

    marks: Mapping[str, Setting | Nested]
    prefix: str = ""


class Definition(msgspec.Struct, frozen=True):
    """One setting, with its place."""

    path: Place
    field: tuple[str, ...]
    """Where its value stands within the section's struct."""
    help: str
    kind: Kind
    default: Any
    aliases: tuple[str, ...] = ()
    secret: bool = False

    @property
    def name(self) -> str:
        """As it is written in a file."""
        return dotted(self.path)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it; the first that is set wins. None for those of named tables."""
        own = () if ANY in self.path else (PREFIX + "_".join(self.path).upper(),)
        return (*own, *self.aliases)

    @property
    def shown_default(self) -> str:
        """The default as one would write it, or nothing."""
        return "" if self.default is None else self.kind.show(self.default)


class Clash(ConfigError):
    """Settings that do not go together; ``fields`` are those of the struct that found it."""

    def __init__(self, fields: tuple[str, ...], problem: str) -> None:
        self.fields = fields
        super().__init__(problem)


def dotted(path: Place) -> str:
    """A path as TOML writes it.

    Example:
        >>> dotted(("retry", "order.*", "base"))
        'retry."order.*".base'
    """
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)


def definitions_of(struct: type[Any], path: Place = ()) -> tuple[Definition, ...]:
    """The settings of a struct, in the order of its fields."""
    hints = get_type_hints(struct, include_extras=True)
    marks = {
        entry.name: mark
        for entry in msgspec.structs.fields(struct)
        for mark in getattr(hints[entry.name], "__metadata__", ())
        if isinstance(mark, Setting | Nested)
    }
    defaults = {entry.name: entry.default for entry in msgspec.structs.fields(struct)}
    return tuple(_walk(marks, defaults, path, (), ""))


def definitions_within(mark: Nested, default: Any, path: Place) -> tuple[Definition, ...]:
    """The settings of a struct that knows nothing of them."""
    return tuple(_walk(mark.marks, {name: getattr(default, name) for name in mark.marks}, path, (), mark.prefix))


def _walk(
    marks: Mapping[str, Setting | Nested],
    defaults: Mapping[str, Any],
    path: Place,
    field: tuple[str, ...],
    prefix: str,
) -> Iterator[Definition]:
    for name, mark in marks.items():
        default = defaults[name]
        if isinstance(mark, Nested):
            inner = {entry: getattr(default, entry) for entry in mark.marks}
            yield from _walk(mark.marks, inner, path, (*field, name), prefix + mark.prefix)
            continue
        yield Definition(
            path=(*path, prefix + name),
            field=(*field, name),
            help=mark.help,
            kind=mark.kind,
            default=None if default is msgspec.NODEFAULT else default,
            aliases=mark.aliases,
            secret=mark.secret,
        )


@cache
def _all_of(struct: Hashable) -> tuple[Definition, ...]:
    return definitions_of(cast("type[Any]", struct))


def check_values(values: Any) -> None:
    """Whether every setting of this struct has a value of its kind; for those who make one by hand."""
    for entry in _all_of(cast("Hashable", type(values))):
        if len(entry.field) > 1:
            continue  # a nested struct has looked at itself
        value = getattr(values, entry.field[0])
        if value is None and entry.default is None:
            continue
        try:
            same = entry.kind.read(value) == value
        except ConfigError as error:
            raise Clash(entry.field, f"{entry.field[0]} {error}") from error
        if not same:
            raise Clash(entry.field, f"{entry.field[0]} must be a {entry.kind.name}, not {value!r:.60}")
