"""LISTEN: wake-ups that writers send through the database.

Failure story. A connection of its own does nothing but listen. When it breaks, or stops answering, it is made anew;
what was said meanwhile is lost, so everybody is woken once it listens again, and until then the relay looks as often as
without it. Two things look like listening and are not: a pooler in transaction mode takes the LISTEN and gives its
server connection to somebody else, and a second server (a standby, a copy) hears nothing of the first. So it proves
itself: a word sent through the database that the relay reads has to arrive here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import asyncpg

from oncommit.db.dsn import describe_dsn, open_connection
from oncommit.db.sql import query
from oncommit.errors import DatabaseUnreachable
from oncommit.identifiers import wake_channel

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.relay")

PROOF: Final = "proof "
PROOF_TIMEOUT: Final = 3.0
CHECK_EVERY: Final = 30.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
_BROKEN: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, DatabaseUnreachable)

Connect = Callable[[str], "AbstractAsyncContextManager[Connection]"]


class Listener:
    """Hears who writes into one schema."""

    def __init__(self, dsn: str, schema: str, wake: Callable[[str | None], None], connect: Connect) -> None:
        self.works = False
        """Whether what writers say arrives here, as far as is known."""
        self._dsn = dsn
        self._schema = schema
        self._channel = wake_channel(schema)
        self._wake = wake
        self._connect = connect
        self._proof = ""
        self._proven = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with open_connection(self._dsn, application="oncommit relay listener") as connection:
                    await connection.add_listener(self._channel, self._heard)
                    try:
                        while await self._is_proven():
                            pause = _FIRST_PAUSE
                            await self._listen(connection)
                    finally:
                        connection.terminate()  # a goodbye could hang
            except _BROKEN as error:
                log.warning("wake-ups cannot be listened for: %s; polling goes on", str(error) or "no answer")
            finally:
                self._lost()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _is_proven(self) -> bool:
        self._proof = f"{PROOF}{uuid4()}"
        self._proven.clear()
        async with self._connect("wake-up proof") as connection:
            await connection.execute(
                query("outbox/notify", self._schema), self._channel, self._proof, timeout=PROOF_TIMEOUT
            )
            try:
                async with asyncio.timeout(PROOF_TIMEOUT):
                    await self._proven.wait()
            except TimeoutError:
                if not self.works:
                    log.warning(
                        "wake-ups do not arrive through %s: is it a pooler in transaction mode, or another server? "
                        "Give a direct address as listen_database; until then the relay polls",
                        describe_dsn(self._dsn),
                    )
                return False
        return True

    async def _listen(self, connection: asyncpg.Connection[Any]) -> None:
        """Until the connection breaks, or it is time to see whether it still works."""
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _connection: gone.set())
        if not self.works:
            self.works = True
            self._wake(None)  # what was said before is not known
        try:
            async with asyncio.timeout(CHECK_EVERY):
                await gone.wait()
        except TimeoutError:
            return
        raise DatabaseUnreachable("the connection that listens was closed")

    def _lost(self) -> None:
        if self.works:
            self.works = False
            self._wake(None)  # they may be at rest until a wake-up comes

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        words = str(payload)
        if words.startswith(PROOF):
            if words == self._proof:
                self._proven.set()
            return
        sinks: list[str | None] = [*words.split()]
        for sink in sinks or [None]:
            self._wake(sink)
