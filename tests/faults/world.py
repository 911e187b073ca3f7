"""A small world for chaos: a shop that writes, relays that are killed, paused and cut off, and a record of both.

Failure story. Relays are processes and die when asked to, or with us (PR_SET_PDEATHSIG), paused or not. Each reaches
its database and its broker through proxies of its own, which lose its connections, and with them answers. PostgreSQL is
killed and started again. Writers are tasks in the test's process, which nobody kills; one that loses its connection
says that it does not know how its transaction ended, and begins anew. So do those that do not wait for the disk. The
time between two acts of chaos is the subject of the test, so here, and only here, something sleeps.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg

from oncommit import Event, Outbox
from oncommit.testing.ledger import Entry, LedgerWriter
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers.server import Server

LEASE: Final = 2.0
BATCH_ROWS: Final = 200
RELAYS: Final = 4
HOT_KEYS: Final = 5
KEYS: Final = 2000
SHUT_KEYS: Final = 20
"""Keys of events for a topic that nobody has made; they wait, and must not keep others waiting (G8)."""
SHUT: Final = "nowhere.thing"
FAR: Final = 0.005
"""Seconds to the broker, and as many back, so that something is in flight whenever something happens."""

SHOP: Final = """
CREATE TABLE thing (key text PRIMARY KEY, sequence bigint NOT NULL DEFAULT 0);
INSERT INTO thing (key) SELECT 'hot-' || n FROM generate_series(1, {hot}) AS n;
INSERT INTO thing (key) SELECT 'key-' || n FROM generate_series(1, {keys}) AS n;
INSERT INTO thing (key) SELECT 'shut-' || n FROM generate_series(1, {shut}) AS n;
"""

# Dies with its parent, whatever the parent dies of.
_MAIN: Final = (
    "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "from oncommit.cli.main import main; main(sys.argv[1:])"
)


class Act(NamedTuple):
    """One act of chaos."""

    after: float
    """Seconds since the act before."""
    relay: int
    what: str
    last: float
    """Seconds until it is started again, or goes on."""


_LOST: Final = (
    *(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError),
    asyncpg.InternalClientError,  # what asyncpg says when it loses its server in the middle of a COMMIT
)
BEYOND_LEASE: Final = (1.1 * LEASE, 1.8 * LEASE)

# What may happen to a relay: how often, and for how long at least and at most.
ACTS: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "kill": (5, (0.0, 1.0)),
    "stop": (1, (0.0, 0.5)),
    "pause": (3, BEYOND_LEASE),
    "nap": (1, (0.3 * LEASE, LEASE)),
    "cut broker": (2, (0.0, 0.0)),
    "mute broker": (1, (0.2, 1.5 * LEASE)),
    "cut database": (1, (0.0, 0.0)),
    "mute database": (2, BEYOND_LEASE),
    "deaf broker": (1, (0.0, 1.0)),
    "deaf database": (1, (0.0, 1.0)),
    "crash postgres": (1, (0.0, 0.5)),
}


def plan(seed: int, seconds: float) -> list[Act]:
    """What happens to which relay and when: the same for the same seed."""
    chance = random.Random(seed)
    acts: list[Act] = []
    spent = 0.0
    while (spent := spent + (after := chance.uniform(0.2, 1.0))) <= seconds:
        what = chance.choices(list(ACTS), [often for often, _ in ACTS.values()])[0]
        acts.append(Act(after, chance.randrange(RELAYS), what, chance.uniform(*ACTS[what][1])))
    return acts


class RelayProcess:
    """One ``oncommit relay``, behind proxies of its own."""

    def __init__(self, number: int, dsn: str, broker: str, folder: Path) -> None:
        self.name = f"relay-{number}"
        self.proxies = {"database": Proxy.to(dsn), "broker": Proxy.to(broker)}
        for proxy in self.proxies.values():
            proxy.start()
        self.proxies["broker"].delay(FAR)
        self._command = [
            *(sys.executable, "-c", _MAIN, "relay", "--name", self.name),
            *("--database", self.proxies["database"].through(dsn)),
            *("--broker", self.proxies["broker"].through(broker)),
            *("--lease", str(LEASE), "--statement-timeout", str(0.75 * LEASE)),
            *("--publish-timeout", str(2 * LEASE), "--batch-rows", str(BATCH_ROWS)),
        ]
        self.log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._quiet = 0
        self.busy = False
        """Somebody is at it already."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._quiet = log.tell()
            # What is down is tried again soon, so that the end of a run does not wait for that.
            environment = {**os.environ, "ONCOMMIT_RELAY_CIRCUIT_CAP": "3s"}
            self._process = subprocess.Popen(self._command, stderr=log, env=environment)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_begun(self) -> bool:
        """Whether it has said anything yet. Before that it listens to no signal and holds nothing."""
        return b" serves " in self.log.read_bytes()[self._quiet :]

    async def ended(self, limit: float = 40.0) -> int:
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, limit)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for proxy in self.proxies.values():
            proxy.close()

    def note(self, words: str) -> None:
        """What was done to it, between the lines of its log."""
        with self.log.open("a") as log:
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
            log.write(f"{stamp} ──── {words}\n")


class Chaos:
    """Does to the relays and to PostgreSQL what the plan says, and counts what may cost duplicates."""

    def __init__(self, relays: list[RelayProcess], database: Server | None = None) -> None:
        self._relays = relays
        self._database = database
        self._healing: set[asyncio.Task[None]] = set()
        self.interruptions = 0
        self.faults: list[str] = []

    async def run(self, acts: list[Act]) -> None:
        for act in acts:
            await asyncio.sleep(act.after)
            relay = self._relays[act.relay]
            if relay.busy:
                continue
            if act.what == "crash postgres":
                if self._database is not None:
                    await self._crash(self._database, act)
                continue
            if not relay.runs:
                self.faults.append(f"{relay.name} ended by itself with {await relay.ended()}; see its log")
                relay.start()
                continue
            relay.busy = True
            task = asyncio.create_task(self._act(relay, act))
            self._healing.add(task)
            task.add_done_callback(self._healing.discard)
        await asyncio.gather(*self._healing)

    async def _act(self, relay: RelayProcess, act: Act) -> None:
        relay.note(f"{act.what} {act.last:.2f} s")
        self.interruptions += act.what != "stop"
        deed, _, what = act.what.partition(" ")
        if deed in ("pause", "nap"):
            relay.signal(signal.SIGSTOP)
            await asyncio.sleep(act.last)
            relay.signal(signal.SIGCONT)
        elif deed in ("kill", "stop"):
            await self._end(relay, gracefully=deed == "stop")
            await asyncio.sleep(act.last)
            relay.start()
        elif deed == "cut":
            relay.proxies[what].cut()
        elif deed == "deaf":  # what it asks for next is done, and it does not hear of it
            relay.proxies[what].drop_answer(after=int(act.last * 20))
            await asyncio.sleep(act.last)
        else:
            relay.proxies[what].hold()
            await asyncio.sleep(act.last)
            relay.proxies[what].heal()
            relay.proxies["broker"].delay(FAR)
        relay.note("goes on")
        relay.busy = False

    async def _crash(self, database: Server, act: Act) -> None:
        """PostgreSQL is killed: whatever was under way has happened or has not, and every connection is gone."""
        for relay in self._relays:
            relay.note(f"{act.what} {act.last:.2f} s")
        self.interruptions += len(self._relays)
        await asyncio.to_thread(database.kill)
        await asyncio.sleep(act.last)
        await asyncio.to_thread(database.start)

    async def _end(self, relay: RelayProcess, *, gracefully: bool) -> None:
        listens = relay.has_begun
        relay.signal(signal.SIGTERM if gracefully else signal.SIGKILL)
        code = await relay.ended()
        if gracefully and listens and code:
            self.faults.append(f"{relay.name} was asked to stop and ended with {code}; see its log")


class Shop:
    """Writers that serialise on the rows they change, as applications do."""

    def __init__(self, dsn: str, folder: Path, seed: int, *, shut: bool = False) -> None:
        self._dsn = dsn
        self._folder = folder
        self._seed = seed
        self._shut = shut
        """Whether some events are for a topic that is not there."""
        self._closing = asyncio.Event()
        self._outbox = Outbox()

    def close(self) -> None:
        """After the transactions that are open now."""
        self._closing.set()

    async def write(self, number: int) -> None:
        """One writer, until the shop closes."""
        chance = random.Random(f"{self._seed} {number}")
        with LedgerWriter(self._folder / f"writer-{number}.jsonl") as ledger:
            while not self._closing.is_set():
                with suppress(*_LOST):
                    await self._go_on(ledger, chance)
                await asyncio.sleep(0.1)

    async def _go_on(self, ledger: LedgerWriter, chance: random.Random) -> None:
        """Until the shop closes or the connection is lost."""
        connection = await asyncpg.connect(self._dsn, timeout=5.0)
        try:
            while not self._closing.is_set():
                await self._transaction(connection, ledger, chance)
        finally:
            connection.terminate()

    async def _transaction(self, connection: asyncpg.Connection, ledger: LedgerWriter, chance: random.Random) -> None:
        slow = chance.random() < 0.08
        keys = sorted({_some_key(chance, hot=not slow, shut=self._shut) for _ in range(chance.randint(1, 3))})
        transaction = connection.transaction()
        await transaction.start()
        # Who does not wait for the disk is told of a commit that a crash can take back: he does not know.
        sure = chance.random() >= 0.15
        if not sure:
            await connection.execute("SET LOCAL synchronous_commit = off")
        entries, events = await self._change(connection, keys, chance)
        await self._outbox.add(connection, *events)
        if slow:
            # Others commit higher ids meanwhile, some of them in the same lane: this one comes in below the floor.
            await asyncio.sleep(chance.uniform(0.1, 1.2))
        ledger.attempt(entries)
        ids = [entry.event for entry in entries]
        if chance.random() < 0.12:
            await transaction.rollback()
            ledger.aborted(ids)
            return
        try:
            await transaction.commit()
        except _LOST:
            ledger.unknown(ids)
            raise
        if sure:
            ledger.committed(ids)
        else:
            ledger.unknown(ids)

    async def _change(
        self, connection: asyncpg.Connection, keys: list[str], chance: random.Random
    ) -> tuple[list[Entry], list[Event]]:
        """Change the things, under their locks, and say so."""
        entries: list[Entry] = []
        events: list[Event] = []
        for key in keys:
            changes = chance.randint(1, 3)
            last = await connection.fetchval(
                "UPDATE thing SET sequence = sequence + $2 WHERE key = $1 RETURNING sequence", key, changes
            )
            urgent = chance.random() < 0.1
            for sequence in range(last - changes + 1, last + 1):
                event = Event(
                    "thing.changed",
                    aggregate=("thing", key),
                    payload={"sequence": sequence},
                    topic=SHUT if key.startswith("shut") else None,
                    priority=9 if urgent else 5,
                )
                events.append(event)
                entries.append(Entry(str(event.id), f"{key}{' urgent' if urgent else ''}", sequence))
        if chance.random() < 0.1:
            alone = Event("thing.noticed", payload={}, topic="events.thing.noticed")
            events.append(alone)
            entries.append(Entry(str(alone.id), None, 0))
        return entries, events


def _some_key(chance: random.Random, *, hot: bool, shut: bool = False) -> str:
    if shut and chance.random() < 0.02:
        return f"shut-{chance.randint(1, SHUT_KEYS)}"
    if hot and chance.random() < 0.3:
        return f"hot-{chance.randint(1, HOT_KEYS)}"
    return f"key-{chance.randint(1, KEYS)}"
