"""The sides that are not the relay, each in a process of its own: ``python -m …work`` reads what to do from stdin.

From stdin, because a database's or a broker's URL may hold a password, which no list of processes should show.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

from oncommit.brokers.base import Broker, Message
from oncommit.brokers.registry import make_broker
from oncommit.errors import OncommitError
from oncommit.relay.relay import Relay
from oncommit.testing.bench.relay.adapters import Acknowledging, Collecting
from oncommit.testing.bench.relay.clients import CLIENTS
from oncommit.testing.bench.relay.reference import claim_publish_mark
from oncommit.testing.bench.relay.timeline import Mark

TIMEOUT = 30.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    side: str
    dsn: str
    schema: str
    broker: str
    events: int
    seconds: float = 0.0


async def direct(job: Job) -> list[Mark]:
    """What the relay would send, by the broker's client as its documentation shows it."""
    broker = make_broker(job.broker)
    batches = await _collected(job, broker)
    marks = []
    async with CLIENTS[broker.capabilities.name](job.broker) as publish:
        for batch in batches:
            await publish(batch)
            marks.append(Mark(time.monotonic(), len(batch)))
    return marks


async def adapter(job: Job) -> list[Mark]:
    """The same by our adapter, without the relay."""
    broker = make_broker(job.broker)
    batches = await _collected(job, broker)
    await broker.open()
    try:
        return [await _publish(broker, batch) for batch in batches]
    finally:
        await broker.close()


async def _collected(job: Job, broker: Broker) -> list[Sequence[Message]]:
    """The batches as the relay makes them, in memory."""
    collecting = Collecting(broker.capabilities)
    async with Relay(job.dsn, {"main": collecting}, schema=job.schema):
        while collecting.events < job.events:  # noqa: ASYNC110 - the adapter has no event to wait for
            await asyncio.sleep(0.01)
    # What lies ready must not be walked through by each garbage collection: a client has no backlog in memory.
    gc.collect()
    gc.freeze()
    return collecting.batches


async def _publish(broker: Broker, batch: Sequence[Message]) -> Mark:
    outcomes = await broker.publish(batch, timeout=TIMEOUT)
    refused = [outcome for outcome in outcomes if outcome is not None]
    if refused:
        raise OncommitError(f"the broker did not take {len(refused)} of {len(batch)} messages: {refused[0]}")
    return Mark(time.monotonic(), len(batch))


async def database(job: Job) -> None:
    """The relay's loop with an adapter that acknowledges at once, until SIGTERM; the database keeps the times."""
    relay = Relay(job.dsn, {"main": Acknowledging(make_broker(job.broker).capabilities)}, schema=job.schema)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


async def reference(job: Job) -> list[Mark]:
    """What most libraries do."""
    broker = make_broker(job.broker)
    await broker.open()
    try:
        return await claim_publish_mark(job.dsn, job.schema, broker, job.seconds)
    finally:
        await broker.close()


def main() -> None:
    """Do it; the result is printed as JSON."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    if job.side == "database":
        asyncio.run(database(job))
        return
    marks = asyncio.run({"direct": direct, "adapter": adapter, "reference": reference}[job.side](job))
    sys.stdout.buffer.write(msgspec.json.encode(marks))


if __name__ == "__main__":
    main()
