"""`oncommit tune` on a real database and a real NATS: what it tries, what it finds, what it leaves."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import asyncpg
import nats
import pytest

from oncommit.config import load_all
from oncommit.testing.bench.tune import smallest_of_the_best
from oncommit.testing.servers import AnyServer, Database

Bench = Callable[..., subprocess.CompletedProcess[str]]
Measured = Callable[..., Any]


async def left(database: Database, server: AnyServer) -> list[str]:
    """Schemas, streams and relays that are there."""
    connection = await asyncpg.connect(database.dsn)
    try:
        rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'oncommit%'")
    finally:
        await connection.close()
    client = await nats.connect(server.url)
    try:
        streams = [info.config.name or "" for info in await client.jetstream().streams_info()]
    finally:
        await client.close()
    return [row["nspname"] for row in rows] + streams


async def test_it_tries_sizes_finds_one_and_leaves_nothing(
    measured: Measured, empty_database: Database, oncommit_nats: AnyServer
) -> None:
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    found = measured("tune", *there, "--seconds", "15", "--yes")
    tried = {one["batch_rows"]: one for one in found["tries"]}
    assert len(tried) >= 2
    for size, one in tried.items():
        assert 0 < one["batch"] <= size * 1.1
        assert min(one["rounds"]) <= one["events_per_s"] <= max(one["rounds"])
        assert one["batch_seconds"] == pytest.approx(one["batch"] / one["events_per_s"], rel=0.05, abs=0.001)
        assert one["peak_rss_mb"] > 20
    assert found["settings"]["batch_rows"] in tried
    assert not set(found["not_tried"]) & set(tried)
    assert found["events"] >= 4000
    assert found["broker"] == "nats"
    assert await left(empty_database, oncommit_nats) == []


async def test_it_prints_a_plot_and_settings_that_a_relay_takes(
    bench: Bench, empty_database: Database, oncommit_nats: AnyServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    done = bench("tune", *there, "--seconds", "5", "--yes", "--payload", "2kB")
    assert done.returncode == 0, done.stderr
    assert "of 2000 bytes to nats" in done.stdout
    (chosen,) = [line for line in done.stdout.splitlines() if "<- the smallest" in line]
    assert "█" in chosen
    snippet = done.stdout.partition("For oncommit.toml:\n")[2].partition("\nor ")[0]
    size = tomllib.loads(snippet)["relay"]["batch_rows"]
    assert f"{size:,}" == chosen.split()[0]
    assert f"ONCOMMIT_RELAY_BATCH_ROWS={size}" in done.stdout
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oncommit.toml").write_text(snippet)
    assert load_all(environment={}).settings.relay.batch_rows == size
    assert "oncommit tune: batches of" in done.stderr


async def test_nothing_happens_without_a_word(bench: Bench, empty_database: Database, oncommit_nats: AnyServer) -> None:
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    done = bench("tune", *there)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert await left(empty_database, oncommit_nats) == []


def test_what_cannot_be(bench: Bench, empty_database: Database) -> None:
    there = ("--database", empty_database.dsn, "--yes")
    for arguments, code, told in [
        (("--broker", "nats://u:secret@127.0.0.1:1"), 1, "cannot be reached"),
        (("--broker", "pigeon://secret@loft"), 2, "no adapter is known"),
        ((), 2, "--broker"),
    ]:
        done = bench("tune", *there, *arguments)
        assert done.returncode == code, done.stderr
        assert told in done.stderr
        assert "secret" not in done.stderr


def test_the_smallest_that_is_nearly_the_best() -> None:
    assert smallest_of_the_best({250: 100, 500: 190, 1000: 191, 2000: 200, 5000: 199}) == 500
    assert smallest_of_the_best({250: 100}) == 250
    assert smallest_of_the_best({250: 200, 500: 190}) == 250


def test_the_command_is_listed() -> None:
    done = subprocess.run([sys.executable, "-m", "oncommit", "--help"], capture_output=True, text=True, check=True)
    assert "tune" in done.stdout
