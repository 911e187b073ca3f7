"""Handing rows to functions in the database: one transaction each, settled at its end. The story: relay/local.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from oncommit import checks, codec
from oncommit.brokers.base import Outcome
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.dispatcher import Published
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch, say
from oncommit.errors import (
    BrokerError,
    BrokerUnavailable,
    DatabaseUnreachable,
    InvalidEvent,
    NotAttempted,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)
from oncommit.message import Event
from oncommit.relay.settling import REFUSED
from oncommit.relay.store import Store
from oncommit.retry import Backoff
from oncommit.telemetry import caused_by

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection
    from oncommit.relay.local import Handler, LocalBroker

log: Final = logging.getLogger("oncommit.relay.local")

MakeStore: TypeAlias = "Callable[[Connection], Store]"

NO_BATCH: Final = 0
"""Batches are counted from one: settling under this number ends no claim."""
LOST: Final = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, DatabaseUnreachable)
_RETRIES: Final = 3
_CONTENTION: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_UNHANDLED: Final = Backoff(base=1.0, cap=30.0)
# H-guard: the server ends the session of a process that sleeps in the middle of a handler.
_GUARD: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $1, true)"
)


class LocalDispatcher:
    """Handles the rows of one sink; in the place of a ``Dispatcher``."""

    def __init__(
        self,
        broker: LocalBroker,
        *,
        store: MakeStore,
        archive: bool,
        watch: Watch,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._broker = broker
        self._store = store
        self._archive = archive
        self._watch = watch
        self._uniform = uniform
        self._unhandled: dict[str, Circuit] = {}

    async def publish(self, rows: Sequence[FetchedRow], *, timeout: float) -> list[Published]:
        """Handle these rows, those of one key in their order; one entry a row. None is begun after the time limit."""
        outcomes: list[Outcome] = [NotAttempted("an earlier event of its key was not handled")] * len(rows)
        chains: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            chains.setdefault(row.ordering_key or f"\0{index}", []).append(index)
        begun = time.perf_counter()
        until = time.monotonic() + timeout

        async def in_order(chain: list[int]) -> None:
            for index in chain:
                if time.monotonic() >= until:
                    return
                outcomes[index] = await self._outcome(rows[index], timeout)
                if outcomes[index] is not None:
                    return

        # No more at once than there are connections: what has not begun yet can be let go of without a trace.
        waiting = iter(chains.values())

        async def work() -> None:
            for chain in waiting:
                await in_order(chain)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._broker.size, len(chains))):
                group.create_task(work())
        published: list[Published] = [(row, row.type, outcome) for row, outcome in zip(rows, outcomes, strict=True)]
        self._watch.published(published, time.perf_counter() - begun)
        return published

    def topic_wait(self, topic: str) -> float:
        """Seconds until events of this type, which nobody handles, are looked at again."""
        circuit = self._unhandled.get(topic)
        return circuit.wait(time.monotonic()) if circuit else 0.0

    async def _outcome(self, row: FetchedRow, timeout: float) -> Outcome:
        handler = self._broker.handlers.get(row.type)
        if handler is None:
            return self._nobody_handles(row.type)
        try:
            return await self._handled(handler, readable(row), row, timeout)
        except BrokerError as error:
            return error
        except TimeoutError:
            return PublishFailed(f"its handler had not ended after {timeout:g} s")
        except LOST as error:
            return await self._loss(error)
        except Exception as error:  # noqa: BLE001 - said in the log, and an outcome
            say(logging.WARNING, "event %s: its handler failed", row.id, exc_info=True, to=log)
            return PublishFailed(f"{type(error).__name__}: {error}")

    def _nobody_handles(self, kind: str) -> Outcome:
        """No attempt is spent: another version of the program may know this type."""
        circuit = self._unhandled.setdefault(kind, Circuit(_UNHANDLED, self._uniform))
        if circuit.wait(time.monotonic()) <= 0:
            circuit.failed(time.monotonic(), kind)
            log.warning("there is no handler for events of the type %s; they wait", kind)
        return TopicUnavailable(f"there is no handler for {kind!r}")

    async def _handled(self, handler: Handler, event: Event[Any], row: FetchedRow, timeout: float) -> Outcome:
        """Handle it, again where that was only the moment's fault."""
        archive = self._archive
        for attempt in range(_RETRIES + 1):
            try:
                async with asyncio.timeout(timeout):
                    return await self._once(handler, event, row, timeout, archive=archive)
            except _CONTENTION:
                if attempt == _RETRIES:
                    raise
                await asyncio.sleep(self._uniform(0.0, 0.05 * 2**attempt))
            except _ArchiveRefuses as error:
                if not archive:
                    raise PublishFailed(f"it cannot be settled: {error.__cause__}") from error
                archive = await self._made_partition() if attempt == 0 else False
                if not archive:
                    log.error("event %s is settled without a copy in the archive: %s", row.id, error.__cause__)  # noqa: TRY400
        raise PublishFailed("it could not be settled")

    async def _once(
        self, handler: Handler, event: Event[Any], row: FetchedRow, timeout: float, *, archive: bool
    ) -> Outcome:
        async with self._broker.connection() as connection:
            transaction = connection.transaction(isolation="read_committed")
            await transaction.start()
            await connection.fetch(_GUARD, f"{int(timeout * 1000) + 1000}ms")
            try:
                with caused_by(event):
                    await handler(event, connection)
                if not connection.is_in_transaction():
                    raise PublishFailed("its handler has ended the transaction, which is not its own")
                there = await self._settle(connection, row, archive=archive)
            except Exception:
                await _rolled_back(transaction)
                raise
            if not there:
                await transaction.rollback()
                return NotAttempted("its lane was lost, or somebody else has handled it")
            await transaction.commit()
        return None

    async def _settle(self, connection: Connection, row: FetchedRow, *, archive: bool) -> bool:
        """Let the event leave, in the handler's transaction; whether it was there, and its lane still ours."""
        try:
            settled, _ = await self._store(connection).settle(
                {row.lane: row.epoch}, [(row.lane, row.place, 0.0)], batch=NO_BATCH, archive=archive
            )
        except REFUSED as error:
            raise _ArchiveRefuses from error
        return settled == 1

    async def _made_partition(self) -> bool:
        try:
            async with self._broker.connection() as connection:
                await self._store(connection).make_partition()
        except asyncpg.PostgresError as error:
            log.warning("today's partition of the archive cannot be made: %s", error)
            return False
        return True

    async def _loss(self, error: BaseException) -> Outcome:
        """The connection broke. Where there is another at once, the event may have done it, and it counts."""
        try:
            await self._broker.ping()
        except BrokerUnavailable as unavailable:
            return unavailable
        return PublishFailed(f"{type(error).__name__}: {error}")


async def _rolled_back(transaction: Any) -> None:
    """What cannot be rolled back any more ends with its connection."""
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        await transaction.rollback()


class _ArchiveRefuses(Exception):
    """The archive does not take this event."""


def readable(row: FetchedRow) -> Event[Any]:
    """The event of a row. Raises ``PublishRejected`` where plain SQL has written what no event can be."""
    try:
        return event_of(row)
    except InvalidEvent as error:
        raise PublishRejected(str(error)) from error


def event_of(row: FetchedRow) -> Event[Any]:
    """The event as its handler sees it, JSON decoded. Raises ``PublishRejected``, ``InvalidEvent``."""
    if row.problem is not None:
        raise PublishRejected(row.problem)
    body = row.body()
    payload: Any = body.data
    if body.is_json:
        try:
            payload = None if body.data is None else codec.decode(body.data)
        except ValueError as error:
            raise PublishRejected(f"its payload cannot be read: {error}") from error
    aggregate = None
    if row.aggregate_type is not None and row.aggregate_id is not None:
        aggregate = (row.aggregate_type, row.aggregate_id)
    return Event(
        row.type,
        payload=payload,
        aggregate=aggregate,
        id=row.id,
        key=row.ordering_key,
        topic=row.topic,
        sink=row.sink,
        priority=row.priority,
        headers={
            name: value
            for name, value in row.headers.items()
            if checks.is_users_header(name) and isinstance(value, str)
        },
        content_type=None if body.is_json or body.data is None else row.content_type,
        schema_version=row.schema_version,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        saga_id=row.saga_id,
        max_attempts=row.max_attempts,
        traceparent=row.traceparent,
        tracestate=row.tracestate,
    )
