"""Where a measurement is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress(command: str = "bench") -> Iterator[Callable[[str], None]]:
    """Where it is, on stderr: one line that changes on a terminal, a line for each new thing elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield status.update
        return
    last = ""

    def say(text: str) -> None:
        nonlocal last
        subject = text.partition(":")[0]
        if subject != last:
            click.echo(f"oncommit {command}: {text}", err=True)
        last = subject

    yield say
