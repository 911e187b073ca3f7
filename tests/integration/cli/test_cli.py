"""The command line, as programs and people call it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from oncommit import __version__
from oncommit.cli.main import COMMANDS, oncommit, run
from oncommit.cli.output import age, visible
from oncommit.db.migrate import latest_version, migrate
from oncommit.testing.servers import Database
from tests.integration.ops.world import DELAYED, FAILED, FILL, PARKED, SENT, URGENT

Call = Callable[..., tuple[int, str, str]]
NOBODY = "postgresql://user:geheim@127.0.0.1:1/nowhere"


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "ONCOMMIT_DATABASE", "ONCOMMIT_SCHEMA", "PGHOST", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs a command in this process: exit code, output, errors."""

    def called(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return called


@pytest.fixture
def world(database: Database) -> Database:
    """A database with an event in every state."""

    async def fill() -> None:
        connection = await asyncpg.connect(database.dsn)
        try:
            for statement in FILL.strip().split(";\n"):
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(fill())
    return database


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oncommit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


# ── The frame ─────────────────────────────────────────────────────────────────────────────────────


def test_version_and_help(call: Call) -> None:
    assert call("--version") == (0, f"oncommit {__version__}\n", "")
    code, out, _ = call("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    for name in COMMANDS:
        assert call(name, "--help")[0] == 0


def test_the_table_of_commands_is_what_click_finds() -> None:
    import click

    context = click.Context(oncommit)
    for name in COMMANDS:
        found = oncommit.get_command(context, name)
        assert found is not None
        assert found.name == name


def test_help_loads_no_driver_and_no_command() -> None:
    seen = program_modules("oncommit.cli.main", "run(['--help'])")
    heavy = {
        "asyncpg",
        "rich",
        "sqlalchemy",
        "psycopg",
        "oncommit.cli.migrate",
        "oncommit.cli.events",
        "oncommit.db.migrate",
    }
    assert not heavy & seen


def program_modules(module: str, act: str) -> set[str]:
    code = f"import sys; from {module} import *; {act}; print('', *sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines())


def test_usage_errors(call: Call) -> None:
    for wrong in (
        ["nonsense"],
        ["events", "list", "--bogus"],
        ["events", "list", "--limit", "0"],
        ["events", "list", "--limit", "1001"],
        ["events", "list", "--state", "sending"],
        ["events", "list", "--since", "yesterday"],
        ["events", "list", "--since", "2026-01-01T10:00"],
        ["events", "show", "42"],
        ["events", "by-aggregate", "order"],
        ["migrate", "--check", "--to", "2"],
        ["migrate", "--since", "2"],
        ["migrate", "--sql", "--schema", 'x"; drop'],
        ["migrate", "--sql", "--to", "99"],
        ["migrate"],
    ):
        code, out, err = call(*wrong)
        assert (code, out) == (2, ""), wrong
        assert err
        assert "Traceback" not in err


def test_errors_as_json(call: Call) -> None:
    code, out, err = call("migrate", "--database", NOBODY, "--json")
    assert (code, out) == (3, "")
    told = json.loads(err)
    assert (told["error"], told["exit_code"]) == ("DatabaseUnreachable", 3)
    assert "geheim" not in err
    code, _, err = call("events", "list", "--bogus", "--json")
    assert (code, json.loads(err)["exit_code"]) == (2, 2)


def test_unreachable_is_one_sentence_without_the_password(call: Call) -> None:
    for command in (["migrate"], ["migrate", "--status"], ["events", "list"], ["events", "show", str(uuid4())]):
        code, out, err = call(*command, "--database", NOBODY)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "127.0.0.1:1/nowhere" in err
        assert "geheim" not in err


def test_no_database_names_the_ways(call: Call) -> None:
    code, _, err = call("events", "list")
    assert code == 2
    assert all(way in err for way in ("--database", "ONCOMMIT_DATABASE", "oncommit.toml"))


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncommit.db.migration_files.sql", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["migrate", "--sql"])


def test_a_reader_that_leaves_is_no_error(world: Database) -> None:
    read, write = os.pipe()
    os.close(read)
    for command in (["events", "list", "--json"], ["events", "list"], ["migrate", "--sql"]):
        done = subprocess.run(
            [sys.executable, "-m", "oncommit", *command, "--database", world.dsn],
            stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), command
    os.close(write)


def test_settings_from_the_environment_and_from_a_file(database: Database, tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("ONCOMMIT_", "DATABASE_", "PG"))}
    assert program("migrate", "--check", env=bare | {"DATABASE_URL": database.url("asyncpg")}).returncode == 0
    (tmp_path / "oncommit.toml").write_text(f'database = "{database.dsn}"\nschema = "order"\n')
    done = program("migrate", "--check", env=bare, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.endswith("run: oncommit migrate --schema order\n")


# ── migrate ───────────────────────────────────────────────────────────────────────────────────────


def test_migrate_from_nothing(call: Call, empty_database: Database) -> None:
    where = ["--database", empty_database.dsn]
    assert call("migrate", "--check", *where)[0] == 4
    assert call("events", "list", *where)[0] == 4
    code, out, _ = call("migrate", "--status", *where)
    assert (code, out.count("pending")) == (0, latest_version())
    code, out, _ = call("migrate", "--to", "2", *where)
    assert (code, out.splitlines()[:2]) == (0, ["applied 1 ground", "applied 2 outbox"])
    code, _, err = call("migrate", "--check", *where)
    assert (code, f"is at version 2, this code needs {latest_version()}" in err) == (4, True)
    code, out, _ = call("migrate", "--json", *where)
    done = json.loads(out)
    assert (done["applied_now"], done["needs_migration"]) == (list(range(3, latest_version() + 1)), False)
    code, out, _ = call("migrate", *where)
    assert (code, out.startswith("nothing to do")) == (0, True)
    assert call("migrate", "--check", *where)[0] == 0
    status = json.loads(call("migrate", "--status", "--json", *where)[1])
    assert {entry["state"] for entry in status["migrations"]} == {"applied"}
    assert all(datetime.fromisoformat(entry["applied_at"]).tzinfo for entry in status["migrations"])


def test_a_newer_schema_passes_and_says_so(call: Call, database: Database) -> None:
    newer = "INSERT INTO oncommit.migration VALUES (99, 'future', 'x')"
    subprocess.run(["psql", "-Xqc", newer, database.dsn], check=True)
    code, out, _ = call("migrate", "--check", "--database", database.dsn)
    assert (code, "version 99, newer than this code" in out) == (0, True)
    assert "newer" in call("migrate", "--status", "--database", database.dsn)[1]


def test_a_conflict_fails(call: Call, database: Database) -> None:
    subprocess.run(["psql", "-Xqc", "UPDATE oncommit.migration SET checksum = 'x'", database.dsn], check=True)
    for command in (["migrate"], ["migrate", "--check"]):
        code, _, err = call(*command, "--database", database.dsn)
        assert (code, "another text" in err) == (1, True)
    assert "conflict" in call("migrate", "--status", "--database", database.dsn)[1]


def test_sql_as_text_and_as_json(call: Call) -> None:
    code, text, _ = call("migrate", "--sql", "--schema", "order", "--since", "2", "--to", "4")
    assert (code, text.count("DO $migration$"), '"order".outbox_lane' in text) == (0, 2, True)
    listed = json.loads(call("migrate", "--sql", "--schema", "order", "--since", "2", "--to", "4", "--json")[1])
    assert len(listed) == 2
    assert all(statement in text for statement in listed)


# ── events ────────────────────────────────────────────────────────────────────────────────────────

# What programs may rely on; the guide on events names the same.
FIELDS = {
    "id", "event_id", "state", "sink", "lane", "priority", "event_type", "aggregate", "aggregate_type",
    "aggregate_id", "key", "topic", "schema_version", "correlation_id", "causation_id", "saga_id", "attempts",
    "crashes", "max_attempts", "created_at", "available_at", "claimed_by", "claimed_at", "sent_at", "archived_at",
    "failed_at", "last_error", "cursor",
}  # fmt: skip
PAYLOAD_FIELDS = {"payload", "headers", "content_type", "data_base64"}


def test_events_as_json(call: Call, world: Database) -> None:
    code, out, _ = call("events", "list", "--json", "--database", world.dsn)
    events = json.loads(out)
    assert (code, len(events)) == (0, 10)
    assert {frozenset(event) for event in events} == {frozenset(FIELDS)}
    by_id = {event["event_id"]: event for event in events}
    assert by_id[str(URGENT)]["lane"] >= 64
    assert by_id[str(FAILED)]["state"] == "failed"
    assert by_id[str(DELAYED)]["available_at"].endswith("Z")
    events = json.loads(call("events", "list", "--json", "--payload", "--database", world.dsn)[1])
    assert {frozenset(event) for event in events} == {frozenset(FIELDS | PAYLOAD_FIELDS)}


def test_the_guide_names_every_field() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/events-cli.md").read_text(encoding="utf-8")
    assert all(f"`{field}`" in guide for field in FIELDS | PAYLOAD_FIELDS)


def test_filters_reach_the_query(call: Call, world: Database) -> None:
    for options, expected in (
        (["--state", "failed", "--state", "sent"], 2),
        (["--type", "order.placed"], 2),
        (["--aggregate", "order"], 9),
        (["--aggregate", "order/42", "--sink", "audit"], 1),
        (["--key", "house"], 1),
        (["--topic", "paid"], 1),
        (["--correlation", "talk-1"], 2),
        (["--since", "45m", "--until", "7m"], 3),
        (["--since", f"{datetime.now(UTC) - timedelta(minutes=45):%Y-%m-%dT%H:%MZ}"], 6),
        (["--until", "2020-01-01"], 0),
        (["--oldest", "--limit", "3"], 3),
    ):
        code, out, _ = call("events", "list", "--json", *options, "--database", world.dsn)
        assert (code, len(json.loads(out))) == (0, expected), options


def test_pages_by_cursor(call: Call, world: Database) -> None:
    seen = []
    after: list[str] = []
    while page := json.loads(call("events", "list", "--json", "--limit", "4", *after, "--database", world.dsn)[1]):
        seen += [event["event_id"] for event in page]
        after = ["--after", page[-1]["cursor"]]
    assert len(seen) == len(set(seen)) == 10


def test_tables_for_people(call: Call, world: Database) -> None:
    code, out, err = call("events", "list", "--database", world.dsn)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 11
    assert lines[0].split()[:4] == ["CREATED", "AGE", "STATE", "TYPE"]
    (failed,) = [line for line in lines if str(FAILED) in line]
    assert "order/42" in failed
    assert "BrokerTimeout: no answer" in failed
    assert "\x1b" not in out
    assert re.search(r"failed \(in (59m|1h)\)", failed)
    _, out, err = call("events", "list", "--limit", "3", "--database", world.dsn)
    assert len(out.splitlines()) == 4
    assert "--after " in err


def test_nothing_found_says_so(call: Call, database: Database) -> None:
    assert call("events", "list", "--database", database.dsn) == (0, "no events\n", "")
    assert call("events", "list", "--json", "--database", database.dsn)[1].strip() == "[]"
    assert call("events", "by-aggregate", "order/1", "--database", database.dsn)[1] == "no events\n"


def test_by_aggregate(call: Call, world: Database) -> None:
    events = json.loads(call("events", "by-aggregate", "order/42", "--json", "--database", world.dsn)[1])
    assert [events[0]["event_id"], events[-1]["event_id"]] == [str(SENT), str(DELAYED)]
    places = [event["id"] for event in events[:-1]]
    assert places == sorted(places)


def test_show(call: Call, world: Database) -> None:
    shown = json.loads(call("events", "show", str(SENT), "--json", "--database", world.dsn)[1])
    assert set(shown) == FIELDS | PAYLOAD_FIELDS
    assert (shown["payload"], shown["headers"], shown["state"]) == ({"n": 1}, {"a": "b"}, "sent")
    binary = json.loads(call("events", "show", str(FAILED), "--json", "--database", world.dsn)[1])
    assert (binary["payload"], binary["data_base64"], binary["content_type"]) == (None, "AP8=", "application/avro")
    _, out, _ = call("events", "show", str(FAILED), "--database", world.dsn)
    assert "2 bytes of application/avro" in out
    assert r"\x1b[31mred" in out
    assert "\x1b" not in out
    parked = json.loads(call("events", "show", str(PARKED), "--json", "--database", world.dsn)[1])
    assert parked["available_at"] == "infinity"
    assert "available_at    infinity\n" in call("events", "show", str(PARKED), "--database", world.dsn)[1]
    _, out, _ = call("events", "show", str(SENT), "--database", world.dsn)
    assert "a: b" in out
    assert '"n": 1' in out


def test_show_of_nothing(call: Call, world: Database) -> None:
    code, out, err = call("events", "show", str(uuid4()), "--database", world.dsn)
    assert (code, out) == (1, "")
    assert "no event" in err


def test_another_schema(call: Call, database: Database) -> None:
    asyncio.run(migrate(database.dsn, "order"))
    insert = "INSERT INTO \"order\".outbox (event_type) VALUES ('there')"
    subprocess.run(["psql", "-Xqc", insert, database.dsn], check=True)
    events = json.loads(call("events", "list", "--json", "--schema", "order", "--database", database.dsn)[1])
    assert [event["event_type"] for event in events] == ["there"]


@pytest.mark.parametrize("columns", [60, 200])
def test_on_a_terminal(world: Database, columns: int) -> None:
    """Whole ids, however narrow; times of day only where there is room."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "oncommit", "events", "list", "--type", "order.sent", "--database", world.dsn],
        stdout=follower, env=environment,
    ) as started:  # fmt: skip
        assert started.wait(timeout=60) == 0
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert str(FAILED) in shown
    assert ("CREATED" in shown) == (columns == 200)


# ── Small things ──────────────────────────────────────────────────────────────────────────────────


def test_ages() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for seconds, told in (
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (7200, "2h"),
        (200_000, "2d"),
        (-90, "in 1m"),
    ):
        assert age(now - timedelta(seconds=seconds), now) == told
    assert age(None) == ""


def test_control_characters_are_shown() -> None:
    assert visible("a\x1b[31m\n\u202eü漢") == "a\\x1b[31m\\n\\u202eü漢"
