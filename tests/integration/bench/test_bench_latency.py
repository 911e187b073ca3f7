"""`oncommit bench latency`: its shape and its sanity, not the speed of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.testing.bench.latency import MODES, RATE, percentile
from oncommit.testing.servers import AnyServer, Database
from oncommit.testing.servers.sql import execute

Bench = Callable[..., subprocess.CompletedProcess[str]]
Measured = Callable[..., Any]
LATENCY = ("bench", "latency", "--seconds", "1.5")


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_on_given_servers(
    measured: Measured, empty_database: Database, oncommit_nats: AnyServer, mode: str
) -> None:
    # The servers of tests do without; but nothing is sent behind a commit that may yet be lost.
    execute(empty_database.dsn, f'ALTER DATABASE "{empty_database.name}" SET synchronous_commit = on')
    there = ("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    (found,) = measured(*LATENCY, *there, "--mode", mode, "--idle-seconds", "0")
    assert (found["mode"], found["events"]) == (mode, 1.5 * RATE)
    # Nobody hears of a commit long before it was answered, and nobody waits for a second.
    assert -5 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"] < 60_000
    assert found["idle_cpu_percent"] is None
    behind = found["sent_behind_commit"]
    assert behind > 0 if mode == "optimistic" else behind == 0
    assert found["about"]["nats-py"]


def test_idling_and_the_table_on_servers_of_its_own(bench: Bench) -> None:
    done = bench(*LATENCY, "--mode", "poll", "--idle-seconds", "2")
    assert done.returncode == 0, done.stderr
    head, row, *_ = done.stdout.splitlines()
    assert head.split()[:3] == ["mode", "p50", "ms"]
    assert row.split()[0] == "poll"
    assert 0 <= float(row.split()[-1]) < 50
    assert "oncommit bench: poll" in done.stderr


def test_what_cannot_be(bench: Bench) -> None:
    for arguments, told in [
        (("--mode", "telepathy"), "choose from"),
        (("--broker", "redis"), "latency is measured with NATS"),
    ]:
        done = bench(*LATENCY, *arguments)
        assert done.returncode == 2
        assert told in " ".join(done.stderr.split())


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_that_so_many_are_not_above(values: list[int], percent: int) -> None:
    values.sort()
    found = percentile(values, percent)
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100
