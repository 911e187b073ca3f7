"""What counting costs: CPU time of the dispatcher for an event, not watched, watched, and with a span a batch.

    .venv/bin/python benchmarks/telemetry.py

Batches of 2 000 rows of three types, an adapter that acknowledges at once; the three ways take turns, and the medians
of their rounds are printed in µs an event. Spans are made by OpenTelemetry's SDK and dropped at its end.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from datetime import UTC, datetime, timedelta
from statistics import median
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from oncommit.brokers.base import Capabilities
from oncommit.brokers.dispatcher import Dispatcher
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch
from oncommit.cloudevents import NATS
from oncommit.metrics import Metrics
from oncommit.retry import Backoff
from oncommit.testing.bench.relay.adapters import Acknowledging
from oncommit.topics import default_rules

ROWS, BATCHES, ROUNDS = 2_000, 20, 15
PAYLOAD = b'{"order": "000000000001", "note": "' + b"x" * 250 + b'"}'


def rows() -> list[FetchedRow]:
    headers = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    now = datetime.now(UTC)
    return [
        FetchedRow(
            "main", number % 64, 1, number, uuid4(), f"order.{number % 3}", "account", str(number), None,
            "application/json", None, None, None, 1, 5, 0, 0, None, now - timedelta(seconds=random.random()),
            f"account:{number}", 0.0, headers, PAYLOAD, True, 500,  # noqa: FBT003 - a row's columns in their order
        )
        for number in range(ROWS)
    ]  # fmt: skip


def dispatcher(watch: Watch | None) -> Dispatcher:
    broker = Acknowledging(
        Capabilities(
            name="nats", binding=NATS, acknowledged_means="nothing", ordered_pipelining=False, deduplicates=False
        )
    )
    rules = default_rules("nats")
    return Dispatcher(broker, rules, source="bench", backoff=Backoff(), uniform=random.uniform, watch=watch)


async def once(sender: Dispatcher, batch: list[FetchedRow]) -> float:
    begun = time.process_time()
    for _ in range(BATCHES):
        await sender.publish(batch, timeout=1.0)
    return (time.process_time() - begun) / (BATCHES * ROWS) * 1e6


async def main() -> None:
    plain = Watch(Metrics(), "main", "nats")
    plain._tracer = None  # noqa: SLF001 - spans apart from counts
    trace.set_tracer_provider(TracerProvider())
    ways = {
        "not watched": dispatcher(None),
        "watched": dispatcher(plain),
        "watched, spans": dispatcher(Watch(Metrics(), "main", "nats")),
    }
    batch = rows()
    figures: dict[str, list[float]] = {name: [] for name in ways}
    gc.disable()
    for turn in range(ROUNDS):
        for name in ways if turn % 2 == 0 else reversed(ways):
            figures[name].append(await once(ways[name], batch))
    for name, found in figures.items():
        print(f"{name:15} {median(found):6.2f} µs an event ({min(found):.2f} to {max(found):.2f})")


asyncio.run(main())
