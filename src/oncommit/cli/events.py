"""``oncommit events``: list, show, by-aggregate, replay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncommit.cli.events_replay import replay_command
from oncommit.cli.moments import MOMENT
from oncommit.cli.options import json_option, settings_options
from oncommit.config import Settings
from oncommit.ops.event_filter import DEFAULT_LIMIT, MAX_LIMIT, Cursor, EventFilter
from oncommit.states import State

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

T = TypeVar("T")

limit_option = click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True, help="Length of the page."
)
after_option = click.option("--after", metavar="CURSOR", help="The page after this event; its cursor, as printed.")
payload_option = click.option("--payload", "with_payload", is_flag=True, help="With --json: payload and headers too.")


@click.group("events", short_help="Look at events; publish archived ones again.")
def command() -> None:
    """Look at events: live, archived and dead; publish archived ones again."""


command.add_command(replay_command)


@command.command("list", epilog="Example: oncommit events list --state failed --type order.placed --since 1h")
@click.option("--state", "states", multiple=True, type=click.Choice(list(map(str, State))), help="Any of these.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Any of these event types.")
@click.option("--aggregate", metavar="TYPE[/ID]", help="Of these things, or of this one.")
@click.option("--key", help="With this ordering key; the default key of an aggregate is TYPE:ID.")
@click.option("--topic", help="With this topic set; one that the relay resolves is not on record.")
@click.option("--sink", help="For this broker.")
@click.option("--correlation", "correlation_id", metavar="ID", help="Of this conversation.")
@click.option("--since", type=MOMENT, help="Created then or later: 15m, 2h, 7d ago, or 2026-01-31T08:00Z.")
@click.option("--until", type=MOMENT, help="Created before; the same forms.")
@click.option("--newest/--oldest", "newest_first", default=True, help="Which end first. Default: newest.")
@limit_option
@after_option
@payload_option
@settings_options
@json_option
def list_command(settings: Settings, aggregate: str | None, after: str | None, *, as_json: bool, **wanted: Any) -> None:
    """List events, a page at a time."""
    from oncommit.cli.event_output import print_events
    from oncommit.ops.events import list_events

    aggregate_type, _, aggregate_id = (aggregate or "").partition("/")
    event_filter = EventFilter(
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id or None,
        after=Cursor.parse(after) if after else None,
        **wanted,
    )
    records = _run(settings, lambda connection: list_events(connection, event_filter, schema=settings.schema))
    print_events(records, limit=event_filter.limit, with_payload=event_filter.with_payload, as_json=as_json)


@command.command("by-aggregate", epilog="Example: oncommit events by-aggregate order/42")
@click.argument("aggregate", metavar="TYPE/ID")
@limit_option
@after_option
@payload_option
@settings_options
@json_option
def by_aggregate_command(
    settings: Settings, aggregate: str, after: str | None, limit: int, *, with_payload: bool, as_json: bool
) -> None:
    """What happened to one thing, in the order in which it was written."""
    from oncommit.cli.event_output import print_events
    from oncommit.ops.events import events_by_aggregate

    aggregate_type, _, aggregate_id = aggregate.partition("/")
    if not aggregate_type or not aggregate_id:
        raise click.UsageError("give type and id of the aggregate, such as order/42")
    place = Cursor.parse(after) if after else None
    records = _run(
        settings,
        lambda connection: events_by_aggregate(
            connection,
            aggregate_type,
            aggregate_id,
            after=place,
            limit=limit,
            with_payload=with_payload,
            schema=settings.schema,
        ),
    )
    print_events(records, limit=limit, with_payload=with_payload, as_json=as_json)


@command.command("show")
@click.argument("event_id", metavar="ID", type=click.UUID)
@settings_options
@json_option
def show_command(settings: Settings, event_id: Any, *, as_json: bool) -> None:
    """One event, with payload, headers and last error."""
    from oncommit.cli.event_output import print_event
    from oncommit.ops.events import show_event

    record = _run(settings, lambda connection: show_event(connection, event_id, schema=settings.schema))
    print_event(record, as_json=as_json)


def _run(settings: Settings, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Do the work over a connection of its own."""
    from oncommit.db.dsn import open_connection

    async def connected() -> T:
        async with open_connection(settings.require_database(), application="oncommit events") as connection:
            return await work(connection)

    return asyncio.run(connected())
