"""``oncommit bench``: measure it here, with the hardware and the versions that you have. One file a measurement."""

from __future__ import annotations

import click

from oncommit.cli.bench.latency import latency
from oncommit.cli.bench.relay import relay
from oncommit.cli.bench.write import write


@click.group("bench", short_help="Measure what it costs, on this machine.")
def command() -> None:
    """Measure what it costs, on this machine. The workload is fixed: see the documentation, under "Benchmarks"."""


command.add_command(write)
command.add_command(relay)
command.add_command(latency)
