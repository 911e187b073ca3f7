"""A relay whose handlers write into the same database, killed at the step that its arguments name.

``python local_program.py DSN STEP COUNT SIGNAL``: at the COUNT-th time that it reaches STEP it kills, or stops, itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from oncommit import Event, Outbox
from oncommit.relay import handling
from oncommit.relay.handling import LocalDispatcher
from oncommit.relay.local import LocalBroker
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.relay.store import Store

OUTBOX = Outbox()
SETTINGS = RelaySettings(lease=2.0, statement_timeout=1.5, poll_busy=0.01, batch_rows=50, publish_timeout=3.0)


class Killer:
    """Counts how often a step is reached."""

    def __init__(self, step: str, count: int, number: int) -> None:
        self.step = step
        self.number = number
        self.left = count

    def at(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)


async def handle(event: Event[Any], connection: Any, killer: Killer | None = None) -> None:
    """An effect, and a further event."""
    if killer:
        killer.at("begun")
    await connection.execute(
        "INSERT INTO effects (event_id, key, n) VALUES ($1, $2, $3)", event.id, event.key, event.payload["n"]
    )
    await OUTBOX.add(connection, Event("noted", key=event.key, payload=event.payload))
    if killer:
        killer.at("handled")


async def note(event: Event[Any], connection: Any) -> None:
    await connection.execute(
        "INSERT INTO notes (cause, key, n) VALUES ($1, $2, $3)", event.causation_id, event.key, event.payload["n"]
    )


def instrument(killer: Killer) -> None:
    """Places of death around the settle and the commit."""
    settle, once = Store.settle, LocalDispatcher._once

    async def settling(self: Store, *args: Any, batch: int, **kwargs: Any) -> Any:
        if batch != handling.NO_BATCH:
            killer.at("batch before settle")
            outcome = await settle(self, *args, batch=batch, **kwargs)
            killer.at("batch settled")
            return outcome
        outcome = await settle(self, *args, batch=batch, **kwargs)
        killer.at("settled")
        return outcome

    async def committing(self: LocalDispatcher, *args: Any, **kwargs: Any) -> Any:
        outcome = await once(self, *args, **kwargs)
        killer.at("committed")
        return outcome

    Store.settle = settling  # type: ignore[method-assign]
    LocalDispatcher._once = committing  # type: ignore[method-assign]


async def main(dsn: str, step: str, count: int, number: int) -> None:
    killer = Killer(step, count, number)
    instrument(killer)
    handlers = {"placed": lambda event, connection: handle(event, connection, killer), "noted": note}
    await Relay(dsn, {"main": LocalBroker(handlers)}, settings=SETTINGS).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
