"""The README's quick start, command by command, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
PROGRAMS = Path(sys.executable).parent
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Someone who types what the README says."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.printed: list[str] = []
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ONCOMMIT_", "DATABASE_URL", "PG"))
            },
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(runtime),
        }

    def types(self, command: str, expected: str) -> None:
        words = shlex.split(command, comments=True)
        if words[:2] == ["pip", "install"]:
            (extra,) = re.findall(r"\[(\w+)\]", words[2])
            assert extra in (metadata("oncommit").get_all("Provides-Extra") or [])
            return
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            assert value == "postgresql://…"
            self.environment[name] = re.findall(r"postgres(?:ql)?://\S+", self.printed[-1])[0]
            return
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip() == expected.strip() or not expected.strip(), command
        self.printed.append(done.stdout)


def test_quick_start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    quick_start = README.read_text(encoding="utf-8").split("## Quick start", 1)[1].split("\n## ", 1)[0]
    assert quick_start.count("\n") <= 75, "one screen"
    runtime = tmp_path_factory.mktemp("runtime")
    reader = Reader(tmp_path, runtime)
    try:
        for fence in FENCE.finditer(quick_start):
            if fence["kind"] == "python":
                (tmp_path / "shop.py").write_text(fence["body"], encoding="utf-8")
                continue
            for step in re.split(r"^\$ ", fence["body"], flags=re.MULTILINE)[1:]:
                command, _, expected = step.partition("\n")
                reader.types(command, expected)
    finally:
        reader.types("python -m oncommit.testing.servers down", "")
    events = next(text for text in reader.printed if "order.placed" in text)
    assert events.count("order.placed") == 1
    assert "pending" in events
