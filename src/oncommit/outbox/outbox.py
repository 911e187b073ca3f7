"""``Outbox``: the public face of writing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload
from uuid import UUID

from oncommit.brokers.base import Broker
from oncommit.db.calls import Work
from oncommit.db.connection import Driver, driver_for
from oncommit.db.pools import is_pool
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, DEFAULT_SINK, check_schema, check_sink
from oncommit.message import DEFAULT_MAX_PAYLOAD, Event, SupportsEvent
from oncommit.outbox import transaction, write
from oncommit.outbox.hooks import Added, AfterCommit, Behind
from oncommit.outbox.optimistic import Observer, Optimistic, OptimisticStats, Sent
from oncommit.outbox.rows import Limits, Prepared, prepare
from oncommit.outbox.sender import sender_for
from oncommit.outbox.wake import Wake, in_transaction, waker_for

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    import psycopg_pool
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from oncommit.db.connection import AsyncHandle, AsyncpgHandle, DjangoHandle, SyncHandle

    AnyPool: TypeAlias = (
        asyncpg.Pool[Any]
        | psycopg_pool.AsyncConnectionPool[Any]
        | psycopg_pool.ConnectionPool[Any]
        | AsyncEngine
        | sqlalchemy.Engine
    )

log: Final = logging.getLogger("oncommit.outbox")


class Outbox:
    """Writes events in the transaction of the connection or session that it is given.

    It holds no connection of its own and may be made once and shared by all threads and tasks::

        outbox = Outbox()

        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO orders …")
            await outbox.add(connection, Event("order.placed", aggregate=("order", 42), payload=order))

    Committed with the rows beside it, or not at all.
    """

    def __init__(  # noqa: PLR0913 - an application's settings, each by its name
        self,
        *,
        schema: str = DEFAULT_SCHEMA,
        sinks: Iterable[str] = (DEFAULT_SINK,),
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        strict_order: bool = False,
        after_commit: AfterCommit | AnyPool | str | None = None,
        broker: Broker | str | Mapping[str, Broker | str] | None = None,
        optimistic: Optimistic | bool = True,
        on_sent: Observer | None = None,
        wake: Wake | bool = True,
    ) -> None:
        """Settings that all its adds share.

        ``schema``: where the tables are. ``sinks``: the brokers that events may name. ``max_payload``: in bytes, as
        sent. ``strict_order``: writers of one key wait for each other's commit. ``after_commit``: called with the
        events once their transaction has committed, where the session has such a hook (SQLAlchemy sessions, Django,
        ``outbox.transaction``); a plain function everywhere, an async one where the session is async.

        With a pool, an engine or a DSN as ``after_commit``, and a ``broker`` (a URL or an adapter, or one for each
        sink), events are sent right after their commit, in the background; ``optimistic=False`` leaves all to the
        relay. ``on_sent`` is told of each. Then ``close`` the outbox before its pool.

        Events that are not sent this way wake the relays: by a notification through ``after_commit``, where that is a
        pool, an engine or a DSN, or as ``wake`` says; ``wake=False`` leaves the relays to look by themselves.
        """
        self._schema = check_schema(schema)
        names = [sinks] if isinstance(sinks, str) else list(sinks)
        if not names:
            msg = "an Outbox needs at least one sink"
            raise ConfigError(msg)
        if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
            msg = f"max_payload must be a number of bytes, not {max_payload!r}"
            raise ConfigError(msg)
        self._limits = Limits(frozenset(check_sink(name) for name in names), max_payload)
        self._strict_order = strict_order
        self._waker = waker_for(wake, after_commit, self._schema)
        self._notifies = isinstance(wake, Wake) and wake.in_transaction
        self._on_sent = on_sent
        self._sender = sender_for(
            after_commit, broker, self._schema, self._limits.sinks, optimistic=optimistic, on_sent=self._sent
        )
        hook = None if after_commit is None or is_pool(after_commit) else _checked(after_commit)
        self._behind = Behind(
            hook, self._sender.offer if self._sender else None, self._waker.tell if self._waker else None
        )
        self._may_reserve = True
        self._warned = False
        self._drivers: dict[type, Driver] = {}
        self._tables_seen = False
        # Adds inside `outbox.transaction`, by the identity of the connection it handed out; an entry lives as long as
        # the block, which holds the connection, so an identity cannot be taken over meanwhile.
        self._open: transaction.Open = {}

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
        if driver.on_commit is not None and not _can_await(driver, connection):
            self._behind.check_blocking()
        prepared = prepare(events, self._limits)
        if driver.check is not None:
            driver.check(connection)
        strict = self._strict_order if strict_order is None else strict_order
        reserving = self._wish(driver, connection, prepared) if self._sender is not None else None
        outcome = driver.run(connection, self._work(prepared, reserving, strict_order=strict), self._schema)
        if not self._behind.is_wanted or not prepared.events:
            return outcome
        if driver.is_async:
            return self._noted(driver, connection, prepared, outcome, reserving)
        self._note(driver, connection, prepared.events, outcome, reserving)
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
        return transaction.begin(pool, self._open, self._behind)

    @property
    def optimistic(self) -> OptimisticStats | None:
        """What became of the events that were sent behind their commit; nothing where none are."""
        return self._sender.stats if self._sender is not None else None

    async def close(self) -> None:
        """Let sends that are under way end, within their limit, and let go of broker and connections.

        Call it before the pool is closed, or the process ends. What was not sent by then, the relay sends. The outbox
        can go on writing.
        """
        if self._sender is not None:
            await self._sender.close()
        if self._waker is not None:
            await self._waker.close()

    def close_blocking(self) -> None:
        """As ``close``, for applications without an event loop."""
        if self._sender is not None:
            self._sender.close_blocking()
        if self._waker is not None:
            self._waker.close_blocking()

    def _driver(self, connection: object) -> Driver:
        driver = self._drivers.get(type(connection))
        if driver is None:
            driver = self._drivers[type(connection)] = driver_for(connection)
        return driver

    def _work(
        self, prepared: Prepared, reserving: write.Reserving | None, *, strict_order: bool
    ) -> Work[tuple[UUID, ...]]:
        if not self._tables_seen:
            yield from write.ensure_tables(self._schema)
            if self._sender is not None:
                self._may_reserve = yield from write.may_reserve(self._schema)
                if not self._may_reserve:
                    log.warning(
                        "nothing is sent right after its commit: this role may not SELECT from outbox, outbox_lane and "
                        "the sequence outbox_id_seq in schema %s; grant it, or say Outbox(optimistic=False)",
                        self._schema,
                    )
            self._tables_seen = True
        if not self._may_reserve:
            reserving = None
        added = yield from write.add(prepared, self._schema, strict_order=strict_order, reserving=reserving)
        if self._notifies and added:
            new = set(added)
            yield in_transaction({event.sink for event in prepared.events if event.id in new}, self._schema)
        return added

    def _sent(self, sent: Sent) -> None:
        """The sender is done with an event; one that it could not send is a relay's, which has to hear of it."""
        if sent.failure is not None and self._waker is not None:
            self._waker.tell([sent.sink] if sent.sink is not None else self._limits.sinks)
        if self._on_sent is not None:
            self._on_sent(sent)

    def _wish(self, driver: Driver, connection: Any, prepared: Prepared) -> write.Reserving | None:
        """The wish to have these reserved, where somebody will surely hear of the commit and can send."""
        sender = self._sender
        if sender is None or not prepared.events:
            return None
        in_block = id(connection) in self._open
        told = in_block or (driver.on_commit is not None and (driver.tells is None or driver.tells(connection)))
        if told and sender.needs_loop and not _can_await(driver, connection):
            told = False
            if not self._warned:
                self._warned = True
                log.warning(
                    "events of blocking sessions are left to the relay, since after_commit is a pool of asyncio: "
                    "give a blocking pool, an engine or a DSN"
                )
        if not told or len(prepared.events) > sender.settings.most:
            return None
        size = write.size(prepared)
        if sender.is_ready({event.sink for event in prepared.events}, len(prepared.events), size):
            return write.Reserving(sender.settings.limit, size)
        return None

    async def _noted(
        self,
        driver: Driver,
        connection: Any,
        prepared: Prepared,
        outcome: Awaitable[tuple[UUID, ...]],
        reserving: write.Reserving | None,
    ) -> tuple[UUID, ...]:
        added = await outcome
        self._note(driver, connection, prepared.events, added, reserving)
        return added

    def _note(
        self,
        driver: Driver,
        connection: Any,
        events: tuple[Event[Any], ...],
        ids: tuple[UUID, ...],
        reserving: write.Reserving | None,
    ) -> None:
        """Remember what is new for what happens behind the commit."""
        new = set(ids)
        added = Added([event for event in events if event.id in new])
        if self._sender is not None and reserving is not None:
            if reserving.ids:
                added.reserved, added.size = reserving.ids, reserving.size
            else:
                self._sender.unused()
        if self._sender is not None:
            self._sender.stats.skip(len(added.events) - len(added.reserved))
        if not added.events or not self._behind.is_wanted:
            return
        if (block := self._open.get(id(connection))) is not None:
            block.extend(added)
        elif driver.on_commit is not None and (self._behind.hears or added.reserved):
            call = self._behind.committed if _can_await(driver, connection) else self._behind.committed_blocking
            driver.on_commit(connection, partial(call, added))


def _checked(hook: Any) -> AfterCommit:
    if not callable(hook):
        msg = (
            "after_commit must be a function of the committed events, or a pool, an engine or a DSN to send with, "
            f"not a {type(hook).__name__}"
        )
        raise ConfigError(msg)
    function: AfterCommit = hook
    return function


def _can_await(driver: Driver, connection: Any) -> bool:
    """Whether what runs behind this connection's commit may be async."""
    return driver.is_async or (driver.awaits is not None and driver.awaits(connection))
