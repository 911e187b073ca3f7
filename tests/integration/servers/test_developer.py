"""`python -m oncommit.testing.servers`: up, found again, down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.servers.processes import alive, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="oncommit-runtime-") as folder:
        yield Path(folder)


@pytest.fixture
def run(runtime: Path) -> Iterator[Run]:
    env = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "oncommit.testing.servers", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=90)

    yield run
    run("down")


def found(run: Run, *words: str) -> list[dict[str, Any]]:
    result = run(*words, "--json")
    assert result.returncode == 0, result.stderr
    listed: list[dict[str, Any]] = json.loads(result.stdout)
    return listed


def test_up_status_down(run: Run, runtime: Path) -> None:
    assert found(run, "status") == []
    came_up = found(run, "up")
    assert [one["name"] for one in came_up] == ["postgres18", "nats"]
    assert all(one["url"].startswith(("postgresql://", "nats://")) for one in came_up)
    assert found(run, "status") == came_up
    assert found(run, "up") == came_up  # what is up stays as it is
    assert came_up[0]["url"] in run("status").stdout
    assert found(run, "down", "nats") == ["nats"]
    assert found(run, "status") == came_up[:1]
    assert found(run, "down") == ["postgres18"]
    assert found(run, "down") == []
    assert not any(alive(one["pid"]) for one in came_up)
    assert not any(Path(one["log"]).parent.exists() for one in came_up)
    assert not list((runtime / "oncommit").glob("*.json"))


def test_a_holder_killed_with_9_is_no_server(run: Run) -> None:
    (one,) = found(run, "up", "nats")
    os.kill(one["pid"], signal.SIGKILL)
    assert wait_until(lambda: not Path(one["log"]).parent.exists())
    assert found(run, "status") == []
    (other,) = found(run, "up", "nats")
    assert other["pid"] != one["pid"]


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "oncommit.testing.servers", "up", "redis"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert "apt-get install redis-server" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_names_are_a_usage_error(run: Run) -> None:
    result = run("up", "oracle")
    assert result.returncode == 2
    assert "postgres18" in result.stderr


def test_versions_lists_every_kind(run: Run) -> None:
    listed = {one["name"]: one for one in found(run, "versions")}
    assert {"postgres18", "postgres15", "nats", "redis", "rabbitmq", "kafka"} <= set(listed)
    assert all(bool(one["found"]) != bool(one["missing"]) for one in listed.values())


def test_a_runtime_folder_open_to_others_is_refused(run: Run, runtime: Path) -> None:
    (runtime / "oncommit").mkdir(mode=0o755)
    result = run("status")
    assert result.returncode == 1
    assert "yours alone" in result.stderr
    (runtime / "oncommit").chmod(0o700)
