"""`oncommit run`: somebody's own loops as a process, and what it says of a path that leads nowhere."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from oncommit.cli.main import run
from oncommit.testing.servers import Database
from tests.integration.cli.test_relay_command import Program, add, counts
from tests.integration.relay.tools import until

Start = Callable[..., Program]

TWO_RELAYS = """
    import os
    from oncommit.relay.local import LocalBroker
    from oncommit.relay.relay import Relay
    from oncommit.relay.settings import RelaySettings
    from oncommit.runtime.several import Several

    SETTINGS = RelaySettings(lease=60.0)

    async def handle(event, connection):
        await connection.execute("CREATE TABLE IF NOT EXISTS handled (sink text)")
        await connection.execute("INSERT INTO handled VALUES ($1)", event.sink)

    def relay(sink):
        broker = LocalBroker({"order.placed": handle})
        return Relay(os.environ["DATABASE_URL"], {sink: broker}, settings=SETTINGS, name=sink)

    one = relay("main")

    def both():
        return Several(one, relay("audit"))

    class Told:
        relay = one

    class Failing:
        async def run(self):
            raise LookupError("it cannot go on")

        def stop(self):
            pass

    def half():
        return Several(one, Failing())

    number = 5
    _hidden = one
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_loops", raising=False)
    (tmp_path / "shop_loops.py").write_text(textwrap.dedent(TWO_RELAYS))
    started: list[Program] = []

    def begin(*arguments: str, environment: dict[str, str] | None = None) -> Program:
        started.append(Program(*arguments, environment=environment, program=("oncommit", "run")))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()


async def handled(database: Database, sink: str) -> None:
    connection = await asyncpg.connect(database.dsn)
    await until(connection, "SELECT count(to_regclass('handled'))", 1)
    await until(connection, f"SELECT count(*) FROM handled WHERE sink = '{sink}'", 1)
    await connection.close()


@pytest.mark.parametrize(
    ("path", "sinks"), [("shop_loops:both", ("main", "audit")), ("shop_loops:Told.relay", ("main",))]
)
async def test_it_runs_what_it_is_told_and_a_signal_ends_it_gracefully(
    start: Start, database: Database, path: str, sinks: tuple[str, ...]
) -> None:
    program = start(path, environment={"DATABASE_URL": database.dsn})
    program.says(f"{path} runs")
    for sink in sinks:
        await add(database, sink=sink)
        await handled(database, sink)
    assert (await counts(database))[:2] == (72 * len(sinks), len(sinks))
    program.process.send_signal(signal.SIGTERM)
    program.says("SIGTERM: finishing what is in flight")
    program.says(f"{path} has stopped")
    assert program.ends() == 0
    assert await counts(database) == (0, 0, 0)


def test_one_that_ends_by_itself_ends_the_others_and_its_error_is_told(start: Start, database: Database) -> None:
    program = start("shop_loops:half", environment={"DATABASE_URL": database.dsn})
    program.says("oncommit Failing has ended by itself, and the others are stopped")
    assert program.ends() == 1
    assert any("LookupError: it cannot go on" in line for line in program.rest())


def test_missing_tables_end_it_with_4(start: Start, empty_database: Database) -> None:
    program = start("shop_loops:one", environment={"DATABASE_URL": empty_database.dsn})
    program.says("oncommit migrate")
    assert program.ends() == 4


def test_from_elsewhere(
    start: Start, empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    environment = {"DATABASE_URL": empty_database.dsn}
    assert start("shop_loops:one", environment=environment).ends() == 2
    assert start("shop_loops:one", "--app-dir", "..", environment=environment).ends() == 4


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("shop_loops", "is no MODULE:NAME, such as shop.loops:relay"),
        (":one", "is no MODULE:NAME"),
        ("shop_loops:", "is no MODULE:NAME"),
        ("nowhere.loops:one", "there is no module 'nowhere' here"),
        ("shop_loops.deeper:one", "there is no module 'shop_loops.deeper' here"),
        ("shop_loops:two", "shop_loops:two: there is no 'two' in 'shop_loops'; it has one"),
        ("shop_loops:one.two", "there is no 'two' in"),
        ("shop_loops:number", "shop_loops:number: a int cannot be run: it needs run() and stop()"),
        ("shop_loops:Failing", "shop_loops:Failing: Failing cannot be run"),
    ],
)
def test_a_path_that_leads_nowhere_ends_it_with_2(
    start: Start, path: str, told: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:geheim@127.0.0.1:1/nowhere")
    assert run(["run", path]) == 2
    _, err = capfd.readouterr()
    assert told in err
    assert "geheim" not in err


def test_a_module_that_misses_another_says_so_itself(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken_loops.py").write_text("import a_package_that_is_nowhere\n")
    program = start("broken_loops:one")
    assert program.ends() == 1
    assert any("No module named 'a_package_that_is_nowhere'" in line for line in program.rest())
