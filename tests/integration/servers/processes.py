"""Looking at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def process_group_of(pid: int) -> int:
    return os.getpgid(pid)


def wait_until(true: Callable[[], bool], seconds: float = 10) -> bool:
    """Poll with a deadline; what it was at the end."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
