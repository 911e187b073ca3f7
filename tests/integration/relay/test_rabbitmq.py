"""From rows to RabbitMQ, which is killed in the middle: in order, none lost, no attempt spent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import msgspec
import pytest

from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.relay.relay import Relay
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import Database, ServerUnavailable, rabbitmq
from oncommit.testing.servers.server import Server
from tests.brokers.rabbit import connected
from tests.integration.relay.tools import QUICK, drained, until

EVENTS, KEYS = 6000, 40
SETTINGS = msgspec.structs.replace(QUICK, batch_rows=100)
ADD = """
INSERT INTO oncommit.outbox (event_type, aggregate_type, aggregate_id, payload)
SELECT 'order.placed', 'order', n % $1, json_build_object('n', n) FROM generate_series(1, $2) n ORDER BY n
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with rabbitmq() as server:
            yield server
    except ServerUnavailable as error:
        not_to_be_had(error)


@pytest.mark.timeout(180)
async def test_a_kill_in_the_middle_loses_nothing_and_overtakes_nothing(database: Database, server: Server) -> None:
    async with connected(server.url) as rabbit:
        await rabbit.queue(exchange="events")  # where the default rules send it
        rabbit.forget()
    await asyncio.to_thread(server.restart)  # so that the definitions are on disk
    connection = await asyncpg.connect(database.dsn)
    async with Relay(database.dsn, {"main": RabbitBroker(server.url)}, settings=SETTINGS):
        await connection.execute(ADD, KEYS, EVENTS)
        await until(connection, f"SELECT count(*) BETWEEN 1 AND {EVENTS - 1} FROM oncommit.outbox_archive", wanted=True)
        server.kill()
        await until(connection, "SELECT count(*) FROM oncommit.outbox_relay WHERE sinks = '{}'", 1)
        assert await connection.fetchval("SELECT count(*) FROM oncommit.outbox") > 0, "killed too late"
        await asyncio.to_thread(server.start)
        await drained(connection)
    assert await connection.fetchval("SELECT max(attempts) FROM oncommit.outbox_archive") == 0
    rows = await connection.fetch("SELECT event_id::text, aggregate_id FROM oncommit.outbox_archive ORDER BY id")
    await connection.close()
    async with connected(server.url) as rabbit:
        queue = await rabbit.queue(exchange="events")
        arrived = [one.message_id for one in await rabbit.arrived(queue, await rabbit.waiting(queue), timeout=60)]
    firsts = list(dict.fromkeys(arrived))
    assert sorted(firsts) == sorted(id_ for id_, _ in rows)
    assert len(firsts) == EVENTS
    assert len(arrived) - EVENTS <= SETTINGS.batch_rows, "more than what was in flight came twice"
    by_key: dict[str, list[str]] = {}
    for id_, key in rows:
        by_key.setdefault(key, []).append(id_)
    place = {id_: number for number, id_ in enumerate(firsts)}
    for ids in by_key.values():
        assert [place[id_] for id_ in ids] == sorted(place[id_] for id_ in ids)
