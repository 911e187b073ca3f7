"""Every Python block of every page runs, page by page, against a real PostgreSQL.

The blocks of a page are one program, run from top to bottom, with `await` allowed at the top. What a reader need not
see stands in `<!-- test setup … -->` and `<!-- test teardown … -->`. A block that cannot run here says why:
```python notest="reason".
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

if TYPE_CHECKING:
    from oncommit.testing.servers import Database

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"})
BLOCK = re.compile(
    r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$"
    r"|^<!-- test (?:setup|teardown)\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)


def program(page: Path) -> str:
    """All blocks as one source, each on the lines where it stands on the page, so that errors point there."""
    text = page.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        info, code = block["info"] or "", block["code"] or block["hidden"]
        if "notest" in info:
            assert re.search(r'notest="[^"]{10,}"', info), f"{page.name}: say why this block is not run"
            continue
        start = text.count("\n", 0, block.start()) + 1
        lines.extend([""] * (start - len(lines)))
        lines.extend(code.splitlines())
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if program(page).strip() and page.name != "README.md"]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
async def test_page(
    page: Path, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    if "NATS_URL" in program(page):
        monkeypatch.setenv("NATS_URL", request.getfixturevalue("oncommit_nats").url)
    monkeypatch.chdir(tmp_path)
    code = compile(program(page), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names = {"__name__": f"snippets_{page.stem}"}
    with patch.dict(os.environ):  # what a page sets is not there for whoever comes next
        outcome = eval(code, names)
        if inspect.isawaitable(outcome):
            await outcome
