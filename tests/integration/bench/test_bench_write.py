"""The command measures what it says: its shape and its sanity, not the speed of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import asyncpg
import pytest

from oncommit.testing.bench.forms import FORMS
from oncommit.testing.servers import Database

SHORT = ["--pairs", "1", "--seconds", "0.2", "--batch", "200"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oncommit", "bench", "write", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


def measured(*arguments: str) -> list[dict[str, Any]]:
    done = bench("--json", *SHORT, *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def schemas(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'oncommit_bench%'")
        return [row["nspname"] for row in rows]
    finally:
        await connection.close()


async def test_all_drivers_in_a_given_database_which_is_left_clean(empty_database: Database) -> None:
    found = measured("--database", empty_database.dsn)
    commits = [result for result in found if result["schema"] == "oncommit" and "batch" not in result]
    assert [result["driver"] for result in commits] == list(FORMS)
    for result in commits:
        assert result["without_per_s"] > 0
        assert result["with_per_s"] > 0
        assert result["ratio"] == pytest.approx(result["with_per_s"] / result["without_per_s"], rel=0.01)
        assert result["spread"] == [result["ratio"], result["ratio"]]  # of one pair
        assert result["gate"] == (0.7 if result["driver"] == "asyncpg" else 0.6)
        assert result["about"]["postgresql"]
        assert result["about"]["own_server"] is False
    assert await schemas(empty_database.dsn) == []


def test_it_starts_a_durable_postgresql_and_knows_batches_and_the_usual_schema() -> None:
    found = measured("--driver", "asyncpg")
    ours, usual, batch, usual_batch = found
    assert ours["about"] | {"fsync": "on", "synchronous_commit": "on", "own_server": True} == ours["about"]
    assert (ours["schema"], ours["writers"]) == ("oncommit", 16)
    assert usual["schema"] == usual_batch["schema"] == "usual"
    assert "gate" not in usual
    for result in (batch, usual_batch):
        assert (result["driver"], result["batch"]) == ("asyncpg", 200)
        assert result["ratio"] == pytest.approx(result["events_per_s"] / result["raw_events_per_s"], rel=0.01)
    assert 0 <= batch["memory_growth_bytes"] < 64 * 1024 * 1024


def test_the_table_and_the_gate() -> None:
    done = bench("--driver", "psycopg", *SHORT, "--check")
    head, row, *_ = done.stdout.splitlines()
    assert head.split()[:2] == ["driver", "schema"]
    assert row.split()[0] == "psycopg"
    assert done.returncode == (0 if row.rstrip().endswith("ok") else 1)
    assert "cores, shared by the writers and PostgreSQL" in done.stdout
    assert "oncommit bench: psycopg" in done.stderr


def test_a_driver_that_nobody_knows() -> None:
    done = bench("--driver", "psycopg2")
    assert done.returncode == 2
    assert "choose from asyncpg, psycopg" in " ".join(done.stderr.split())


def test_a_database_that_does_not_answer() -> None:
    done = bench("--database", "postgresql://postgres:secret@127.0.0.1:1/postgres", *SHORT)
    assert done.returncode == 3
    assert "secret" not in done.stderr
