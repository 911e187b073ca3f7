"""The fixed workload is what the benchmarks' page says, and both sides of a comparison do the same business."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import asyncpg
import pytest

from oncommit import codec
from oncommit.outbox import Outbox
from oncommit.testing.bench import workload
from oncommit.testing.bench.forms import FORMS
from oncommit.testing.bench.pairs import Comparison, in_turns
from oncommit.testing.bench.place import a_place
from oncommit.testing.bench.usual import UsualOutbox, usual_schema
from oncommit.testing.servers import Database


def test_the_payload_has_its_size_whatever_the_order() -> None:
    for order in islice(workload.orders(workload.uniform()), 1000):
        assert len(codec.encode(order.payload())) == workload.PAYLOAD_BYTES
        assert order.event().ordering_key == f"account:{order.account}"


def test_keys_are_the_same_in_every_run_and_spread_as_named() -> None:
    uniform = Counter(islice(workload.uniform(), 50_000))
    assert uniform == Counter(islice(workload.uniform(), 50_000))
    assert len(uniform) > 9_800
    assert max(uniform.values()) < 30
    zipf = Counter(islice(workload.zipf(), 50_000))
    assert 0.09 < zipf[0] / 50_000 < 0.12
    assert list(islice(workload.one_key(), 3)) == [0, 0, 0]
    assert list(islice(workload.unique(), 3)) == [0, 1, 2]


def test_sides_take_turns_in_going_first() -> None:
    went: list[str] = []

    def side(name: str, rate: float) -> float:
        went.append(name)
        return rate

    found = in_turns(lambda: side("a", 10), lambda: side("b", 8), 3)
    assert went == ["a", "b", "b", "a", "a", "b"]
    assert found.ratio == 0.8


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    found = Comparison([100, 100, 10], [70, 80, 9])
    assert found.ratio == 0.8
    assert found.spread == (0.7, 0.9)


@pytest.mark.parametrize("name", [name for name in FORMS if not name.startswith("django")])
async def test_a_round_writes_what_it_counts(empty_database: Database, name: str) -> None:
    await _a_round(empty_database, name)


async def _a_round(database: Database, name: str) -> None:
    import asyncio

    def rounds() -> tuple[int, int, dict[str, int]]:
        with a_place(database.dsn, usual_schema()) as place:
            place.reset()
            with FORMS[name](place) as run:
                without, beside = run(None, 0.1).commits, run(Outbox(schema=place.schema), 0.1).commits
            return without, beside, asyncio.run(_counts(place.dsn, place.schema))

    without, beside, counts = await asyncio.to_thread(rounds)
    assert without > 0
    assert counts["orders"] == without + beside
    assert counts["events"] == beside
    # The UPDATE found its row each time.
    assert counts["touched"] > 0
    assert counts["cents"] == counts["balance"]


async def _counts(dsn: str, schema: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        row = await connection.fetchrow(
            """SELECT (SELECT count(*) FROM bench_order) AS orders, (SELECT count(*) FROM outbox) AS events,
            (SELECT sum(cents) FROM bench_order)::bigint AS cents, sum(balance)::bigint AS balance,
            count(*) FILTER (WHERE balance > 0) AS touched FROM bench_account"""
        )
        return dict(row)
    finally:
        await connection.close()


async def test_the_usual_outbox_gets_the_same_events(empty_database: Database) -> None:
    import asyncio

    def write() -> tuple[int, int]:
        with a_place(empty_database.dsn, usual_schema()) as place, FORMS["asyncpg"](place) as run:
            commits = run(UsualOutbox(), 0.1).commits

            async def rows() -> int:
                async with place.connection() as connection:
                    found: int = await connection.fetchval("SELECT count(*) FROM bench_usual_outbox")
                    return found

            return commits, asyncio.run(rows())

    commits, rows = await asyncio.to_thread(write)
    assert commits == rows > 0
