"""An outbox that sends behind its commits, the table it writes to, and statements with a rule taken out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from oncommit import Event, Outbox
from oncommit.db.sql import query
from oncommit.outbox.optimistic import Optimistic, Sent
from oncommit.retry import Backoff
from oncommit.testing.brokers import FailingBroker

SOON = Backoff(base=0.05, cap=0.1)


class World:
    """A database whose commits are on disk when they are told, and what happens in it."""

    def __init__(self, dsn: str, pool: asyncpg.Pool) -> None:
        self.dsn = dsn
        self.pool = pool
        self.broker = FailingBroker()
        self.done: list[Sent] = []
        self.outboxes: list[Outbox] = []

    def outbox(self, *, pool: Any = None, broker: Any = None, **settings: Any) -> Outbox:
        made = Outbox(
            after_commit=self.pool if pool is None else pool,
            broker=self.broker if broker is None else broker,
            optimistic=Optimistic(**{"limit": 5.0, "circuit": SOON, **settings}),
            on_sent=self.done.append,
        )
        self.outboxes.append(made)
        return made

    async def finished(self, count: int) -> list[Sent]:
        """Until the sender is done with so many."""
        async with asyncio.timeout(15):
            while len(self.done) < count:  # noqa: ASYNC110 - the observer may be called from another thread
                await asyncio.sleep(0.005)
        assert len(self.done) == count
        return self.done

    @property
    def reasons(self) -> list[str | None]:
        return [sent.failure for sent in self.done]

    async def rows(self, sql: str, *values: Any) -> list[Any]:
        async with self.pool.acquire() as connection:
            return [tuple(row) for row in await connection.fetch(sql, *values)]

    async def states(self, connection: Any = None) -> list[str]:
        """Of the live events, in their order."""
        sql = "SELECT state FROM oncommit.outbox ORDER BY id"
        if connection is not None:
            return [state for (state,) in await connection.fetch(sql)]
        return [state for (state,) in await self.rows(sql)]

    async def until_states(self, *wanted: str) -> None:
        """Until the live events are in these states: what is handed back is told of before it is written."""
        try:
            async with asyncio.timeout(10):
                while (found := await self.states()) != list(wanted):  # noqa: ASYNC110 - a table has no event
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"live events are {found}, not {list(wanted)}") from None

    async def may_probe(self, outbox: Outbox) -> None:
        """Until the back-off of its circuits has passed, and no probe is out."""
        sender = outbox._sender
        assert sender is not None
        async with asyncio.timeout(10):
            while any(c.wait(time.monotonic()) > 0 for c in sender._circuits.values()) or (  # noqa: ASYNC110 - a clock
                time.monotonic() < sender._probing
            ):
                await asyncio.sleep(0.005)

    async def archived(self) -> list[str]:
        return [name for (name,) in await self.rows("SELECT event_type FROM oncommit.outbox_archive ORDER BY id")]

    @property
    def arrived(self) -> list[str]:
        """Topics without their template: the types of what the broker took, in order."""
        return [message.topic.removeprefix("events.") for message in self.broker.messages]

    @asynccontextmanager
    async def transaction(self, outbox: Outbox) -> AsyncIterator[Any]:
        async with outbox.transaction(self.pool) as connection:
            yield connection

    async def add(self, outbox: Outbox, *events: Event) -> list[str]:
        """In a transaction of its own; the states of these before the commit."""
        sql = "SELECT state FROM oncommit.outbox WHERE event_id = ANY ($1) ORDER BY id"
        async with outbox.transaction(self.pool) as connection:
            await outbox.add(connection, *events)
            return [state for (state,) in await connection.fetch(sql, [event.id for event in events])]


def altered(name: str, old: str, new: str) -> Callable[..., str]:
    """``query`` with one statement changed: a rule taken out of it."""

    def altered_query(asked: str, schema: str = "oncommit") -> str:
        text = query(asked, schema)
        if asked != name:
            return text
        assert old in text
        return text.replace(old, new)

    return altered_query
