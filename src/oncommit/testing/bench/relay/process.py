"""A relay as a process, watched from outside: its CPU time as it goes, and the most memory it ever had.

Failure story. It may end by itself: whoever waits for its work asks ``alive``, and gets the end of its log. It is asked
to end at the close, and killed if it does not. If we are killed, it gets SIGKILL from the kernel.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from oncommit.errors import OncommitError

_EVERY: Final = 0.02
_TICK: Final = os.sysconf("SC_CLK_TCK")
_END_WITHIN: Final = 40.0
_TAIL: Final = 15
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Sample(NamedTuple):
    """CPU seconds used by then."""

    at: float
    cpu: float


class Watched:
    """One process of a round. Use it as a context manager."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"") -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._folder = tempfile.TemporaryDirectory(prefix="oncommit-bench-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**_clean(os.environ), **environment},
            cwd=self._folder.name,  # where no settings file lies
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=_die_with_us,  # noqa: PLW1509 - one call of libc, nothing that could wait for a lock
        )
        assert self._process.stdin is not None
        self._process.stdin.write(stdin)
        self._process.stdin.close()
        self.peak_rss_mb = 0.0
        self._samples: list[Sample] = []
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="oncommit-bench-sampler", daemon=True)
        self._sampler.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises ``OncommitError`` with the end of its log where it has ended by itself."""
        if self._process.poll() is not None:
            raise OncommitError(f"the relay ended by itself ({self._process.returncode}): {self.log_tail()}")

    def cpu_seconds(self, begin: float, end: float) -> float:
        """CPU time between these moments of the clock on the wall."""
        return self._at(end) - self._at(begin)

    def close(self) -> None:
        """Let it end; its figures stay."""
        self._done.set()
        self._sampler.join()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def log_tail(self) -> str:
        """The last lines that it said."""
        self._log.seek(0)
        return " / ".join(self._log.read().decode(errors="replace").splitlines()[-_TAIL:]) or "it said nothing"

    def _at(self, moment: float) -> float:
        place = min(bisect_left(self._samples, moment, key=lambda sample: sample.at), len(self._samples) - 1)
        return self._samples[place].cpu

    def _sample(self) -> None:
        stat, status = (Path(f"/proc/{self._process.pid}/{name}") for name in ("stat", "status"))
        while not self._done.wait(_EVERY):
            try:
                # Behind the name, which may hold anything, in parentheses: fields 14 and 15 are user and system ticks.
                fields = stat.read_text().rpartition(")")[2].split()
                lines = status.read_text().splitlines()
            except OSError:
                return  # it has ended
            self._samples.append(Sample(time.time(), (int(fields[11]) + int(fields[12])) / _TICK))
            peak = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), "0")
            self.peak_rss_mb = max(self.peak_rss_mb, int(peak) / 1024)


def run_to_end(command: Sequence[str], stdin: bytes, *, timeout: float) -> bytes:
    """Run a side that ends by itself; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        input=stdin,
        capture_output=True,
        env=_clean(os.environ),
        timeout=timeout,
        check=False,
        preexec_fn=_die_with_us,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise OncommitError(f"a side of the benchmark failed: {last[0]}")
    return done.stdout


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Without settings of the caller's, which are for other databases and brokers."""
    theirs = ("ONCOMMIT_", "DATABASE_URL")
    return {name: value for name, value in environment.items() if not name.startswith(theirs)}


def _die_with_us() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
