"""The tables of the page on settings, made from the definitions. See ``__main__``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from oncommit.config.definition import ANY, Definition, dotted
from oncommit.config.presets import PRESETS
from oncommit.config.program import definitions

BEGIN: Final = "<!-- settings: begin -->\n"
END: Final = "<!-- settings: end -->\n"
_NAMES: Final[Mapping[str, str]] = MappingProxyType({"sinks": "NAME", "retry": '"TYPE"', "topics": '"TYPE"'})


def page_part() -> str:
    """What stands between the markers of the page."""
    rows = ["| setting | what it is | default | kind | environment |", "| --- | --- | --- | --- | --- |"]
    rows += [_row(entry) for entry in definitions()]
    names = list(PRESETS)
    places = list(dict.fromkeys(place for values in PRESETS.values() for place in values))
    defaults = {entry.path: entry.shown_default for entry in definitions()}
    presets = [f"| setting | default | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for place in places:
        values = [str(PRESETS[name].get(place, "")) for name in names]
        presets.append(f"| `{dotted(place)}` | {defaults[place]} | {' | '.join(values)} |")
    return "\n" + "\n".join(rows) + "\n\n### Presets\n\n" + "\n".join(presets) + "\n\n"


def refresh(page: str) -> str:
    """The page with what stands between its markers made new."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks its markers: {BEGIN.strip()} … {END.strip()}")
    return f"{head}{begin}{page_part()}{end}{tail}"


def _row(entry: Definition) -> str:
    default = f"`{entry.shown_default}`" if entry.shown_default else ""
    variables = ", ".join(f"`{variable}`" for variable in entry.variables)
    return f"| `{_name(entry)}` | {entry.help} | {default} | {entry.kind.name} | {variables} |"


def _name(entry: Definition) -> str:
    parts = [_NAMES[entry.path[index - 1]] if part == ANY else part for index, part in enumerate(entry.path)]
    return ".".join(parts)
