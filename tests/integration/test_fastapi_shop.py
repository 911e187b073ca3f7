"""The example: FastAPI with the relay in its lifespan, served by uvicorn, against PostgreSQL and NATS."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec
import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit.testing.servers import AnyServer, Database
from tests.integration.cli.test_relay_command import PATIENCE, Program, counts

EXAMPLE = Path(__file__).parents[2] / "examples/fastapi_shop"


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="shop", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("shop")
    await client.close()


@pytest.fixture
def shop(database: Database, oncommit_nats: AnyServer) -> Iterator[Program]:
    program = Program(
        "shop:app", "--app-dir", str(EXAMPLE), "--port", "0",
        environment={"DATABASE_URL": database.dsn, "NATS_URL": oncommit_nats.url},
        program=("uvicorn",),
    )  # fmt: skip
    yield program
    if program.process.poll() is None:
        program.process.kill()
    program.process.wait()


def address(shop: Program) -> str:
    found = re.search(r"http://\S+", shop.says("Uvicorn running on"))
    assert found
    assert urlsplit(found[0]).hostname == "127.0.0.1"
    return found[0]


async def test_an_order_becomes_an_event_and_a_stop_leaves_nothing_behind(
    shop: Program, database: Database, stream: JetStreamContext
) -> None:
    async with httpx.AsyncClient(base_url=address(shop), timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.post("/orders", json={"customer": "a", "total": n}) for n in range(20)))
        refused = await client.post("/orders", json={"customer": "a"})
    assert {answer.status_code for answer in answers} == {201}
    assert refused.status_code == 422
    subscription = await stream.subscribe("events.order.order.placed", ordered_consumer=True)
    arrived = [msgspec.json.decode((await subscription.next_msg(timeout=PATIENCE)).data) for _ in range(20)]
    assert sorted(order["id"] for order in arrived) == sorted(answer.json()["id"] for answer in answers)

    shop.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(shop.ends) in (0, -signal.SIGTERM)  # uvicorn ends as the signal would have
    connection = await asyncpg.connect(database.dsn)
    assert await connection.fetchval('SELECT count(*) FROM "order"') == 20
    assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox_archive") == 20
    await connection.close()
    assert await counts(database) == (0, 0, 0)


async def test_it_does_not_start_without_the_tables(empty_database: Database, oncommit_nats: AnyServer) -> None:
    program = Program(
        "shop:app", "--app-dir", str(EXAMPLE), "--port", "0",
        environment={"DATABASE_URL": empty_database.dsn, "NATS_URL": oncommit_nats.url},
        program=("uvicorn",),
    )  # fmt: skip
    assert await asyncio.to_thread(program.ends) == 3  # uvicorn's word for a lifespan that failed
    assert any("oncommit migrate" in line for line in program.rest())
