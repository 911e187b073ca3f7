"""A shop in a process of its own, which sends right after its commits: `python -m … DSN BROKER FOLDER SEED`.

Failure story. It is killed and paused in the middle of everything; what it knew of outcomes goes with it, and a
transaction without one counts as unknown. Its connections are cut: then it does not know, and goes on with another.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Final

import asyncpg

from oncommit import Optimistic, Outbox
from oncommit.testing.ledger import LedgerWriter
from tests.faults.world import Shop, _some_key

LIMIT: Final = 0.5
"""Of a reservation; pauses are longer."""
WRITERS: Final = 5
_BROKEN: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class SendingShop(Shop):
    """Writers as in ``Shop``, through an outbox that sends."""

    def __init__(self, dsn: str, broker: str, folder: Path, seed: int) -> None:
        super().__init__(dsn, folder, seed)
        self._broker = broker

    async def run(self) -> None:
        """Until told to stop; then what is under way ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.close)
        pool = await asyncpg.create_pool(self._dsn, min_size=1, max_size=WRITERS + 4, timeout=2, command_timeout=5)
        settings = Optimistic(limit=LIMIT)
        self._outbox = Outbox(after_commit=pool, broker=self._broker, optimistic=settings)
        print(" serves ", file=sys.stderr, flush=True)  # noqa: T201 - listened for
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(self._write(pool, f"{name}-{number}"))
            writers.create_task(self._tell(name))
        await self._outbox.close()
        pool.terminate()

    async def _tell(self, name: str) -> None:
        """What became of the sends, for the test to add up; the last word may be a little old."""
        stats = self._outbox.optimistic
        assert stats is not None
        told = self._folder.parent / f"sends-{name}.json"
        while not self._closing.is_set():
            counts = {"sent": stats.successes, "skipped": stats.skipped, **stats.failures}
            told.with_suffix(".new").write_text(json.dumps(counts))
            told.with_suffix(".new").rename(told)
            await asyncio.sleep(0.1)

    async def _write(self, pool: asyncpg.Pool, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        with LedgerWriter(self._folder / f"writer-{name}.jsonl") as ledger:
            while not self._closing.is_set():
                try:
                    await self._sold(pool, ledger, chance)
                except _BROKEN:
                    await asyncio.sleep(0.05)

    async def _sold(self, pool: asyncpg.Pool, ledger: LedgerWriter, chance: random.Random) -> None:
        slow = chance.random() < 0.05
        keys = sorted({_some_key(chance, hot=not slow) for _ in range(chance.choice((1, 1, 1, 2, 3)))})
        ids: list[str] = []
        rolled_back = False
        try:
            async with self._outbox.transaction(pool) as connection:
                entries, events = await self._change(connection, keys, chance)
                if chance.random() < 0.2:  # in several calls, some of them under a savepoint that is given up
                    savepoint = connection.transaction()
                    await savepoint.start()
                    await self._outbox.add(connection, *events)
                    await savepoint.rollback()
                    await self._outbox.add(connection, events[0])
                    events = events[1:]
                if events:
                    await self._outbox.add(connection, *events)
                if slow:
                    await asyncio.sleep(chance.uniform(0.1, 2 * LIMIT))
                ledger.attempt(entries)
                ids = [entry.event for entry in entries]
                if chance.random() < 0.1:
                    rolled_back = True
                    raise _RolledBack
        except _RolledBack:
            ledger.aborted(ids)
            return
        except _BROKEN:
            if ids and not rolled_back:
                ledger.unknown(ids)
            raise
        ledger.committed(ids)
        await asyncio.sleep(chance.uniform(0.0, 0.04))


class _RolledBack(Exception):
    """On purpose."""


if __name__ == "__main__":
    dsn, broker, folder, seed = sys.argv[1:]
    asyncio.run(SendingShop(dsn, broker, Path(folder), int(seed)).run())
