"""No broker: handlers in the same database, each event settled in its handler's transaction, and so exactly once.

Failure story. One transaction holds what the handler writes, the event's leave from the outbox, and its copy in the
archive. Killed anywhere in it, nothing has happened, and a successor hands the event to its handler again; killed after
its commit, the event is gone, and nobody does. The settle comes last, fenced like any other (Z-fence): who has lost the
lane meanwhile finds his epoch gone, and what his handler wrote is rolled back. So lane rows are locked only for the
moment of the commit, however long the handler takes, and two relays that handle one event at once (one of them asleep
in the middle of it) cannot both commit: the second finds no row to settle.

A handler that fails, or takes longer than its limit, is rolled back and counts as an attempt. A deadlock or a
serialization failure is the moment's fault, and is tried again at once. A process that sleeps in the middle of a
handler holds what the handler has locked until the server ends its session, which is told to (H-guard).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.brokers.watch import Watch
from oncommit.cloudevents import NATS
from oncommit.errors import BrokerUnavailable, ConfigError
from oncommit.message import Event
from oncommit.relay.handling import LOST, LocalDispatcher, MakeStore

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

Handler: TypeAlias = "Callable[[Event[Any], Connection], Awaitable[None]]"
Connect: TypeAlias = "Callable[[], AbstractAsyncContextManager[Connection]]"


class LocalBroker:
    """Hands the events of a sink to functions, each in a transaction on the database that the events come from.

    A handler is an async function of the event and the connection, and writes through that connection alone::

        async def bill(event: Event, connection: asyncpg.Connection) -> None:
            await connection.execute("INSERT INTO invoice …")

        Relay("postgresql://…", {"main": LocalBroker({"order.placed": bill})})

    It has a few connections of its own, and runs as many handlers at once; events of one key go one after the other.
    Whatever a handler raises is a failure of the event; ``PublishRejected`` makes it a dead letter at once.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, connections: int = 4) -> None:
        for kind, handler in handlers.items():
            if not callable(handler):
                raise ConfigError(f"the handler of {kind!r} is no function: {handler!r:.60}")
        if connections < 1:
            raise ConfigError(f"connections must be above zero, not {connections!r}")
        self.handlers = dict(handlers)
        self.capabilities = Capabilities(
            name="local",
            binding=NATS,
            acknowledged_means="committed, together with what the handler wrote",
            ordered_pipelining=False,
            deduplicates=True,
            transactional_batch=False,
        )
        self._connections = connections
        self._connect: Connect | None = None
        self._store: MakeStore | None = None
        self._free: asyncio.Queue[_Slot] = asyncio.Queue()
        self._slots: list[_Slot] = []

    @property
    def size(self) -> int:
        """How many handlers can run at once."""
        return self._connections

    def use(self, connect: Connect, store: MakeStore) -> None:
        """Where its connections come from, and how to settle on one. The relay says it."""
        self._connect = connect
        self._store = store

    def publisher(self, *, archive: bool, watch: Watch) -> LocalDispatcher:
        """What takes the rows of its sink, for a relay."""
        if self._store is None:
            raise ConfigError("handlers in the database are served by a Relay; see use()")
        return LocalDispatcher(self, store=self._store, archive=archive, watch=watch)

    async def open(self) -> None:
        """Whether the database is there. Raises ``BrokerUnavailable``."""
        await self.ping()

    async def ping(self) -> None:
        """Ask the database. Raises ``BrokerUnavailable``."""
        try:
            async with self.connection() as connection:
                await connection.execute("SELECT 1")
        except (*LOST, TimeoutError) as error:
            raise BrokerUnavailable(f"the database does not answer: {error}") from error

    async def close(self) -> None:
        """Disconnect."""
        slots, self._slots, self._free = self._slots, [], asyncio.Queue()
        for slot in slots:
            await slot.drop()

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:  # noqa: ARG002
        """Not a place that messages can be sent to: a relay hands it rows."""
        return [BrokerUnavailable("handlers in the database are served by a relay alone")] * len(batch)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One of its connections, when one is free; thrown away where something was left open on it."""
        if self._connect is None:
            raise BrokerUnavailable("handlers in the database are served by a relay alone")
        if not self._slots:
            self._slots = [_Slot(self._connect) for _ in range(self._connections)]
            for slot in self._slots:
                self._free.put_nowait(slot)
        free = self._free
        slot = await free.get()
        try:
            yield await slot.get()
        except BaseException as error:
            if not isinstance(error, Exception) or not slot.is_clean:
                await slot.drop()
            raise
        finally:
            free.put_nowait(slot)


class _Slot:
    """A place for one connection, made when it is needed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._stack: AsyncExitStack | None = None
        self._connection: Connection | None = None

    async def get(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            await self.drop()
            self._stack = AsyncExitStack()
            self._connection = await self._stack.enter_async_context(self._connect())
        return self._connection

    @property
    def is_clean(self) -> bool:
        """Whether the next can have it: connected, and in no transaction."""
        connection = self._connection
        return connection is not None and not connection.is_closed() and not connection.is_in_transaction()

    async def drop(self) -> None:
        stack, connection, clean = self._stack, self._connection, self.is_clean
        self._stack = self._connection = None
        if connection is not None and not clean:
            connection.terminate()  # whatever transaction is open ends with it
        if stack is not None:
            await stack.aclose()
