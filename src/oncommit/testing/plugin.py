"""The pytest plugin: real servers and fresh databases as fixtures. Loaded by every pytest that finds the package.

So it imports nothing heavy before a fixture is asked for. Servers start when first asked for, once a run (with
pytest-xdist: once a worker), and end with it. A server that cannot be had skips the test, or fails it where the
environment says `CI=true`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from oncommit.testing.servers import AnyServer, Database, Databases, ServerPool

# The suite's assertions explain themselves like those of any test.
pytest.register_assert_rewrite("oncommit.testing.conformance")

POOL: pytest.StashKey[ServerPool] = pytest.StashKey()
KEPT_LOGS = pytest.StashKey[list[str]]()
DEFAULT_POSTGRES = 18


def not_to_be_had(error: Exception) -> NoReturn:
    """Skip a test whose server cannot be had here; where the environment says `CI=true`, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, so everything has to be here. {error}", pytrace=False)
    pytest.skip(str(error))


def pytest_configure(config: pytest.Config) -> None:
    """The suite's mark."""
    config.addinivalue_line("markers", "oncommit_hangs_on(*names): left out where the class names one in `lacks`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases of the conformance suite that are not for this adapter are no tests of it; so none is skipped."""
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _is_left_out(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("oncommit_hangs_on")
    lacks: frozenset[str] = getattr(getattr(item, "cls", None), "lacks", frozenset())
    return mark is not None and not lacks.isdisjoint(mark.args)


@pytest.fixture(scope="session")
def oncommit_servers(request: pytest.FixtureRequest) -> Iterator[Callable[[str], AnyServer]]:
    """A function from a server's name ("postgres18", "nats", …) to the running server of this run."""
    from oncommit.testing.servers import ServerPool, ServerUnavailable

    pool = request.config.stash[POOL] = ServerPool()

    def get(name: str) -> AnyServer:
        try:
            return pool.get(name)
        except ServerUnavailable as error:
            not_to_be_had(error)

    yield get
    if request.session.testsfailed:
        folder = request.config.rootpath / ".pytest_cache" / "oncommit-logs"
        folder.mkdir(parents=True, exist_ok=True)
        request.config.stash[KEPT_LOGS] = [str(path) for path in pool.keep_logs(folder)]
    pool.close()


@pytest.fixture(scope="session")
def oncommit_postgres(request: pytest.FixtureRequest, oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """PostgreSQL 18; another version by `parametrize("oncommit_postgres", [15], indirect=True)`."""
    return oncommit_servers(f"postgres{getattr(request, 'param', DEFAULT_POSTGRES)}")


@pytest.fixture(scope="session")
def oncommit_nats(oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """NATS with JetStream."""
    return oncommit_servers("nats")


@pytest.fixture(scope="session")
def oncommit_redis(oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """Redis."""
    return oncommit_servers("redis")


@pytest.fixture(scope="session")
def oncommit_rabbitmq(oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """RabbitMQ."""
    return oncommit_servers("rabbitmq")


@pytest.fixture(scope="session")
def oncommit_kafka(oncommit_servers: Callable[[str], AnyServer]) -> AnyServer:
    """Kafka."""
    return oncommit_servers("kafka")


@pytest.fixture(scope="session")
def oncommit_make_template() -> Callable[[str], None]:
    """What fills the template of all test databases, given its DSN. Override it to run your own migrations too."""
    from oncommit.db.migrate import migrate
    from oncommit.testing.servers.sql import run_async

    def make_template(dsn: str) -> None:
        run_async(lambda: migrate(dsn))

    return make_template


@pytest.fixture(scope="session")
def oncommit_databases(
    oncommit_make_template: Callable[[str], None],
) -> Iterator[Callable[[AnyServer], Databases]]:
    """A function from a PostgreSQL server to the maker of databases on it; one template a server and run."""
    from oncommit.testing.servers import Databases

    made: dict[str, Databases] = {}

    def on(server: AnyServer) -> Databases:
        if server.name not in made:
            made[server.name] = Databases(server, oncommit_make_template)
        return made[server.name]

    yield on
    for databases in made.values():
        databases.close()


@pytest.fixture
def oncommit_database(
    oncommit_postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]
) -> Iterator[Database]:
    """A fresh migrated database of this test: `.dsn`, `.url("asyncpg")`. Dropped afterwards."""
    with oncommit_databases(oncommit_postgres).fresh() as database:
        yield database


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which servers were real, which versions, and what was not to be had."""
    pool = config.stash.get(POOL, None)
    if pool is None:
        return
    terminalreporter.section("oncommit servers")
    for name, told in pool.used.items():
        terminalreporter.line(f"{name:12} {told}")
    for name, error in (pool.missing | pool.broken).items():
        terminalreporter.line(f"{name:12} not available: {error}", yellow=True)
    terminalreporter.line(f"skipped: {', '.join(pool.missing) or 'nothing'}")
    for path in config.stash.get(KEPT_LOGS, []):
        terminalreporter.line(f"log kept: {path}")
