"""What most libraries do: claim a hundred, publish them, mark them one by one.

Over the same adapter, and generously: the hundred are published together through its window, not one after the other.
A mark is an UPDATE that commits, since one that does not commit marks nothing, and a transaction held open across the
network would be worse still. Ids are the key, a status column and its index find what is pending, as in the schema
that most projects have (usual_schema.sql).
"""

from __future__ import annotations

import time
from typing import Any, Final

import asyncpg

from oncommit import codec
from oncommit.brokers.base import Broker, Message
from oncommit.cloudevents import to_binary
from oncommit.message import Event
from oncommit.testing.bench.relay.timeline import Mark
from oncommit.topics import TopicRules, default_rules

CLAIM: Final = 100
_CLAIM: Final = """
UPDATE bench_usual_outbox SET status = 'processing'
WHERE id IN (
    SELECT id FROM bench_usual_outbox WHERE status = 'pending'
    ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, aggregate_type, aggregate_id, event_type, payload, created_at
"""
_MARK: Final = "UPDATE bench_usual_outbox SET status = 'sent', published_at = now() WHERE id = $1"
_PUBLISH_TIMEOUT: Final = 30.0


async def claim_publish_mark(dsn: str, schema: str, broker: Broker, seconds: float) -> list[Mark]:
    """Until the time is over or nothing is pending."""
    rules = default_rules(broker.capabilities.name)
    marks: list[Mark] = []
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(marks) < 2:  # noqa: PLR2004 - a rate needs two
            rows = await connection.fetch(_CLAIM, CLAIM)
            if not rows:
                break
            messages = [_message(row, rules, broker) for row in rows]
            outcomes = await broker.publish(messages, timeout=_PUBLISH_TIMEOUT)
            for row, outcome in zip(rows, outcomes, strict=True):
                if outcome is not None:
                    raise outcome
                await connection.execute(_MARK, row["id"])
            marks.append(Mark(time.monotonic(), len(rows)))
    finally:
        await connection.close()
    return marks


def _message(row: Any, rules: TopicRules, broker: Broker) -> Message:
    event = Event(
        row["event_type"],
        id=row["id"],
        aggregate=(row["aggregate_type"], row["aggregate_id"]),
        payload=codec.decode(row["payload"]),
    )
    wire = to_binary(event, source="oncommit", time=row["created_at"], binding=broker.capabilities.binding)
    return Message(str(event.id), rules.resolve(event), event.ordering_key, wire.headers, wire.body, wire.content_type)
