"""However the process that started servers ends, nothing of them is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.servers.processes import alive, wait_until

STARTER = """
import json, os, signal, sys
from oncommit.testing.servers import named_server

servers = [named_server(name) for name in sys.argv[2:]]
for one in servers:
    one.start()
if sys.argv[1] == "forked":
    # A child that keeps all pipes of its parent open: the watchdog must not rely on the pipe alone.
    child = os.fork()
    if not child:
        signal.pause()
else:
    child = 0
print(json.dumps({
    "pids": [pid for one in servers for pid in [one.home.watched.pid, *one.pids()]],
    "folders": [str(one.home.folder) for one in servers],
    "ids": [os.stat(one.home.folder).st_uid for one in servers],
    "child": child,
}), flush=True)
if sys.argv[1] == "paused":
    for one in servers:
        one.pause()
    print("paused", flush=True)
if sys.argv[1] != "exit":
    signal.pause()
"""


@dataclass
class Started:
    process: subprocess.Popen[str]
    pids: list[int]
    folders: list[Path]
    ids: list[int]
    child: int


def start(how: str, *names: str, command: list[str] | None = None, env: dict[str, str] | None = None) -> Started:
    process = subprocess.Popen(
        [*(command or [sys.executable]), "-c", STARTER, how, *names],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to a group; this is the group
        env=env,
        cwd="/",
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    if how == "paused":
        process.stdout.readline()
    return Started(process, told["pids"], [Path(one) for one in told["folders"]], told["ids"], told["child"])


def assert_nothing_left(started: Started) -> None:
    assert wait_until(lambda: not any(alive(pid) for pid in started.pids))
    assert wait_until(lambda: not any(folder.exists() for folder in started.folders))


def segments() -> set[str]:
    """System V shared memory segments that nobody is attached to."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {fields[1] for fields in map(str.split, lines) if fields[6] == "0"}


@pytest.fixture(autouse=True)
def ends_of_starters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of these tests must be ours, and are chosen for what they leave behind."""
    for name in [name for name in os.environ if name.startswith("ONCOMMIT_TEST_")]:
        monkeypatch.delenv(name)


def finish(started: Started, number: signal.Signals) -> None:
    os.killpg(started.process.pid, number)
    with started.process:
        started.process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_nothing_is_left_after(number: signal.Signals) -> None:
    before = segments()
    names = ["postgres18", "nats"] + ["redis"] * bool(shutil.which("redis-server"))
    started = start("wait", *names)
    assert all(alive(pid) for pid in started.pids)
    assert all(folder.is_dir() for folder in started.folders)
    finish(started, number)
    assert_nothing_left(started)
    assert segments() <= before


@pytest.mark.skipif(not Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists(), reason="needs rabbitmq-server")
def test_nothing_is_left_of_rabbitmq_and_its_epmd() -> None:
    started = start("wait", "rabbitmq")
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in started.pids}
    assert {"beam.smp", "epmd"} <= names
    finish(started, signal.SIGKILL)
    assert_nothing_left(started)


def test_nothing_is_left_of_paused_servers() -> None:
    started = start("paused", "postgres18", "nats")
    finish(started, signal.SIGKILL)
    assert_nothing_left(started)


def test_nothing_is_left_after_an_exit_without_close() -> None:
    started = start("exit", "nats")
    with started.process:
        started.process.wait(10)
    assert_nothing_left(started)


def test_a_forked_child_with_the_same_pipes_keeps_nothing_alive() -> None:
    started = start("forked", "nats")
    try:
        os.kill(started.process.pid, signal.SIGKILL)
        with started.process:
            started.process.wait(10)
            assert alive(started.child)
            assert_nothing_left(started)
    finally:
        os.kill(started.child, signal.SIGKILL)


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Starts itself once more, since setpriv's own exec may still have root's rights.
CAN_RUN = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import oncommit, asyncpg']))"


def python_for_nobody() -> tuple[str, dict[str, str]]:
    """A Python that `nobody` can run, with our packages: this one, or the system's of the same version."""
    paths = ":".join(path for path in sys.path if path)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": paths}
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        if Path(python).exists():
            run = subprocess.run([*NOBODY, python, "-c", CAN_RUN], cwd="/", env=env, capture_output=True, check=False)
            if run.returncode == 0:
                return python, env
    pytest.skip("an unprivileged user can reach neither this Python nor the system's, or not this checkout")


@pytest.mark.skipif(os.geteuid() != 0, reason="is an unprivileged user already")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_an_unprivileged_user_can_start_them() -> None:
    python, env = python_for_nobody()
    with tempfile.TemporaryDirectory(prefix="oncommit-home-", dir="/tmp") as home:
        os.chown(home, 65534, 65534)
        env |= {"HOME": home, "TMPDIR": home}
        started = start("wait", "postgres18", "postgres15", "nats", command=[*NOBODY, python], env=env)
        assert started.ids == [65534] * 3
        assert all(str(folder).startswith(home) for folder in started.folders)
        finish(started, signal.SIGKILL)
        assert_nothing_left(started)
