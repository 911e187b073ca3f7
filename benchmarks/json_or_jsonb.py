"""Payload and headers as json or as jsonb: what each costs on the way of an event. The figures of ADR 3.

    python benchmarks/json_or_jsonb.py [--rows 100000] [--rounds 5] [--json]

Two pairs of tables, alike but for the type: a live table and an archive. Each round writes the rows in batches of 1 000
as an application would (text in), reads them as text as a relay would, and settles them: delete and insert into the
archive in one statement. Rounds take turns. The server is durable and our own; times are of the statements, commit
included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from itertools import islice
from statistics import median
from typing import Any

import asyncpg

from oncommit import codec
from oncommit.ids import make_id
from oncommit.testing.bench.workload import orders, uniform
from oncommit.testing.servers import postgres

BATCH = 1_000
HEADERS = '{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
KINDS = ("json", "jsonb")
STEPS = ("insert", "read", "settle")

# No values are glued in here: the one hole is the name of a type.
MAKE = """
CREATE TABLE live_{kind} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL UNIQUE,
    event_type text NOT NULL, headers {kind} NOT NULL, payload {kind});
CREATE TABLE archive_{kind} (
    id bigint NOT NULL, event_id uuid NOT NULL, event_type text NOT NULL, headers {kind} NOT NULL, payload {kind},
    archived_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON archive_{kind} (event_id);
"""
INSERT = """
INSERT INTO live_{kind} (event_id, event_type, headers, payload)
SELECT v.event_id, 'order.placed', v.headers::{kind}, v.payload::{kind}
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS v (event_id, headers, payload)
"""
READ = (
    "SELECT id, event_id, event_type, headers::text, payload::text FROM live_{kind} WHERE id > $1 ORDER BY id LIMIT $2"
)
SETTLE = """
WITH gone AS (DELETE FROM live_{kind} WHERE id > $1 AND id <= $2 RETURNING *)
INSERT INTO archive_{kind} (id, event_id, event_type, headers, payload)
SELECT id, event_id, event_type, headers, payload FROM gone
"""


async def one_round(connection: asyncpg.Connection, kind: str, rows: int) -> dict[str, float]:
    source = orders(uniform())
    taken = dict.fromkeys(STEPS, 0.0)
    first = await connection.fetchval(f"SELECT coalesce(max(id), 0) FROM archive_{kind}")
    for _ in range(0, rows, BATCH):
        payloads = [codec.encode(order.payload()).decode() for order in islice(source, BATCH)]
        ids = [make_id() for _ in payloads]
        begin = time.perf_counter()
        await connection.execute(INSERT.format(kind=kind), ids, [HEADERS] * BATCH, payloads)
        taken["insert"] += time.perf_counter() - begin
    for low in range(first, first + rows, BATCH):
        begin = time.perf_counter()
        found = await connection.fetch(READ.format(kind=kind), low, BATCH)
        taken["read"] += time.perf_counter() - begin
        assert len(found) == BATCH
    for low in range(first, first + rows, BATCH):
        begin = time.perf_counter()
        await connection.execute(SETTLE.format(kind=kind), low, low + BATCH)
        taken["settle"] += time.perf_counter() - begin
    return taken


async def measure(dsn: str, rows: int, rounds: int) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(dsn)
    times: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        await connection.execute(MAKE.format(kind=kind))
        await one_round(connection, kind, BATCH)  # warm
    await connection.execute("CHECKPOINT")
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            times[kind].append(await one_round(connection, kind, rows))
            await connection.execute(f"VACUUM live_{kind}")
    version = await connection.fetchval("SHOW server_version")
    results = []
    for kind in KINDS:
        written = rows * rounds + BATCH
        size = await connection.fetchval(f"SELECT pg_table_size('archive_{kind}')")
        results.append(
            {step: round(median(one[step] for one in times[kind]), 3) for step in STEPS}
            | {"type": kind, "rows": rows, "rounds": rounds, "archive_bytes_per_event": round(size / written)}
            | {"postgresql": version, "python": platform.python_version()}
        )
    await connection.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help=f"a multiple of {BATCH}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rows < BATCH or options.rows % BATCH:
        parser.error(f"--rows must be a multiple of {BATCH}")
    with postgres(18, durable=True) as server:
        results = asyncio.run(measure(server.dsn, options.rows, options.rounds))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':8}{'insert s':>10}{'read s':>10}{'settle s':>10}{'archive B/event':>18}")
    for result in results:
        steps = "".join(f"{result[step]:10.3f}" for step in STEPS)
        print(f"{result['type']:8}{steps}{result['archive_bytes_per_event']:18}")
    print(f"{options.rows} events, medians of {options.rounds} rounds, PostgreSQL {results[0]['postgresql']}")


if __name__ == "__main__":
    main()
