"""What waits when a round begins: the same events each time, under new ids, written before anybody reads.

New ids because brokers drop what they have seen. The orders are made once and kept in a table, so that each round is
filled by one statement within the server.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec

from oncommit import codec
from oncommit.testing.bench.relay.plan import Plan
from oncommit.testing.bench.workload import PAYLOAD_BYTES, SEED, Order, orders

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection

_TABLES: Final = (
    "outbox, outbox_delayed, outbox_archive, outbox_claim, outbox_lane, outbox_relay, dead_letter, bench_usual_outbox"
)
_MAKE: Final = """
CREATE TABLE bench_backlog (n bigint PRIMARY KEY, account text NOT NULL, payload text NOT NULL)
"""
_FILL: Final = """
INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, payload, lane)
SELECT v.event_id, $1, 'account', v.account, v.payload::json,
       lane_of(5::smallint, NULL, 'account', v.account, v.event_id)
FROM (SELECT make_id() AS event_id, account, payload FROM bench_backlog WHERE n <= $2 ORDER BY n) AS v
"""
_FILL_DELAYED: Final = """
INSERT INTO outbox_delayed (not_before, event_type, aggregate_type, aggregate_id, payload)
SELECT now() + interval '1 day' + n * interval '1 ms', $1, 'account', (n % 10000)::text, '{"later": true}'
FROM generate_series(1, $2::bigint) AS n
"""
_FILL_USUAL: Final = """
INSERT INTO bench_usual_outbox (id, aggregate_type, aggregate_id, event_type, payload)
SELECT make_id(), 'account', account, $1, payload::jsonb FROM bench_backlog WHERE n <= $2 ORDER BY n
"""


async def make_backlog(connection: Connection, plan: Plan) -> None:
    """Make the orders that all rounds share."""
    await connection.execute(_MAKE)
    source = random.Random(SEED)
    some = islice(orders(plan.accounts()), max(plan.events, plan.waiting))
    records = (
        (number, str(order.account), _payload(order, plan.payload, source)) for number, order in enumerate(some, 1)
    )
    while chunk := list(islice(records, 10_000)):
        await connection.copy_records_to_table("bench_backlog", records=chunk, columns=["n", "account", "payload"])
    await connection.execute("VACUUM ANALYZE bench_backlog")


def _payload(order: Order, size: int, source: random.Random) -> str:
    """300 bytes as in all benchmarks; more by a longer note, which no compression makes short again."""
    more = size - PAYLOAD_BYTES
    if more > 0:
        order = msgspec.structs.replace(order, note=order.note + source.randbytes(more // 2 + 1).hex()[:more])
    return codec.encode(order.payload()).decode()


async def reset(connection: Connection) -> None:
    """Nothing is left of the round before."""
    await connection.execute(f"TRUNCATE {_TABLES} RESTART IDENTITY")


async def fill(
    connection: Connection, event_type: str, count: int, *, delayed: int = 0, checkpoint: bool = True
) -> Any:
    """Write the backlog; the id of its last event. Then do what autovacuum would do for any table in use."""
    await connection.execute(_FILL, event_type, count)
    if delayed:
        await connection.execute(_FILL_DELAYED, event_type, delayed)
    await _settle_down(connection, "outbox, outbox_delayed", checkpoint=checkpoint)
    return await connection.fetchval("SELECT event_id FROM outbox ORDER BY id DESC LIMIT 1")


async def fill_usual(connection: Connection, event_type: str, count: int, *, checkpoint: bool = True) -> None:
    """The same in the table that most projects have."""
    await connection.execute(_FILL_USUAL, event_type, count)
    await _settle_down(connection, "bench_usual_outbox", checkpoint=checkpoint)


async def _settle_down(connection: Connection, tables: str, *, checkpoint: bool) -> None:
    await connection.execute(f"ANALYZE {tables}")
    if not checkpoint:
        return
    try:
        await connection.execute("CHECKPOINT")
    except asyncpg.InsufficientPrivilegeError:
        return  # the place was given to us without that right; the report says so (`about`)
