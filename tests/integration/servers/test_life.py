"""Every server through the same life: start, answer, kill, restart on the same data, pause, stop, nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oncommit.testing.plugin import POOL, not_to_be_had
from oncommit.testing.servers import (
    NotReady,
    Server,
    ServerError,
    ServerUnavailable,
    kafka,
    named_server,
    nats,
    pgbouncer,
    postgres,
    rabbitmq,
    redis,
)
from tests.integration.servers.marks import MARKS, Mark
from tests.integration.servers.processes import alive, process_group_of, wait_until

MAKERS: dict[str, Callable[[], Server]] = {
    "postgres18": lambda: postgres(18, durable=True),
    "postgres15": lambda: postgres(15, durable=True),
    "nats": lambda: nats(durable=True),
    "redis": lambda: redis(durable=True),
    "rabbitmq": rabbitmq,
    "kafka": lambda: kafka(durable=True),
}
HANDLES_IN_A_SECOND = ["postgres18", "nats", "redis"]


def started(name: str) -> Server:
    one = MAKERS[name]()
    try:
        one.start()
    except ServerUnavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        not_to_be_had(error)
    return one


@pytest.fixture(scope="module", params=list(MAKERS))
def one(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server for the tests of its life, which must find it up and leave it up."""
    one = started(request.param)
    request.getfixturevalue("oncommit_servers")
    # Those of the run are reported by the plugin; so are these, which live for their tests alone.
    request.config.stash[POOL].used.setdefault(one.name, f"{one.version} at {one.address} (for its own tests)")
    yield one
    one.close()


@pytest.fixture
def mark(one: Server) -> Mark:
    """How to leave something in that server, and to read it again."""
    return MARKS[one.name.rstrip("0123456789")]


def test_it_tells_its_version_and_where_it_is(one: Server) -> None:
    assert any(digit.isdigit() for digit in one.version)
    assert one.ping() == one.version
    assert str(one.port) in one.url
    assert one.address == f"127.0.0.1:{one.port}"
    assert one.alive()


def test_data_and_port_outlive_kill_9(one: Server, mark: Mark) -> None:
    port = one.port
    mark.before_crash(one)
    mark.leave(one, "before the kill")
    killed = one.pids()
    one.kill()
    assert not any(alive(pid) for pid in killed)
    assert not one.alive()
    with pytest.raises(NotReady):
        one.ping()
    one.start()
    assert one.port == port
    assert mark.read(one) == "before the kill"


def test_data_and_port_outlive_a_restart(one: Server, mark: Mark) -> None:
    port, before = one.port, one.pids()
    mark.leave(one, "before the restart")
    one.restart()
    assert one.port == port
    assert not set(before) & set(one.pids())
    assert mark.read(one) == "before the restart"


def test_a_paused_server_accepts_and_stays_silent(one: Server) -> None:
    one.pause()
    try:
        assert one.alive()
        assert {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in one.pids()} == {"T"}
        with pytest.raises(NotReady):
            one.ping()
    finally:
        one.resume()
    assert wait_until(lambda: answers(one))


def test_starting_what_runs_is_refused(one: Server) -> None:
    with pytest.raises(ServerError, match="runs already"):
        one.start()
    assert one.alive()


def answers(one: Server) -> bool:
    try:
        one.ping()
    except NotReady:
        return False
    return True


def test_stop_leaves_no_process_and_close_no_trace(one: Server) -> None:
    """The last of each server's life."""
    folder, pids, watchdog = one.home.folder, one.pids(), one.home.watched.pid
    one.stop()
    assert not any(alive(pid) for pid in pids)
    assert folder.is_dir()
    one.close()
    assert not folder.exists()
    assert not alive(watchdog)
    one.close()
    with pytest.raises(ServerError, match="not running"):
        _ = one.url


@pytest.mark.parametrize("name", HANDLES_IN_A_SECOND)
def test_a_paused_server_stops_and_closes(name: str) -> None:
    one = started(name)
    pids = one.pids()
    one.pause()
    begun = time.monotonic()
    one.stop()
    assert time.monotonic() - begun < 5
    one.start()
    one.pause()
    one.close()
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("name", ["postgres18", "nats", "redis", "rabbitmq"])
def test_two_at_once_are_two(name: str) -> None:
    with ThreadPoolExecutor(2) as threads:
        pair = list(threads.map(started, [name, name]))
    try:
        assert pair[0].port != pair[1].port
        mark = MARKS[name.rstrip("0123456789")]
        for number, one in enumerate(pair):
            mark.leave(one, f"number {number}")
        assert [mark.read(one) for one in pair] == ["number 0", "number 1"]
        pair[0].close()
        assert answers(pair[1])
    finally:
        for one in pair:
            one.close()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    with ThreadPoolExecutor(1) as threads:
        one = threads.submit(started, "nats").result()
    try:
        assert answers(one)
    finally:
        one.close()


def test_servers_are_out_of_reach_of_ctrl_c() -> None:
    one = started("nats")
    try:
        groups = {process_group_of(pid) for pid in [*one.pids(), one.home.watched.pid]}
        assert os.getpgrp() not in groups
    finally:
        one.close()


def test_killing_the_watchdog_kills_the_server() -> None:
    one = started("nats")
    folder, pids = one.home.folder, one.pids()
    os.kill(one.home.watched.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    with pytest.raises(ServerError, match="watchdog"):
        one.alive()
    one.close()
    # The one thing that nobody is left to do.
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_pgbouncer_passes_queries_on() -> None:
    try:
        with postgres(18) as behind, pgbouncer(behind) as one:
            assert one.version.startswith("PgBouncer before PostgreSQL 18")
            one.kill()
            with pytest.raises(NotReady):
                one.ping()
            one.start()
    except ServerUnavailable as error:
        not_to_be_had(error)


def test_names_that_are_not_there_are_told() -> None:
    with pytest.raises(ServerError, match="postgres18, postgres15, nats"):
        named_server("oracle")
