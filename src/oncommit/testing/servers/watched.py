"""The starter's end of the watchdog: one object per server, safe to use from any thread.

Failure story: see `_watchdog`. If the watchdog itself has died, every call here says so; nothing is retried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

from oncommit.testing.servers.errors import ServerError

SCRIPT = Path(__file__).with_name("_watchdog.py")


@dataclass(frozen=True)
class User:
    """An unprivileged user to become."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Program:
    """A command, and how to run it."""

    argv: list[str]
    cwd: str
    log: str
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    user: User | None = None

    def message(self) -> dict[str, Any]:
        """As the watchdog reads it."""
        fields = asdict(self)
        del fields["user"]
        return fields | {
            "uid": self.user.uid if self.user else None,
            "gid": self.user.gid if self.user else None,
        }


class Watched:
    """A folder and the processes working in it, which end with us."""

    def __init__(self, label: str) -> None:
        # -I -S: no site packages, no environment, so it is up in 30 ms and cannot be misled.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(os.getpid()), f"oncommit:{label}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self._lock = threading.Lock()
        self.label = label

    @property
    def pid(self) -> int:
        """The watchdog's own process."""
        return self._process.pid

    def folder(self, base: Path, user: User | None) -> Path:
        """Make the folder that goes when we go."""
        uid, gid = (user.uid, user.gid) if user else (None, None)
        answer = self._ask("folder", base=str(base), prefix=f"oncommit-{self.label}-", uid=uid, gid=gid)
        return Path(answer["folder"])

    def run(self, program: Program, seconds: float = 60) -> None:
        """Run to the end; an exit status other than 0 is an error."""
        status = self._ask("run", program=program.message(), seconds=seconds)["exit"]
        if status != 0:
            how = f"did not end within {seconds:.0f} s" if status is None else f"exit status {status}"
            raise ServerError(f"{program.argv[0]}: {how}")

    def spawn(self, program: Program, *, main: bool) -> int:
        """Start; `main` is the one whose life is the server's life."""
        return int(self._ask("spawn", program=program.message(), main=main)["pid"])

    def alive(self) -> bool:
        """Whether the main program runs."""
        return bool(self._ask("alive")["alive"])

    def pids(self) -> list[int]:
        """All processes below the watchdog."""
        return list(self._ask("tree")["pids"])

    def segment(self, pidfile: Path) -> None:
        """Remove, at the end, the shared memory segment that this PostgreSQL pid file names."""
        self._ask("segment", pidfile=str(pidfile))

    def signal(self, number: Signals) -> None:
        """To every process of the tree; after SIGKILL none is left."""
        self._ask("signal", number=int(number))

    def stop(self, number: Signals, seconds: float) -> bool:
        """Ask the main program to end, then kill what is left. False: it had to be killed."""
        return bool(self._ask("stop", number=int(number), seconds=seconds)["graceful"])

    def close(self) -> None:
        """Kill everything, remove the folder, end the watchdog. Twice is fine."""
        with self._lock:
            stdin, stdout = self._pipes()
            if not stdin.closed:
                with suppress(BrokenPipeError):  # it has died before us
                    stdin.write(b'{"do": "close"}\n')
                    stdin.flush()
                    stdout.readline()
                with suppress(BrokenPipeError):
                    stdin.close()
                stdout.close()
            self._process.wait()

    def _pipes(self) -> tuple[Any, Any]:
        return self._process.stdin, self._process.stdout

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        with self._lock:
            stdin, stdout = self._pipes()
            if stdin.closed:
                raise ServerError(f"{self.label} is closed; make a new one.")
            try:
                stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            raise ServerError(f"The watchdog of {self.label} (pid {self.pid}) has ended, the server with it.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServerError(f"{self.label}: {answer['error']}")
        return answer
