"""``Outbox``: the public face of writing."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from oncommit.db.calls import Work
from oncommit.db.connection import Driver, driver_for
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, DEFAULT_SINK, check_schema, check_sink
from oncommit.message import DEFAULT_MAX_PAYLOAD, Event, SupportsEvent
from oncommit.outbox import transaction, write
from oncommit.outbox.hooks import AfterCommit, check_blocking, fire, fire_blocking
from oncommit.outbox.rows import Limits, Prepared, prepare

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    import psycopg_pool
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from oncommit.db.connection import AsyncHandle, AsyncpgHandle, DjangoHandle, SyncHandle


class Outbox:
    """Writes events in the transaction of the connection or session that it is given.

    It holds no connection of its own and may be made once and shared by all threads and tasks::

        outbox = Outbox()

        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO orders …")
            await outbox.add(connection, Event("order.placed", aggregate=("order", 42), payload=order))

    Committed with the rows beside it, or not at all.
    """

    def __init__(
        self,
        *,
        schema: str = DEFAULT_SCHEMA,
        sinks: Iterable[str] = (DEFAULT_SINK,),
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        strict_order: bool = False,
        after_commit: AfterCommit | None = None,
    ) -> None:
        """Settings that all its adds share.

        ``schema``: where the tables are. ``sinks``: the brokers that events may name. ``max_payload``: in bytes, as
        sent. ``strict_order``: writers of one key wait for each other's commit. ``after_commit``: called with the
        events once their transaction has committed, where the session has such a hook (SQLAlchemy sessions, Django,
        ``outbox.transaction``); a plain function everywhere, an async one where the session is async.
        """
        self._schema = check_schema(schema)
        names = [sinks] if isinstance(sinks, str) else list(sinks)
        if not names:
            msg = "an Outbox needs at least one sink"
            raise ConfigError(msg)
        if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
            msg = f"max_payload must be a number of bytes, not {max_payload!r}"
            raise ConfigError(msg)
        if after_commit is not None and not callable(after_commit):
            msg = f"after_commit must be a function of the committed events, not a {type(after_commit).__name__}"
            raise ConfigError(msg)
        self._limits = Limits(frozenset(check_sink(name) for name in names), max_payload)
        self._strict_order = strict_order
        self._after_commit = after_commit
        self._drivers: dict[type, Driver] = {}
        self._tables_seen = False
        # Adds inside `outbox.transaction`, by the identity of the connection it handed out; an entry lives as long as
        # the block, which holds the connection, so an identity cannot be taken over meanwhile.
        self._open: dict[int, list[Event[Any]]] = {}

    @overload
    def add(
        self, connection: AsyncHandle, *events: Event[Any] | SupportsEvent, strict_order: bool | None = None
    ) -> Awaitable[tuple[UUID, ...]]: ...
    @overload
    def add(
        self, connection: SyncHandle, *events: Event[Any] | SupportsEvent, strict_order: bool | None = None
    ) -> tuple[UUID, ...]: ...
    @overload
    def add(
        self, connection: AsyncpgHandle, *events: Event[Any] | SupportsEvent, strict_order: bool | None = None
    ) -> Awaitable[tuple[UUID, ...]]: ...
    @overload
    def add(
        self, connection: DjangoHandle, *events: Event[Any] | SupportsEvent, strict_order: bool | None = None
    ) -> tuple[UUID, ...]: ...

    def add(self, connection: Any, *events: Event[Any] | SupportsEvent, strict_order: bool | None = None) -> Any:
        """Add events to the transaction that is open on this connection or session; awaited where that is async.

        Returns the ids that are new. An event whose id is there already, waiting, delivered or dead, is left out:
        adding it again changes nothing. Many events are one statement, and keep their order.

        Raises a subclass of ``InvalidEvent`` for a wrong event, of ``WriteRefused`` for a connection that cannot take
        it, of ``SchemaError`` for missing tables: all of them before anything was written, with the transaction usable.
        """
        driver = self._driver(connection)
        if self._after_commit is not None and driver.on_commit is not None and not _can_await(driver, connection):
            check_blocking(self._after_commit)
        prepared = prepare(events, self._limits)
        if driver.check is not None:
            driver.check(connection)
        strict = self._strict_order if strict_order is None else strict_order
        outcome = driver.run(connection, self._work(prepared, strict_order=strict), self._schema)
        if self._after_commit is None or not prepared.events:
            return outcome
        if driver.is_async:
            return self._noted(driver, connection, prepared, outcome)
        self._note(driver, connection, prepared.events, outcome)
        return outcome

    def check(self, *events: Event[Any] | SupportsEvent) -> None:
        """Raise what ``add`` would raise for these events, without a connection."""
        prepare(events, self._limits)

    @overload
    def transaction(self, pool: asyncpg.Pool) -> AbstractAsyncContextManager[asyncpg.pool.PoolConnectionProxy]: ...
    @overload
    def transaction(
        self, pool: psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[Any]]
    ) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]: ...
    @overload
    def transaction(self, pool: AsyncEngine) -> AbstractAsyncContextManager[AsyncConnection]: ...
    @overload
    def transaction(
        self, pool: psycopg_pool.ConnectionPool[psycopg.Connection[Any]]
    ) -> AbstractContextManager[psycopg.Connection[Any]]: ...
    @overload
    def transaction(self, pool: sqlalchemy.Engine) -> AbstractContextManager[sqlalchemy.Connection]: ...

    def transaction(self, pool: Any) -> Any:
        """A transaction on a connection of this pool or engine, with ``after_commit`` behind its commit.

        Gives the driver's own connection::

            async with outbox.transaction(pool) as tx:
                await tx.execute("INSERT INTO orders …")
                await outbox.add(tx, Event("order.placed"))

        Events whose savepoint was rolled back inside the block may still be among those that ``after_commit`` hears
        of; events of a transaction that was rolled back never are.
        """
        return transaction.begin(pool, self._open, self._after_commit)

    def _driver(self, connection: object) -> Driver:
        driver = self._drivers.get(type(connection))
        if driver is None:
            driver = self._drivers[type(connection)] = driver_for(connection)
        return driver

    def _work(self, prepared: Prepared, *, strict_order: bool) -> Work[tuple[UUID, ...]]:
        if not self._tables_seen:
            yield from write.ensure_tables(self._schema)
            self._tables_seen = True
        return (yield from write.add(prepared, self._schema, strict_order=strict_order))

    async def _noted(
        self, driver: Driver, connection: Any, prepared: Prepared, outcome: Awaitable[tuple[UUID, ...]]
    ) -> tuple[UUID, ...]:
        added = await outcome
        self._note(driver, connection, prepared.events, added)
        return added

    def _note(self, driver: Driver, connection: Any, events: tuple[Event[Any], ...], added: tuple[UUID, ...]) -> None:
        """Remember what is new for the hook behind the commit."""
        ids = set(added)
        new = tuple([event for event in events if event.id in ids])
        if not new or self._after_commit is None:
            return
        if (block := self._open.get(id(connection))) is not None:
            block.extend(new)
        elif driver.on_commit is not None:
            call = fire if _can_await(driver, connection) else fire_blocking
            driver.on_commit(connection, partial(call, self._after_commit, new))


def _can_await(driver: Driver, connection: Any) -> bool:
    """Whether what runs behind this connection's commit may be async."""
    return driver.is_async or (driver.awaits is not None and driver.awaits(connection))
