"""Starts that go wrong, servers of others, and installations that the server's user cannot reach."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncommit.testing.servers.kinds.kafka as kafka_module
import oncommit.testing.servers.kinds.nats as nats_module
import oncommit.testing.servers.kinds.postgres as postgres_module
import oncommit.testing.servers.server as server_module
from oncommit.testing.servers import (
    AnyServer,
    ExternalServer,
    Server,
    ServerError,
    ServerPool,
    ServerUnavailable,
    kafka,
    named_server,
    nats,
    postgres,
)
from oncommit.testing.servers.place import reachable_by_others
from oncommit.testing.servers.ports import HIGHEST, LOWEST, ClaimedPort, claim_port
from oncommit.testing.servers.sql import fetch_value
from oncommit.testing.servers.watched import Program, Watched
from tests.integration.servers.processes import alive


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


@pytest.mark.parametrize("make", [postgres, nats], ids=["postgres", "nats"])
def test_a_port_lost_to_a_stranger_is_replaced(
    make: type[Server], listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = listener.getsockname()[1]
    offered: list[int] = []

    def offer() -> ClaimedPort:
        port = ClaimedPort(taken, socket.socket()) if not offered else claim_port()
        offered.append(port.number)
        return port

    monkeypatch.setattr(server_module, "claim_port", offer)
    with make() as one:
        assert len(offered) == 2
        assert one.port == offered[1] != taken
        assert one.ping()


def test_a_stranger_on_the_port_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stranger answers like ours would: the ping must look who it is."""
    with nats() as stranger:
        offered: list[int] = []

        def offer() -> ClaimedPort:
            port = ClaimedPort(stranger.port, socket.socket()) if not offered else claim_port()
            offered.append(port.number)
            return port

        monkeypatch.setattr(server_module, "claim_port", offer)
        with nats() as ours:
            assert ours.port != stranger.port


def test_a_claimed_port_is_not_given_twice() -> None:
    claims = [claim_port() for _ in range(50)]
    try:
        numbers = [claim.number for claim in claims]
        assert len(set(numbers)) == 50
        assert all(LOWEST <= number < HIGHEST for number in numbers)
    finally:
        for claim in claims:
            claim.release()


def test_a_failed_start_shows_and_keeps_its_log_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(ServerError, match="max_connections") as caught:
        postgres(18, settings={"max_connections": "many"}).start()
    kept = Path(re.findall(r"kept in (\S+) and", str(caught.value))[0])
    assert "max_connections" in kept.read_text()
    kept.unlink()
    assert not list(tmp_path.iterdir())


def test_a_start_that_takes_too_long_says_so() -> None:
    one = Server(nats_module.NatsRecipe(durable=False, settings={}), start_timeout=0.5)
    # Listens elsewhere than where it is asked.
    one.recipe.url = lambda _port: "nats://127.0.0.1:1"  # type: ignore[method-assign]
    with pytest.raises(ServerError, match="gave no answer within") as caught:
        one.start()
    Path(re.findall(r"kept in (\S+) and", str(caught.value))[0]).unlink()


def test_what_is_not_installed_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match=r"apt-get install postgresql-9.*ONCOMMIT_TEST_POSTGRES9_DSN"):
        postgres(9).start()
    monkeypatch.setenv("ONCOMMIT_KAFKA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kafka_module, "__file__", str(tmp_path / "a/b/c/d/e/kafka.py"))
    monkeypatch.delenv("ONCOMMIT_TOOLS", raising=False)
    with pytest.raises(ServerUnavailable, match="ONCOMMIT_KAFKA_HOME"):
        kafka().start()


def test_the_pool_asks_once_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def missing(version: int) -> Path:
        asked.append(version)
        raise ServerUnavailable("not here")

    monkeypatch.delenv("ONCOMMIT_TEST_POSTGRES18_DSN", raising=False)
    monkeypatch.setattr(postgres_module, "find_binaries", missing)
    pool = ServerPool()
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            pool.get("postgres18")
    assert asked == [18]
    assert list(pool.missing) == ["postgres18"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the server runs as the user who owns the installation")
def test_an_installation_that_nobody_can_reach_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_module, "reachable_by_others", lambda _path: False)
    with postgres(18) as one:
        program = Path(f"/proc/{one.pids()[0]}/exe").resolve()
        assert program.is_relative_to(one.home.folder)


def test_a_folder_below_a_closed_one_is_out_of_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    closed.chmod(0o700)
    inner.chmod(0o755)
    assert not reachable_by_others(inner)
    assert reachable_by_others(Path("/usr/bin"))


# -- servers of others


def test_a_variable_replaces_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with nats() as running:
        monkeypatch.setenv("ONCOMMIT_TEST_NATS_URL", running.url)
        with named_server("nats") as one:
            assert isinstance(one, ExternalServer)
            assert one.version == running.version
            assert one.address == running.address
            assert one.port == running.port
            for act in (one.stop, one.kill, one.pause, one.resume, one.restart):
                with pytest.raises(ServerError, match="ONCOMMIT_TEST_NATS_URL"):
                    act()
        assert running.ping()


def test_an_external_server_that_is_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCOMMIT_TEST_REDIS_URL", "redis://127.0.0.1:1")
    with pytest.raises(ServerError, match="that ONCOMMIT_TEST_REDIS_URL names"):
        named_server("redis").start()


def test_kafkas_variable_is_a_list_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCOMMIT_TEST_KAFKA_BOOTSTRAP", "one:9092,two:9092")
    assert named_server("kafka").url == "kafka://one:9092,two:9092"
    assert named_server("kafka").address == "one:9092,two:9092"


def test_a_wrong_major_version_is_refused(postgres: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCOMMIT_TEST_POSTGRES15_DSN", postgres.dsn)
    with pytest.raises(ServerError, match="PostgreSQL 18"):
        named_server("postgres15").start()


# -- settings that matter


@pytest.mark.parametrize(("durable", "fsync"), [(True, "on"), (False, "off")])
def test_durable_postgres_syncs(durable: bool, fsync: str) -> None:
    with postgres(18, durable=durable, settings={"wal_level": "logical"}) as one:
        for name, value in {
            "fsync": fsync,
            "synchronous_commit": fsync,
            "wal_level": "logical",
            "max_connections": "200",
            "max_prepared_transactions": "10",
            "TimeZone": "UTC",
        }.items():
            assert fetch_value(one.dsn, "select current_setting($1)", name) == value


# -- the watchdog


def test_what_leaves_its_group_and_loses_its_parent_still_ends_with_the_rest(tmp_path: Path) -> None:
    """As `epmd` does, and PostgreSQL's backends when the postmaster dies."""
    watched = Watched("orphan")
    try:
        log = str(tmp_path / "log")
        command = ["sh", "-c", "(setsid sleep 300 &) ; exit 0"]
        watched.run(Program(command, cwd=str(tmp_path), log=log))
        (orphan,) = watched.pids()
        assert Path(f"/proc/{orphan}/comm").read_text() in ("sleep\n", "setsid\n")
    finally:
        watched.close()
    assert not alive(orphan)


def test_a_program_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    watched = Watched("nothing")
    try:
        missing = Program([str(tmp_path / "missing")], cwd=str(tmp_path), log=str(tmp_path / "log"))
        with pytest.raises(ServerError, match="missing"):
            watched.spawn(missing, main=True)
        assert not watched.alive()
    finally:
        watched.close()
