"""`oncommit demo`, as `make demo` runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from oncommit.cli import demo
from oncommit.testing.servers import Database


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oncommit", "demo", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_it_tells_is_in_the_database() -> None:
    done = run("--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["agrees"] is True
    assert [order["item"] for order in told["orders"]] == ["tea"]
    assert [(event["event_type"], event["aggregate_id"], event["state"]) for event in told["events"]] == [
        ("order.placed", "1", "pending")
    ]


def test_a_person_can_follow_it() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "rolled back: nobody can order nothing" in done.stdout
    assert "order.placed" in done.stdout


async def test_its_verdict_can_be_no(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = await demo.play(database.dsn, "PostgreSQL", lambda _: None)
    assert outcome.agrees
    for lie in (
        msgspec.structs.replace(outcome, events=[]),
        msgspec.structs.replace(outcome, orders=[]),
        msgspec.structs.replace(outcome, events=outcome.events * 2),
    ):
        assert not lie.agrees
        demo.report(lie, as_json=False)
        assert "do not agree" in capsys.readouterr().err
