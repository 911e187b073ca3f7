"""A sender and a relay race for the same keys; reservations lapse all the time, and the broker has bad manners.

It takes messages and says that it did not; it takes them late, after their publish was given up; it refuses for no
reason. What it keeps is the contract: of a key nothing goes after one that was not acknowledged. First deliveries must
still come in order, and nothing may be lost. Both write into one list, so their publishes really interleave.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Final

import asyncpg
import pytest

from oncommit import Event, Outbox
from oncommit.brokers.base import Message, Outcome
from oncommit.errors import NotAttempted, PublishFailed
from oncommit.relay.relay import Relay
from oncommit.relay.settings import RelaySettings
from oncommit.retry import Backoff, RetryPolicy
from oncommit.testing.brokers import RecordingBroker
from oncommit.testing.checkers import in_order, no_loss, no_phantom
from oncommit.testing.ledger import Entry, Written
from oncommit.testing.ledger import Outcome as Ended
from tests.integration.optimistic.tools import World
from tests.integration.relay.tools import drained

SECONDS: Final = float(os.environ.get("RACE_SECONDS") or 4)
KEYS: Final = 12
WRITERS: Final = 6
RELAY: Final = RelaySettings(
    lease=2.0,
    statement_timeout=1.5,
    poll_busy=0.005,
    publish_timeout=0.3,
    full_pass_every=1.0,
    retry=RetryPolicy(max_attempts=10_000, backoff=Backoff(base=0.02, cap=0.1)),
    circuit=Backoff(base=0.02, cap=0.05),
)


class Moody(RecordingBroker):
    """Takes what it likes, when it likes, and says what it likes; but nothing of a key after a failure."""

    def __init__(self, arrived: list[str], chance: random.Random) -> None:
        super().__init__()
        self.arrived = arrived
        self.chance = chance
        self.calm = False
        self.late: set[asyncio.Task[None]] = set()

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for message in batch:
            if message.key is not None and message.key in stopped:
                outcomes.append(NotAttempted("an earlier one was not taken"))
                continue
            outcome = await self._one(message, timeout)
            outcomes.append(outcome)
            if outcome is not None and message.key is not None:
                stopped.add(message.key)
        return outcomes

    async def _one(self, message: Message, timeout: float) -> Outcome:
        mood = 1.0 if self.calm else self.chance.random()
        if mood < 0.05:
            return PublishFailed("no")
        if mood < 0.10:  # the answer is lost
            self.arrived.append(message.message_id)
            return PublishFailed("no answer")
        if mood < 0.15:  # it comes after it was given up
            task = asyncio.create_task(self._later(message.message_id, self.chance.uniform(0, 0.3)))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
            return PublishFailed("no answer")
        if mood < 0.3:
            await asyncio.sleep(self.chance.uniform(0, 0.03))
        self.arrived.append(message.message_id)
        return None

    async def _later(self, message_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.arrived.append(message_id)


async def write(world: World, outbox: Outbox, ledger: dict[str, Written], chance: random.Random) -> None:
    """One transaction, under the locks of its keys."""
    keys = sorted({f"k{chance.randrange(KEYS)}" for _ in range(chance.choice((1, 1, 2)))})
    entries: list[Entry] = []
    ended = Ended.COMMITTED
    try:
        async with outbox.transaction(world.pool) as connection:
            events: list[Event] = []
            for key in keys:
                count = chance.randint(1, 3)
                last = await connection.fetchval("UPDATE thing SET n = n + $2 WHERE key = $1 RETURNING n", key, count)
                for number in range(last - count + 1, last + 1):
                    events.append(event := Event("thing.changed", key=key))
                    entries.append(Entry(str(event.id), key, number))
            for entry in entries:
                ledger[entry.event] = Written(entry)
            if chance.random() < 0.3 and len(events) > 1:
                await outbox.add(connection, events[0])
                await outbox.add(connection, *events[1:])
            else:
                await outbox.add(connection, *events)
            if chance.random() < 0.1:
                ended = Ended.ABORTED
                raise _Back
            if chance.random() < 0.1:
                await asyncio.sleep(chance.uniform(0, 0.1))
    except _Back:
        pass
    for entry in entries:
        ledger[entry.event].outcome = ended


class _Back(Exception):
    """Rolled back on purpose."""


@pytest.mark.timeout(60 + 2 * SECONDS)
@pytest.mark.parametrize("limit", [0.06, 0.5])
async def test_first_deliveries_stay_in_order(world: World, limit: float) -> None:
    seed = int(os.environ.get("RACE_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    arrived: list[str] = []
    ledger: dict[str, Written] = {}
    await world.pool.execute("INSERT INTO thing SELECT 'k' || n FROM generate_series(0, $1) n", KEYS - 1)
    pool = await asyncpg.create_pool(world.dsn, min_size=1, max_size=WRITERS + 6)
    mine, theirs = Moody(arrived, chance), Moody(arrived, chance)
    outbox = world.outbox(pool=pool, broker=mine, limit=limit, circuit=Backoff(base=0.005, cap=0.01))
    world.pool, before = pool, world.pool
    ends = asyncio.get_running_loop().time() + SECONDS

    async def writer(number: int) -> None:
        own = random.Random(f"{seed} {number}")
        while asyncio.get_running_loop().time() < ends:
            await write(world, outbox, ledger, own)
            await asyncio.sleep(own.uniform(0, 0.3))

    async with Relay(world.dsn, {"main": theirs}, settings=RELAY):
        await asyncio.gather(*(writer(number) for number in range(WRITERS)))
        mine.calm = theirs.calm = True
        await asyncio.gather(*mine.late, *theirs.late)
        await drained(pool)
    await outbox.close()
    sent = [str(event) for (event,) in await pool.fetch("SELECT event_id FROM oncommit.outbox_archive")]
    dead = {str(event) for (event,) in await pool.fetch("SELECT event_id FROM oncommit.dead_letter")}
    world.pool = before
    await pool.close()
    assert outbox.optimistic is not None
    assert outbox.optimistic.successes > 10, outbox.optimistic.__dict__
    assert sum(outbox.optimistic.failures.values()) > 3, outbox.optimistic.__dict__
    faults = in_order(ledger, arrived) + no_phantom(ledger, arrived)
    faults += no_loss(ledger, delivered=set(arrived), sent=sent, dead=dead)
    assert not faults, "\n".join([f"RACE_SEED={seed}, limit {limit}", *faults])
