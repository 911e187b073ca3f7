"""Which settings hold, and where each comes from; of what is secret only where it points to."""

from __future__ import annotations

from typing import Any

from oncommit.cli.output import print_json, print_table
from oncommit.config import Loaded, definitions
from oncommit.config.definition import ANY, Definition, Place, dotted
from oncommit.config.lookup import find


def show_settings(loaded: Loaded, *, as_json: bool) -> None:
    """Print them all, in the order of the documentation."""
    rows = [_row(place, find(place, "setting"), loaded) for place in _places(loaded)]
    if as_json:
        print_json([{"name": name, "value": value or None, "from": origin} for name, value, origin in rows])
    else:
        print_table(["SETTING", "VALUE", "FROM"], rows)


def _places(loaded: Loaded) -> list[Place]:
    fixed = [entry.path for entry in definitions() if ANY not in entry.path]
    return fixed + sorted(place for place in loaded.found if place not in fixed)


def _row(place: Place, entry: Definition, loaded: Loaded) -> tuple[str, str, str]:
    found = loaded.found.get(place)
    if found is None:
        return dotted(place), entry.shown_default, "default" if entry.shown_default else ""
    return dotted(place), _pointer(place, found.value) if entry.secret else entry.kind.show(found.value), found.origin


def _pointer(place: Place, url: Any) -> str:
    from oncommit.brokers.registry import describe_broker
    from oncommit.db.address import describe_dsn

    return describe_broker(url) if place[-1] == "broker" else describe_dsn(url)
