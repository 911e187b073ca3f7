"""A relay: connections, lease, and a loop for each sink.

Failure story. Every sink has two connections of its own and shares nothing with the others but the lease, so that one
that hangs holds nobody up. A third kind, the keeper's, renews the lease and does nothing else, and the maintenance has
its own (relay/maintenance). Any of them can break: the keeper connects anew and renews, or learns that its row is gone
and registers under a new id; a sink or the maintenance starts over.
Ended by its stop, a relay finishes what is in flight within a limit and hands its lanes back; ended otherwise, others
take its lanes when the lease has run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID, uuid4

import asyncpg

from oncommit._version import __version__
from oncommit.brokers.base import Broker
from oncommit.brokers.watch import Watch
from oncommit.db.address import CONNECT_TIMEOUT, normalise_dsn
from oncommit.db.dsn import open_connection
from oncommit.db.migrate import check
from oncommit.db.sql import query
from oncommit.errors import ConfigError, DatabaseUnreachable
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema, check_sink
from oncommit.metrics import Metrics
from oncommit.relay.lease import RENEW_EVERY, Lease
from oncommit.relay.local import LocalBroker
from oncommit.relay.maintenance.loop import Maintenance
from oncommit.relay.settings import RelaySettings
from oncommit.relay.sink import LeaseLost, SinkRelay
from oncommit.relay.store import Store
from oncommit.relay.wake_ups import Sources, WakeUps
from oncommit.topics import TopicRules, default_rules

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.relay")
_BROKEN: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement between the server's farewell and the end of the connection
    OSError,
    TimeoutError,
    DatabaseUnreachable,
)
_RECONNECT: Final = 0.5
_LOOK_FOR_LEASE: Final = 0.05


class Relay:
    """Relays sinks of one database to their brokers, until it is stopped.

    As a context manager it runs in the background of an application::

        async with Relay("postgresql://…", {"main": NatsBroker("nats://…")}):
            ...
    """

    def __init__(
        self,
        database: str,
        brokers: Mapping[str, Broker],
        *,
        schema: str = DEFAULT_SCHEMA,
        settings: RelaySettings | None = None,
        topics: Mapping[str, TopicRules] | None = None,
        name: str | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self.relay_id: UUID = uuid4()
        self._database = database
        self._schema = check_schema(schema)
        self._settings = settings or RelaySettings()
        self.metrics = Metrics()
        self._lease = Lease(self._settings.lease)
        self._changed = asyncio.Event()
        self._brokers = {check_sink(sink): broker for sink, broker in brokers.items()}
        for sink, broker in self._brokers.items():
            if isinstance(broker, LocalBroker):
                broker.use(partial(self._connected, f"{sink} handlers"), partial(self._store, sink=sink))
        self.sinks = {
            sink: SinkRelay(
                sink,
                broker,
                self._lease,
                self._settings,
                rules=(topics or {}).get(sink) or default_rules(broker.capabilities.name),
                changed=self._changed,
                watch=Watch(self.metrics, sink, broker.capabilities.name),
            )
            for sink, broker in self._brokers.items()
        }
        self._stopping = asyncio.Event()
        self._kept = asyncio.Event()
        self._wakes = {sink: asyncio.Event() for sink in self._brokers}
        self._sources = Sources(self.wake)
        heard = wake_ups or WakeUps()
        if self._settings.listen:
            if heard.listen_database:
                normalise_dsn(heard.listen_database)  # what is wrong with it is said at once
            self._sources.add_listener(heard.listen_database or database, self._schema, self._connected)
        if heard.redis:
            self._sources.add_list(heard.redis, heard.service, self._others)
        for loop in self.sinks.values():
            loop.is_listening = lambda: self._sources.work
        self._maintenance = Maintenance(
            self._connected,
            schema=self._schema,
            owner=lambda: self.relay_id,
            settings=self._settings,
            wake=self.wake,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="oncommit relay")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    async def check(self) -> None:
        """Whether the database has the tables that this code needs.

        Raises:
            DatabaseUnreachable: No answer, or the login was refused.
            SchemaError: The tables are missing or older than this code: ``oncommit migrate``.
        """
        await check(self._database, self._schema)

    def stop(self) -> None:
        """Finish what is in flight, hand the lanes back, end."""
        self._stopping.set()
        self.wake()

    def wake(self, sink: str | None = None) -> None:
        """There is something to send."""
        for name, event in self._wakes.items():
            if sink in (None, name):
                event.set()

    async def run(self) -> None:
        """Until ``stop``."""
        keeper = asyncio.create_task(self._keep(), name="oncommit keeper")
        sinks = [asyncio.create_task(self._serve(sink), name=f"oncommit sink {sink}") for sink in self.sinks]
        beside = []
        sources = self._sources.start()
        if self._settings.maintenance:
            beside.append(asyncio.create_task(self._maintenance.run(self._stopping), name="oncommit maintenance"))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            # The keeper ends only by what no waiting can heal, such as a URL that is none; the error is the caller's.
            await asyncio.wait({keeper, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if keeper.done():
                keeper.result()
            _, late = await asyncio.wait([*sinks, *beside], timeout=self._settings.stop_timeout)
            for task in late:
                log.warning("%s did not end within %s s and is cut off", task.get_name(), self._settings.stop_timeout)
        finally:
            stopping.cancel()
            for task in [*sinks, keeper, *beside, *sources]:
                task.cancel()
            await asyncio.gather(*sinks, keeper, *beside, *sources, stopping, return_exceptions=True)
            await self._leave()
            for broker in self._brokers.values():
                await broker.close()

    # ── Keeping the lease ────────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        while True:
            try:
                async with self._connected("keeper") as connection:
                    await self._renew_forever(connection)
            except _BROKEN as error:
                log.warning("the lease cannot be renewed: %s", error)
            await asyncio.sleep(_RECONNECT)

    async def _renew_forever(self, connection: Connection) -> None:
        while True:
            sent = self._lease.sending()
            self._changed.clear()
            serving = [sink for sink, loop in self.sinks.items() if loop.serves]
            if not self._kept.is_set():
                await self._ask(connection, "register", self.relay_id, self.name, serving, __version__)
                self._lease.renewed(sent)
                self._kept.set()
                self.wake()
            elif await self._ask(connection, "heartbeat", serving, self.relay_id):
                self._lease.renewed(sent)
            else:
                log.warning("this relay's row is gone; it registers anew")
                self._lease.lost()
                self._kept.clear()
                self.relay_id = uuid4()
                continue
            await self._ask(connection, "forget_dead", 20 * self._settings.lease)
            with contextlib.suppress(TimeoutError):  # at once where a sink begins or ends to be served
                async with asyncio.timeout(self._settings.lease * RENEW_EVERY):
                    await self._changed.wait()

    async def _leave(self) -> None:
        with contextlib.suppress(*_BROKEN, ConfigError):
            async with self._connected("keeper") as connection:
                await self._ask(connection, "leave", self.relay_id)

    async def _ask(self, connection: Connection, name: str, *parameters: Any) -> list[Any]:
        limit = min(self._settings.statement_timeout, self._settings.lease * RENEW_EVERY)
        rows: list[Any] = await connection.fetch(query(f"relay/{name}", self._schema), *parameters, timeout=limit)
        return rows

    # ── Serving a sink ───────────────────────────────────────────────────────────────────────────

    async def _serve(self, sink: str) -> None:
        """Start over whenever a connection breaks or the lease is lost."""
        loop = self.sinks[sink]
        while not self._stopping.is_set():
            if not self._lease.is_ours:
                await self._ended_or(asyncio.sleep(_LOOK_FOR_LEASE))
                continue
            try:
                async with self._connected(sink) as reading, self._connected(sink) as settling:
                    await loop.run(
                        self._store(reading, sink), self._store(settling, sink), self._stopping, self._wakes[sink]
                    )
            except LeaseLost:
                log.warning("sink %s: the lease ran out; what was in flight may be sent again by another relay", sink)
                loop.lanes.drop_all()
            except _BROKEN as error:
                log.warning("sink %s: the database cannot be reached or refused: %r", sink, error)
            except Exception:
                # A fault of ours, or of an adapter. To stop for ever in silence would be the worst answer to it.
                log.exception("sink %s starts over", sink)
            await self._ended_or(asyncio.sleep(_RECONNECT))

    async def _ended_or(self, other: Coroutine[Any, Any, None]) -> None:
        """Wait for this, or for the stop if that comes first."""
        tasks = [asyncio.ensure_future(other), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _others(self) -> int:
        """How many relays beside this one can have work."""
        return max((loop.lanes.others for loop in self.sinks.values()), default=0)

    def _store(self, connection: Connection, sink: str) -> Store:
        return Store(
            connection,
            schema=self._schema,
            relay_id=self.relay_id,
            sink=sink,
            timeout=self._settings.statement_timeout,
        )

    @contextlib.asynccontextmanager
    async def _connected(self, what: str) -> AsyncIterator[Connection]:
        limit = min(CONNECT_TIMEOUT, self._settings.lease)
        async with open_connection(self._database, timeout=limit, application=f"oncommit relay {what}") as connection:
            try:
                yield connection
            except BaseException:
                connection.terminate()  # to take leave of a server that is silent could cost the lease
                raise
