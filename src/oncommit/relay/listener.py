"""LISTEN: wake-ups that writers send through the database.

Failure story. A connection of its own does nothing but listen. When it breaks, or stops answering, it is made anew;
what was said meanwhile is lost, so everybody is woken once it listens again, and until then the relay looks as often as
without it. Two things look like listening and are not: a pooler in transaction mode takes the LISTEN and gives its
server connection to somebody else, and a second server (a standby, a copy) hears nothing of the first. So it proves
itself: a word sent through the database that the relay reads has to arrive here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from oncommit.db.address import describe_dsn
from oncommit.db.dsn import open_connection
from oncommit.db.sql import query
from oncommit.errors import DatabaseUnreachable
from oncommit.identifiers import wake_channel

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

log: Final = logging.getLogger("oncommit.relay")

PROOF: Final = "proof "
PROOF_TIMEOUT: Final = 3.0
CHECK_EVERY: Final = 30.0
UNHEARD: Final = 600.0
"""What was never heard through an address is not tried again soon: each try leaves a LISTEN behind in a pooler."""
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 0.25

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
                await self._serve()
                pause = UNHEARD
            except Exception as error:
                if self.works:
                    pause = _FIRST_PAUSE
                # Once, not each time: it goes without, and whoever reads the log has been told.
                level = logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG
                log.log(level, "wake-ups cannot be listened for: %s; polling goes on", str(error) or "no answer")
                log.debug("the cause", exc_info=True)
            finally:
                self._lost()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE) if pause < UNHEARD else _FIRST_PAUSE

    async def _serve(self) -> None:
        """Until the connection breaks, which raises, or it turns out that nothing is heard on it."""
        async with open_connection(self._dsn, application="oncommit relay listener") as connection:
            try:
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _connection: gone.set())
                async with asyncio.timeout(PROOF_TIMEOUT):
                    await connection.add_listener(self._channel, self._heard)
                while await self._is_proven():
                    if not self.works:
                        self.works = True
                        self._wake(None)  # what was said before is not known
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_EVERY):
                            await gone.wait()
                    if gone.is_set():
                        raise DatabaseUnreachable("the connection that listens was closed")
                if self.works:
                    raise DatabaseUnreachable("the connection that listens has fallen silent")
                log.warning(
                    "wake-ups do not arrive through %s: is it a pooler in transaction mode, or another server? "
                    "Give a direct address as listen_database; until then the relay polls",
                    describe_dsn(self._dsn),
                )
            finally:
                connection.terminate()  # a goodbye could hang

    async def _is_proven(self) -> bool:
        """Whether a word that is sent where writers are arrives here."""
        self._proof = f"{PROOF}{uuid4()}"
        self._proven.clear()
        async with self._connect("wake-up proof") as connection:
            told = (self._channel, self._proof)
            await connection.execute(query("outbox/notify", self._schema), *told, timeout=PROOF_TIMEOUT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROOF_TIMEOUT):
                    await self._proven.wait()
        return self._proven.is_set()

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
