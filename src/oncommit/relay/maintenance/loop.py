"""The loop of the maintenance: lead, move what is due, and keep house from time to time.

Failure story. It has a connection of its own and shares nothing with delivery: should it hang, fail or be refused for
days, events are delivered all the same; delayed ones wait, the archive grows, and the log says why. What breaks its
connection makes it start over with a new one. Keeping house can take long (a detach waits for readers), so it runs
beside the moving, on a second connection, which only the leader opens and closes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final
from uuid import UUID

from oncommit.relay.lease import RENEW_EVERY
from oncommit.relay.maintenance.delayed import Mover
from oncommit.relay.maintenance.expiry import Warned
from oncommit.relay.maintenance.house import keep_house
from oncommit.relay.maintenance.leader import NotLeader, Seat

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection
    from oncommit.relay.settings import RelaySettings

log: Final = logging.getLogger("oncommit.maintenance")
_START_OVER: Final = 1.0
HOUSE_EVERY: Final = 600.0
HOUSE_AGAIN: Final = 60.0
"""After a turn that has left something to do."""
LONGEST_PAUSE: Final = 1.0

Connect = Callable[[str], "AbstractAsyncContextManager[Connection]"]


class Maintenance:
    """The maintenance of one relay; it works while that relay leads."""

    def __init__(
        self,
        connect: Connect,
        *,
        schema: str,
        owner: Callable[[], UUID],
        settings: RelaySettings,
        wake: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._schema = schema
        self._owner = owner
        self._settings = settings
        self._wake = wake
        self._warned = Warned()

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop."""
        while not stopping.is_set():
            try:
                async with self._connect("maintenance") as connection:
                    await self._serve(connection, stopping)
            except Exception as error:
                # Whatever it is, delivery goes on, and so does the next try.
                log.warning("maintenance starts over: %s", str(error) or type(error).__name__)
                log.debug("the cause", exc_info=True)
                await _pause(stopping, _START_OVER)

    async def _serve(self, connection: Connection, stopping: asyncio.Event) -> None:
        owner, settings = self._owner(), self._settings
        longest = min(LONGEST_PAUSE, settings.lease * RENEW_EVERY)
        seat = Seat(connection, schema=self._schema, owner=owner, lease=settings.lease)
        mover = Mover(
            connection,
            schema=self._schema,
            owner=owner,
            longest_pause=longest,
            wake=self._wake,
            timeout=settings.statement_timeout,
        )
        await seat.make()
        house: asyncio.Task[None] | None = None
        try:
            while not stopping.is_set() and owner == self._owner():
                pause = longest
                if await seat.hold():
                    if house is None or house.done():
                        house = asyncio.create_task(self._keep_house(owner), name="oncommit housekeeping")
                    try:
                        pause = await mover.turn()
                    except NotLeader:
                        log.info("another relay leads the maintenance now")
                        seat.lost()
                elif house is not None:
                    house.cancel()
                await _pause(stopping, pause)
        finally:
            if house is not None:
                house.cancel()
                await asyncio.gather(house, return_exceptions=True)
        await seat.leave()

    async def _keep_house(self, owner: UUID) -> None:
        """Turn after turn, each on a connection of its own, while the seat is ours."""
        while True:
            well = False
            try:
                async with self._connect("housekeeping") as connection:
                    well = await keep_house(connection, schema=self._schema, owner=owner, warned=self._warned)
            except NotLeader:
                return
            except TimeoutError:
                log.info("housekeeping was held up by others, or had no answer; it goes on soon")
            except Exception as error:
                log.warning("housekeeping starts over: %s", str(error) or type(error).__name__)
                log.debug("the cause", exc_info=True)
            await asyncio.sleep(HOUSE_EVERY if well else HOUSE_AGAIN)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass
