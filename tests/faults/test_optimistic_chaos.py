"""Shops that send behind their commits, and relays, killed, paused and cut off at random: nothing lost, all in order.

As test_relay_chaos.py, which has the relays alone; `CHAOS_SEED` and `CHAOS_SECONDS` are understood here too. Pauses are
several times longer than a reservation, and five hot keys are written by everybody at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from nats.js.client import JetStreamContext

from oncommit.testing.checkers import bounded_duplicates, duplicates, in_order, no_loss, no_phantom
from oncommit.testing.ledger import Outcome, read_ledger
from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer, Database
from tests.faults.test_relay_chaos import (
    DRAIN,
    SECONDS,
    all_stopped,
    database,
    delivered,
    durable_database,
    durable_nats,
    durable_postgres,
    ids,
    seeds,
    stream,
    until_drained,
)
from tests.faults.world import BATCH_ROWS, FAR, Chaos, RelayProcess, plan

__all__ = ["database", "durable_database", "durable_nats", "durable_postgres", "stream"]

SHOPS: Final = 2
ROOT: Final = Path(__file__).parents[2]


class ShopProcess(RelayProcess):
    """A shop that sends; to chaos it is one more process behind proxies of its own."""

    def __init__(self, number: int, dsn: str, broker: str, folder: Path, seed: int) -> None:
        self.name = f"shop-{number}"
        self.proxies = {"database": Proxy.to(dsn), "broker": Proxy.to(broker)}
        for proxy in self.proxies.values():
            proxy.start()
        self.proxies["broker"].delay(FAR)
        program = (
            "import ctypes, runpy, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
            "runpy.run_module('tests.faults.sending_shop', run_name='__main__', alter_sys=True)"
        )
        self._command = [
            *(sys.executable, "-c", program),
            *(self.proxies["database"].through(dsn), self.proxies["broker"].through(broker)),
            *(str(folder / "ledger"), str(seed)),
        ]
        self.log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._quiet = 0
        self.busy = False

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._quiet = log.tell()
            self._process = subprocess.Popen(self._command, stderr=log, cwd=ROOT)


def sends(folder: Path) -> dict[str, int]:
    """What became of the sends, as far as the shops could tell."""
    told = [json.loads(path.read_text()) for path in folder.glob("sends-*.json")]
    return {key: sum(one.get(key, 0) for one in told) for key in dict.fromkeys(key for one in told for key in one)}


@pytest.fixture
def processes(
    request: pytest.FixtureRequest,
    database: Database,
    durable_nats: AnyServer,
    stream: JetStreamContext,
    tmp_path: Path,
) -> Iterator[list[RelayProcess]]:
    (tmp_path / "ledger").mkdir()
    seed = request.node.callspec.params["seed"]
    made: list[RelayProcess] = [RelayProcess(number, database.dsn, durable_nats.url, tmp_path) for number in range(2)]
    made += [ShopProcess(number, database.dsn, durable_nats.url, tmp_path, seed + number) for number in range(SHOPS)]
    for process in made:
        process.start()
    yield made
    for process in made:
        process.close()


@pytest.mark.timeout(SECONDS + DRAIN + 120)
@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: "fixed" if seed == 3 else "seed")
async def test_senders_killed_and_paused(
    seed: int,
    database: Database,
    stream: JetStreamContext,
    processes: list[RelayProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chaos = Chaos(processes)
    await chaos.run(plan(seed, SECONDS))
    shops = [process for process in processes if isinstance(process, ShopProcess)]
    relays = [process for process in processes if not isinstance(process, ShopProcess)]
    faults = chaos.faults + await all_stopped(shops)

    connection = await asyncpg.connect(database.dsn)
    healed = time.monotonic()
    faults += await until_drained(connection)
    took = time.monotonic() - healed
    faults += await all_stopped(relays)
    ledger = read_ledger(tmp_path / "ledger")
    arrived = await delivered(stream)
    sent, dead = await ids(connection, "outbox_archive"), await ids(connection, "dead_letter")
    await connection.close()

    total = sends(tmp_path)
    committed = sum(written.outcome is Outcome.COMMITTED for written in ledger.values())
    twice = duplicates(arrived)
    with capsys.disabled():
        print(  # noqa: T201 - how to have it again, and what it was worth
            f"\nCHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}: {committed} committed of {len(ledger)}, sends {total},"
            f" {len(arrived)} delivered, {twice.total} of them again, {chaos.interruptions} interruptions,"
            f" drained in {took:.1f} s"
        )
    faults += no_loss(ledger, delivered=set(arrived), sent=sent, dead=set(dead))
    faults += no_phantom(ledger, arrived)
    faults += in_order(ledger, arrived)
    faults += bounded_duplicates(arrived, interruptions=chaos.interruptions, in_flight=2 * BATCH_ROWS)
    assert not dead, "nothing here is the events' fault"
    assert committed > 30 * SECONDS, "the shops hardly wrote, so this shows nothing"
    assert total["sent"] > committed / 20, "hardly anything was sent behind its commit, so this shows nothing"
    assert not faults, "\n".join([f"seed {seed}, logs in {tmp_path}", *faults])
