"""``oncommit retention``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from oncommit.cli.options import json_option, settings_options
from oncommit.cli.output import print_json, print_table
from oncommit.config import Settings

if TYPE_CHECKING:
    from oncommit.retention import Retention

_TOLD = {
    "archive_days": "sent events, whole days of UTC",
    "dead_letter_days": "dead letters, from the time they died",
    "inbox_days": "ids that consumers have handled",
}


@click.command("retention", short_help="Show, or change, for how many days things are kept.")
@click.option("--archive-days", type=int, metavar="DAYS", help="Keep sent events for so many days.")
@click.option("--dead-letter-days", type=int, metavar="DAYS", help="Keep dead letters for so many days.")
@click.option("--inbox-days", type=int, metavar="DAYS", help="Keep ids in the inbox for so many days.")
@click.option("--yes", is_flag=True, help="Also where something is kept for fewer days than before.")
@settings_options
@json_option
def command(settings: Settings, *, yes: bool, as_json: bool, **days: int | None) -> None:
    """Show for how many days things are kept on this database, or change it for all programs at once.

    Nobody has to be restarted: the relay that leads the maintenance looks every ten minutes.
    """
    given = {name: count for name, count in days.items() if count is not None}
    found = asyncio.run(_run(settings, given, shorten=yes))
    if as_json:
        print_json(found)
        return
    rows = [[name.removesuffix("_days"), str(getattr(found, name)), told] for name, told in _TOLD.items()]
    print_table(["WHAT", "DAYS", ""], rows)


async def _run(settings: Settings, days: dict[str, int], *, shorten: bool) -> Retention:
    from oncommit.db.dsn import open_connection
    from oncommit.ops.retention import change_retention, read_retention

    async with open_connection(settings.require_database(), application="oncommit retention") as connection:
        if not days:
            return await read_retention(connection, schema=settings.schema)
        _, now = await change_retention(connection, schema=settings.schema, shorten=shorten, **days)
        return now
