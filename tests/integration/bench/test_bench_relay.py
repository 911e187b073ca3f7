"""`oncommit bench relay` measures what it says: its shape and its sanity, not the speed of this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import asyncpg
import nats
import pytest

from oncommit.errors import MissingDependency
from oncommit.testing.bench.place import a_place
from oncommit.testing.bench.relay import rounds as rounds_module
from oncommit.testing.bench.relay.homes import a_target
from oncommit.testing.bench.relay.plan import Plan
from oncommit.testing.bench.relay.rounds import Rounds
from oncommit.testing.bench.usual import usual_schema
from oncommit.testing.servers import AnyServer, Database

Bench = Callable[..., subprocess.CompletedProcess[str]]
Measured = Callable[..., Any]
RELAY = ("bench", "relay")


def test_all_sides_on_servers_of_its_own(measured: Measured) -> None:
    found = measured(*RELAY, "--broker", "nats", "--quick")
    assert (found["broker"], found["events"], found["keys"], found["payload_bytes"]) == ("nats", 6000, "uniform", 300)
    slower = min(("direct_per_s", "database_per_s"), key=lambda side: found[side])
    assert f"{found['ceiling']}_per_s" == slower
    assert found["ratio"] == pytest.approx(found["relay_per_s"] / found[slower], rel=0.01)
    assert found["factor"] == pytest.approx(found["relay_per_s"] / found["reference_per_s"], rel=0.02)
    assert found["cpu_us_per_event"] > 0
    assert 20 < found["peak_rss_mb"] < 200
    assert found["batch"] > 100
    higher = min(("adapter_per_s", "database_per_s"), key=lambda side: found[side])
    assert found["adapter_ratio"] == pytest.approx(found["relay_per_s"] / found[higher], rel=0.01)
    phases = {"servers", "backlog", "warm_up", "direct", "adapter", "database", "relay", "reference"}
    assert set(found["seconds"]) >= phases
    about = found["about"]
    assert about | {"fsync": "on", "synchronous_commit": "on", "own_server": True, "own_broker": True} == about
    assert "file storage" in about["broker_storage"]
    assert "sync_interval" in about["broker_durability"]
    assert about["broker_version"].startswith("NATS 2")
    assert about["nats-py"]


async def schemas(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'oncommit_bench%'")
        return [row["nspname"] for row in rows]
    finally:
        await connection.close()


async def streams(url: str) -> list[str]:
    client = await nats.connect(url)
    try:
        return [info.config.name or "" for info in await client.jetstream().streams_info()]
    finally:
        await client.close()


async def test_conditions_in_a_given_database_at_a_given_broker_which_are_left_clean(
    measured: Measured, empty_database: Database, oncommit_nats: AnyServer
) -> None:
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    conditions = ("--open-transaction", "--relays", "2", "--waiting", "5000", "--delayed", "500")
    found = measured(*RELAY, *there, *conditions, "--quick", "--events", "3000", "--keys", "zipf")
    assert found["conditions"] == ["5000 waiting", "a transaction left open", "2 relays", "500 delayed"]
    assert found["events"] == 5000
    assert found["kept"] == pytest.approx(found["relay_per_s"] / found["plain_per_s"], rel=0.01)
    assert "ratio" not in found
    assert found["about"]["own_server"] is found["about"]["own_broker"] is False
    assert await schemas(empty_database.dsn) == []
    assert await streams(oncommit_nats.url) == []


def test_the_table_large_payloads_and_single_sides(
    bench: Bench, empty_database: Database, oncommit_nats: AnyServer
) -> None:
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    sides = ("--side", "relay", "--side", "direct")
    done = bench(*RELAY, *there, *sides, "--quick", "--payload", "100kB", "--events", "100")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["side", "direct", "relay"]
    assert "file storage" in done.stdout
    assert "oncommit bench: relay" in done.stderr


def test_what_cannot_be(bench: Bench) -> None:
    for arguments, code, told in [
        (("--broker", "pigeons"), 2, "nats, redis, rabbitmq, kafka"),
        (("--broker", "pigeon://secret@loft"), 2, "no adapter is known"),
        (("--broker", "nats", "--payload", "3 miles"), 2, "--payload"),
        (("--broker", "nats", "--payload", "1MB", "--events", "100000"), 2, "--events 200"),
        (("--broker", "nats", "--database", "postgresql://u:secret@127.0.0.1:1/x"), 3, "cannot be reached"),
    ]:
        done = bench(*RELAY, *arguments)
        assert done.returncode == code, done.stderr
        assert told in done.stderr
        assert "secret" not in done.stderr


def test_a_relay_that_delivers_too_little_gives_no_figure(
    empty_database: Database, oncommit_nats: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that were settled, and are not at the broker: the loop without a broker, passed off as the relay."""
    plan = Plan(broker=oncommit_nats.url, events=3000, dsn=empty_database.dsn)
    with (
        a_target(plan.broker, "bench_liar") as target,
        a_place(plan.dsn, usual_schema()) as place,
        monkeypatch.context() as patched,
    ):
        from oncommit.testing.bench.relay.backlog import make_backlog
        from oncommit.testing.servers.sql import run_async

        async def make() -> None:
            async with place.connection() as connection:
                await make_backlog(connection, plan)

        run_async(make)
        found = Rounds(place, target, plan)
        command = ([rounds_module.WORK], {}, rounds_module.msgspec.json.encode(found._job("database")))
        patched.setattr(found, "_commands", lambda _count, _settings: [command])
        with pytest.raises(Exception, match="3000 events were sent and 0 are at the broker"):
            found.relay()


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    monkeypatch.delitem(sys.modules, "oncommit.testing.bench.relay.homes.rabbitmq", raising=False)
    with pytest.raises(MissingDependency, match="pip install aio-pika"), a_target("amqp://127.0.0.1:1", "x"):
        pass
