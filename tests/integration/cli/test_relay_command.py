"""`oncommit relay` as a process: what it says, what it does, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import asyncpg
import nats
import pytest
from nats.js.client import JetStreamContext

from oncommit import Event, Outbox
from oncommit.brokers import registry
from oncommit.cli.main import run
from oncommit.cli.options import option_of
from oncommit.cli.relay import command as relay_command
from oncommit.cli.relay import sink_settings
from oncommit.config import Found, definitions
from oncommit.errors import ConfigError, MissingDependency
from oncommit.testing.servers import AnyServer, Database

NOBODY: Final = "postgresql://user:geheim@127.0.0.1:1/nowhere"
PATIENCE: Final = 30.0
# What a test of a process's end needs: a lease that nobody waits for.
LONG_LEASE: Final = ("--lease", "60")


class Program:
    """A relay, or another program, as a process, with its log line by line."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("oncommit", "relay"),
    ) -> None:
        command = [sys.executable, "-m", *program, *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        self.log: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self.process.stderr.close()
        self._lines.put("")

    def says(self, words: str) -> str:
        """Wait for a line of the log with these words."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                line = ""
            self.log.append(line)
            if words in line:
                return line
            assert line, f"it never said {words!r} but {self.log}"

    def ends(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def rest(self) -> list[str]:
        while self.log[-1:] != [""]:
            self.log.append(self._lines.get(timeout=PATIENCE))
        return self.log[:-1]


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "ONCOMMIT_DATABASE", "ONCOMMIT_BROKER", "ONCOMMIT_SINKS", "PGHOST", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    started: list[Program] = []

    def begin(*arguments: str, environment: dict[str, str] | None = None) -> Program:
        started.append(Program(*arguments, environment=environment))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()


@pytest.fixture
async def stream(oncommit_nats: AnyServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(oncommit_nats.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="commands", subjects=["events.>"])
    yield jetstream
    await jetstream.delete_stream("commands")
    await client.close()


async def add(database: Database, *, sink: str = "main") -> str:
    connection = await asyncpg.connect(database.dsn)
    try:
        event = Event("order.placed", aggregate=("order", 1), payload={"n": 1}, sink=sink)
        async with connection.transaction():
            await Outbox(sinks={"main", "audit"}).add(connection, event)
    finally:
        await connection.close()
    return str(event.id)


async def next_id(stream: JetStreamContext) -> str:
    subscription = await stream.subscribe("events.>", ordered_consumer=True)
    message = await subscription.next_msg(timeout=PATIENCE)
    await subscription.unsubscribe()
    return (message.headers or {})["message_id"]


async def counts(database: Database) -> tuple[int, int, int]:
    """Owned lanes, relays, claims."""
    connection = await asyncpg.connect(database.dsn)
    try:
        lanes = await connection.fetchval("SELECT count(*) FROM oncommit.outbox_lane WHERE owner IS NOT NULL")
        relays = await connection.fetchval("SELECT count(*) FROM oncommit.outbox_relay")
        claims = await connection.fetchval("SELECT count(*) FROM oncommit.outbox_claim")
    finally:
        await connection.close()
    return lanes, relays, claims


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_relays_and_a_signal_ends_it_gracefully(
    start: Start, database: Database, oncommit_nats: AnyServer, stream: JetStreamContext, number: signal.Signals
) -> None:
    relay = start("--database", database.dsn, "--broker", oncommit_nats.url, "--name", "one", *LONG_LEASE)
    said = relay.says("relay one serves main")
    assert said.split()[1:3] == ["INFO", "oncommit.relay:"]
    written = await add(database)
    assert await next_id(stream) == written
    assert (await counts(database))[:2] == (72, 1)
    relay.process.send_signal(number)
    relay.says(number.name)
    relay.says("relay one has stopped")
    assert relay.ends() == 0
    assert await counts(database) == (0, 0, 0)
    assert all(" oncommit.relay: " in line for line in relay.rest())


async def test_the_environment_names_brokers_and_database(
    start: Start, database: Database, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    relay = start(
        environment={
            "DATABASE_URL": database.dsn,
            "ONCOMMIT_BROKER": oncommit_nats.url,
            "ONCOMMIT_SINKS": f"audit={oncommit_nats.url}",
        }
    )
    assert "audit to nats://" in relay.says("serves main to nats://")
    written = await add(database, sink="audit")
    assert await next_id(stream) == written
    relay.process.terminate()
    assert relay.ends() == 0


def test_missing_tables_end_it_with_4_and_the_way_out(
    start: Start, empty_database: Database, oncommit_nats: AnyServer
) -> None:
    relay = start("--database", empty_database.dsn, "--broker", oncommit_nats.url)
    assert "oncommit migrate" in relay.says("no tables of oncommit")
    assert relay.ends() == 4


def test_without_a_database_it_goes_on_trying_until_it_is_told(start: Start) -> None:
    relay = start("--database", NOBODY, "--broker", "nats://127.0.0.1:1")
    for _ in range(3):
        assert "geheim" not in relay.says("cannot be reached")
    relay.process.terminate()
    assert relay.ends() == 0


def test_a_second_signal_ends_it_at_once(start: Start, database: Database) -> None:
    # Nobody listens on this address: the sink is busy connecting, and the stop has to wait for it.
    relay = start("--database", database.dsn, "--broker", "nats://192.0.2.1:4222", *LONG_LEASE)
    relay.says("serves")
    relay.process.terminate()
    relay.says("again ends at once")
    relay.process.terminate()
    relay.says("ending at once")
    assert relay.ends() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--broker", "pigeon://geheim@loft"], "no adapter is known for a broker at pigeon://"),
        (["--broker", "localhost:4222"], "a broker is given as a URL"),
        ([], "no broker is given"),
        (["--sink", "nats://geheim@loft"], "--sink is NAME=URL"),
        (["--sink", "audit"], "the sink audit has no broker: say --sink audit=URL"),
        (["--broker", "nats://geheim@a", "--lease", "soon"], "--lease: must be a duration"),
        (["--broker", "nats://geheim@a", "--set", "relay.lase=3"], "did you mean relay.lease?"),
        (["--broker", "nats://geheim@a", "--preset", "live"], "--preset: must be one of dev, staging, prod"),
        (["--sink", "Audit=nats://geheim@loft"], "sink name 'Audit'"),
        (["--broker", "nats://geheim@a", "--sink", "main=nats://geheim@b"], "given twice"),
        (["--broker", "nats://geheim@a", "--lease", "2"], "must be shorter than the lease"),
        (["--broker", "nats://geheim@a", "--batch-rows", "0"], "--batch-rows: must be a whole number above zero"),
    ],
)
def test_what_cannot_be_ends_it_with_2(
    arguments: list[str], told: str, capfd: pytest.CaptureFixture[str], start: Start
) -> None:
    assert run(["relay", "--database", NOBODY, *arguments]) == 2
    _, err = capfd.readouterr()
    assert told in err
    assert "geheim" not in err


def test_sinks_keep_what_is_behind_the_first_equals_sign() -> None:
    assert sink_settings(None, ("a=nats://h?x=1",)) == {("sinks", "a", "broker"): Found("nats://h?x=1", "--sink")}


async def test_only_the_sinks_that_are_named_are_served(
    start: Start, database: Database, oncommit_nats: AnyServer, stream: JetStreamContext, tmp_path: Path
) -> None:
    (tmp_path / "oncommit.toml").write_text(
        f"""
        database = "{database.dsn}"
        [sinks.main]
        broker = "{oncommit_nats.url}"
        [sinks.audit]
        broker = "{oncommit_nats.url}"
        topic = "events.audit.{{type}}"
        """
    )
    relay = start("--sink", "audit")
    assert "main" not in relay.says("serves audit to nats://")
    await add(database)
    written = await add(database, sink="audit")
    subscription = await stream.subscribe("events.>", ordered_consumer=True)
    message = await subscription.next_msg(timeout=PATIENCE)
    assert (message.headers or {})["message_id"] == written
    assert message.subject == "events.audit.order.placed"
    relay.process.terminate()
    assert relay.ends() == 0
    assert (await counts(database))[0] == 0


def test_settings_are_shown_with_where_they_come_from_and_without_secrets(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "oncommit.toml").write_text('[retry."order.*"]\nmax_attempts = 3\n[relay]\nlease = 20\n')
    monkeypatch.setenv("ONCOMMIT_SINKS", "audit=nats://u:geheim@h:1")
    arguments = ["relay", "--database", NOBODY, "--preset", "dev", "--set", "retry.base=1s", "--show-settings"]
    assert run([*arguments, "--json"]) == 0
    out, _ = capfd.readouterr()
    told = {entry["name"]: (entry["value"], entry["from"]) for entry in json.loads(out)}
    assert told["relay.lease"] == ("20s", "relay.lease in oncommit.toml")
    assert told["relay.stop_timeout"] == ("5s", "preset dev")
    assert told["retry.base"] == ("1s", "retry.base in --set")
    assert told['retry."order.*".max_attempts'] == ("3", 'retry."order.*".max_attempts in oncommit.toml')
    assert told["sinks.audit.broker"] == ("nats://h:1", "ONCOMMIT_SINKS")
    assert told["database"] == ("127.0.0.1:1/nowhere as user", "--database")
    assert told["relay.archive"] == ("true", "default")
    assert told["preset"] == ("dev", "--preset")
    assert "geheim" not in out
    assert run(arguments) == 0
    out, _ = capfd.readouterr()
    assert "geheim" not in out
    assert re.search(r"^relay\.lease +20s +relay\.lease in oncommit\.toml$", out, re.MULTILINE)


# ── The registry ──────────────────────────────────────────────────────────────────────────────────


def test_a_missing_client_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ADAPTERS, "nats", registry.Adapter("a_client_that_is_nowhere.thing", "Broker", "nats"))
    with pytest.raises(MissingDependency, match=r"pip install 'oncommit\[nats\]'"):
        registry.make_broker("nats://localhost")


def test_a_module_of_ours_that_is_missing_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ADAPTERS, "nats", registry.Adapter("oncommit.brokers.nowhere", "Broker", "nats"))
    with pytest.raises(ModuleNotFoundError):
        registry.make_broker("nats://localhost")


def test_others_register_by_entry_point_and_cannot_take_our_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace()
    points = [SimpleNamespace(name=name, load=lambda: lambda _url: made) for name in ("pigeon", "nats")]
    monkeypatch.setattr(registry, "_others", lambda: points)
    assert registry.make_broker("pigeon://loft") is made
    assert registry.make_broker("NATS://localhost") is not made
    assert registry.schemes() == [*registry.ADAPTERS, "pigeon"]
    with pytest.raises(ConfigError, match=r"there are: .*nats.*, pigeon"):
        registry.make_broker("owl://tower")


def test_a_broker_is_described_without_its_login() -> None:
    assert registry.describe_broker("nats://u:geheim@h:4222/x?token=geheim") == "nats://h:4222"
    assert "geheim" not in registry.describe_broker("nats://u:geheim@h:4222,nats://u:geheim@i:4222")


# ── oncommit stats ────────────────────────────────────────────────────────────────────────────────


async def test_stats_of_a_running_relay(
    start: Start, database: Database, oncommit_nats: AnyServer, stream: JetStreamContext
) -> None:
    relay = start("--database", database.dsn, "--broker", oncommit_nats.url, "--name", "one", *LONG_LEASE)
    await add(database)
    await next_id(stream)
    stats = [sys.executable, "-m", "oncommit", "stats", "--database", database.dsn, "--json"]
    done = await asyncio.to_thread(subprocess.run, stats, capture_output=True, check=True, timeout=60)
    told = json.loads(done.stdout)
    (sink,) = told["sinks"]
    assert (sink["sink"], sink["lanes"], sink["lanes_without_owner"]) == ("main", 72, 0)
    (running,) = told["relays"]
    assert (running["name"], running["lanes"]) == ("one", {"main": 72})
    assert 0 <= running["heartbeat_age_seconds"] < 60
    assert relay.process.poll() is None


def test_the_guide_has_every_option() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/relay.md").read_text()
    table = guide.partition("## What it can be told")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(--[a-z-]+)", table))
    there = {name for parameter in relay_command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    of_settings = {option_of(entry) for entry in definitions()} - {"--preset"}
    assert told <= there
    switches = {f"--no-{name.removeprefix('--')}" for name in of_settings}
    assert there - told <= of_settings | switches | {"--verbose", "--archive"}
