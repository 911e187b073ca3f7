"""Servers for a developer to play with: started once, found again by a file, stopped by name.

Each runs under a "holder", a detached process that starts it as a test run would and waits for SIGTERM. Failure
story: a holder that is killed takes its server with it (by the watchdog). It holds a lock on `<name>.lock` for its
whole life, so whether a server runs is a question to the lock, not to a pid that may be somebody else's by now;
a state file without a held lock is a leftover and gets removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from oncommit.testing.servers.catalog import CATALOG
from oncommit.testing.servers.errors import ServerError

POLL = 0.05


@dataclass(frozen=True)
class Running:
    """What is known about a server that is up."""

    name: str
    version: str
    url: str
    address: str
    variable: str
    pid: int
    log: str


def runtime_folder() -> Path:
    """A folder of this user alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "oncommit" if base else Path(tempfile.gettempdir()) / f"oncommit.{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if seen.st_uid != os.geteuid() or not stat.S_ISDIR(seen.st_mode) or seen.st_mode & 0o077:
        raise ServerError(f"{folder} is not a folder of yours alone; remove it, or set XDG_RUNTIME_DIR.")
    return folder


@contextmanager
def held_lock(folder: Path, name: str) -> Iterator[bool]:
    """Try to take the lock of that server; True if it was free, and then it is ours within the block."""
    with (folder / f"{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def held_lock_soon(folder: Path, name: str) -> Iterator[bool]:
    """The same, but somebody who only looks (`status`, say) has the lock for a moment: try for two seconds."""
    deadline = time.monotonic() + 2
    while True:
        with held_lock(folder, name) as free:
            if free or time.monotonic() > deadline:
                yield free
                return
        time.sleep(POLL)


def is_held(folder: Path, name: str) -> bool:
    """Whether a holder of that server lives."""
    with held_lock(folder, name) as free:
        return not free


def running(folder: Path, name: str) -> Running | None:
    """The server of that name, if it is up."""
    state = folder / f"{name}.json"
    with held_lock(folder, name) as free:
        if free:
            state.unlink(missing_ok=True)
            return None
    try:
        return Running(**json.loads(state.read_text()))
    except FileNotFoundError:
        return None  # starting or stopping just now


def hold(name: str, *, durable: bool) -> None:
    """Be the holder: start, tell where, wait for SIGTERM, stop. Runs in a process of its own."""
    folder = runtime_folder()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    with held_lock_soon(folder, name) as free:
        if not free:
            raise ServerError(f"{name} is being started or stopped by somebody else.")
        state = folder / f"{name}.json"
        entry = CATALOG[name]
        try:
            with entry.make(durable) as server:
                log = str(server.home.log)
                told = Running(name, server.version, server.url, server.address, entry.variable, os.getpid(), log)
                draft = state.with_suffix(".new")
                draft.write_text(json.dumps(asdict(told)))
                draft.rename(state)
                while True:
                    signal.pause()
        finally:
            state.unlink(missing_ok=True)


def up(names: list[str], *, durable: bool, timeout: float = 180) -> list[Running]:
    """Start what is not up yet, all at once, and wait for all."""
    folder = runtime_folder()
    holders = {name: _start_holder(folder, name, durable=durable) for name in names if not running(folder, name)}
    deadline = time.monotonic() + timeout
    try:
        found = [_wait_until_up(folder, name, holders.get(name), deadline) for name in names]
    except BaseException:
        for holder in holders.values():
            holder.terminate()
        raise
    for holder in holders.values():
        # Its life is no longer our business; tells Popen so that it doesn't warn.
        holder.returncode = 0
    return found


def down(names: list[str], timeout: float = 60) -> list[str]:
    """Stop those that are up; all at once, then wait. The names of those that were."""
    folder = runtime_folder()
    found = [one for one in (running(folder, name) for name in names) if one]
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    for one in found:
        while is_held(folder, one.name):
            if time.monotonic() > deadline:
                raise ServerError(f"{one.name} (pid {one.pid}) did not stop within {timeout:.0f} s.")
            time.sleep(POLL)
    return [one.name for one in found]


def status() -> list[Running]:
    """All that are up."""
    folder = runtime_folder()
    return [one for one in (running(folder, name) for name in CATALOG) if one]


def _start_holder(folder: Path, name: str, *, durable: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "oncommit.testing.servers", "hold", name]
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen(
            [*command, "--durable"] if durable else command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )


def _wait_until_up(folder: Path, name: str, holder: subprocess.Popen[bytes] | None, deadline: float) -> Running:
    while not (found := running(folder, name)):
        ended = holder is not None and holder.poll() is not None
        if ended or time.monotonic() > deadline:
            said = (folder / f"{name}.out").read_text(errors="replace").strip() or "it said nothing"
            raise ServerError(f"{name} did not come up: {said}")
        time.sleep(POLL)
    return found
