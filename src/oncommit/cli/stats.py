"""``oncommit stats``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from oncommit.cli.options import json_option, settings_options
from oncommit.cli.output import print_json, print_table, visible
from oncommit.config import Settings

if TYPE_CHECKING:
    from oncommit.ops.stats import MaintenanceStats, RelayStats, SinkStats, Stats

_SINK_HEADS = [
    *("SINK", "PENDING", "OLDEST", "IN FLIGHT", "FAILED", "OPTIMISTIC"),
    *("DELAYED", "DUE", "PARKED", "DEAD", "LANES", "FREE"),
]
_RELAY_HEADS = ["RELAY", "HEARTBEAT", "LANES", "IN FLIGHT", "VERSION", "ID"]


@click.command("stats", short_help="Show what waits, who serves it, and what died.")
@settings_options
@json_option
def command(settings: Settings, *, as_json: bool) -> None:
    """Show what waits, who serves it, what is in flight, and what died.

    One row a sink, then one a relay. Reads only.
    """
    found = asyncio.run(_read(settings))
    if as_json:
        print_json(found)
        return
    if not found.sinks:
        click.echo("nothing was ever written, and no relay was here")
    else:
        print_table(_SINK_HEADS, [_sink_row(sink) for sink in found.sinks])
    _print_relays(found)
    click.echo(_maintenance_line(found.maintenance))
    for name, count in found.other_dead_letters.items():
        click.echo(f"{count} dead letters of {name}")


async def _read(settings: Settings) -> Stats:
    from oncommit.db.dsn import open_connection
    from oncommit.ops.stats import read_stats

    async with open_connection(settings.require_database(), application="oncommit stats") as connection:
        return await read_stats(connection, schema=settings.schema)


def _print_relays(found: Stats) -> None:
    click.echo()
    if found.relays:
        print_table(_RELAY_HEADS, [_relay_row(relay) for relay in found.relays])
    else:
        click.echo("no relay is running")
    if left := sum(claim.left_behind for claim in found.claims):
        click.echo(
            f"{left} events were in flight on lanes that their relay has lost; who takes the lanes tries them first"
        )


def _maintenance_line(found: MaintenanceStats) -> str:
    parts = [f"led by {visible(found.leader or str(found.leader_id))}" if found.leader_id else "led by nobody"]
    if found.next_due_seconds is not None:
        wait = found.next_due_seconds
        parts.append(
            f"next delayed event in {_seconds(wait)}" if wait >= 0 else f"delayed events late by {_seconds(-wait)}"
        )
    if found.archive_days_ahead < 0:
        parts.append("the archive has no partition for today")
    elif found.oldest_archive_day is not None:
        parts.append(f"archive from {found.oldest_archive_day} to {found.archive_days_ahead} days ahead")
    return "maintenance: " + ", ".join(parts)


def _sink_row(sink: SinkStats) -> list[str]:
    return [
        sink.sink,
        str(sink.pending),
        _seconds(sink.oldest_pending_age_seconds),
        str(sink.in_flight),
        str(sink.failed),
        str(sink.optimistic),
        str(sink.delayed),
        str(sink.delayed_due),
        str(sink.parked),
        str(sink.dead_letters),
        str(sink.lanes),
        str(sink.lanes_without_owner),
    ]


def _relay_row(relay: RelayStats) -> list[str]:
    lanes = ", ".join(f"{sink} {count}" for sink, count in sorted(relay.lanes.items()))
    heard = f"{_seconds(relay.heartbeat_age_seconds)} ago"
    return [relay.name, heard, lanes or "none", str(relay.in_flight), relay.version, str(relay.relay_id)]


def _seconds(age: float | None) -> str:
    """An age, with tenths below ten seconds.

    Example:
        >>> _seconds(2.04), _seconds(64.0)
        ('2.0s', '64s')
    """
    if age is None:
        return ""
    return f"{age:.1f}s" if age < 10 else f"{age:.0f}s"  # noqa: PLR2004 - as the docstring says
