"""Tables for people, JSON for programs.

What comes from the database is text of others: in tables, control characters are shown and never sent to the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def print_json(value: Any) -> None:
    """As UTF-8, whatever the terminal's encoding, since that is what JSON is."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """With a ruled head on a terminal, plain everywhere else; one line a row, nothing cut off.

    On a terminal, columns without content are left out, and the ``spare`` ones if it is too narrow.
    """
    clean = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(heads, clean, spare)
    else:
        _print_plain(heads, clean)


def visible(text: str) -> str:
    """The text with its control characters written out."""
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "replace").decode()


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or how soon: ``3m``, ``in 2h``.

    Example:
        >>> age(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 3, tzinfo=UTC))
        '3m'
    """
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment) // timedelta(seconds=1)
    if seconds < 0:
        return f"in {_span(-seconds)}"
    return _span(seconds)


def _span(seconds: int) -> str:
    size, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [column for column in range(len(heads)) if any(row[column] not in ("", "0") for row in rows)]
    width = sum(max(len(row[column]) for row in [heads, *rows]) + 3 for column in shown)
    console = Console()
    if width > console.width:
        shown = [column for column in shown if heads[column] not in spare]
        # The terminal may wrap what is still too long; an id that was cut off could not be copied.
        console.width = max(width, console.width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        table.add_column(heads[column], no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[column]) for column in shown))  # as Text: data is no markup
    console.print(table)


def _print_plain(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
