"""Running the command as users do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Bench = Callable[..., subprocess.CompletedProcess[str]]
Measured = Callable[..., Any]


@pytest.fixture
def bench() -> Bench:
    """`oncommit …`, with these arguments, to its end."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "oncommit", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)

    return call


@pytest.fixture
def measured(bench: Bench) -> Measured:
    """The same with --json: what it printed, read."""

    def call(*arguments: str) -> Any:
        done = bench(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call
