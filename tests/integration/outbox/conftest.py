"""A writer of every form, on a database with the business table `orders` beside our tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import AnyServer, Database, Databases
from tests.integration.outbox.apart import Apart
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import WRITERS, Writer

ORDERS = "CREATE TABLE orders (event_id uuid PRIMARY KEY, key text NOT NULL, tag text NOT NULL)"
TABLES = "orders, oncommit.outbox, oncommit.outbox_delayed, oncommit.outbox_archive, oncommit.dead_letter"


@pytest.fixture(scope="module")
def shared_shop(postgres: AnyServer, oncommit_databases: Callable[[AnyServer], Databases]) -> Iterator[Database]:
    """One database for all tests of a module: making one takes longer than most of them."""
    with oncommit_databases(postgres).fresh() as fresh:
        _open(fresh)
        yield fresh


@pytest.fixture
def shop(shared_shop: Database) -> Database:
    """The newest PostgreSQL, all tables empty."""
    with psycopg.connect(shared_shop.dsn, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {TABLES}")
    return shared_shop


@pytest.fixture
def own_shop(database: Database) -> Database:
    """A database that a test may spoil."""
    _open(database)
    return database


@pytest.fixture
def any_shop(any_database: Database) -> Database:
    """The oldest PostgreSQL, then the newest."""
    _open(any_database)
    return any_database


def _open(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(ORDERS)


@pytest.fixture
def observer(shop: Database) -> Iterator[Observer]:
    """Somebody else, who sees what is committed."""
    with Observer(shop.dsn) as seeing:
        yield seeing


@pytest.fixture
def writer_of(shop: Database, request: pytest.FixtureRequest) -> Callable[[type[Writer]], Writer]:
    """A writer of this kind."""

    def make(kind: type[Writer]) -> Writer:
        made = kind(shop.dsn)
        request.addfinalizer(made.close)
        return made

    return make


@pytest.fixture(params=WRITERS, ids=lambda kind: kind.form)
def writer(request: pytest.FixtureRequest, writer_of: Callable[[type[Writer]], Writer]) -> Writer:
    """Each form in turn."""
    return writer_of(request.param)


@pytest.fixture
def other(writer: Writer) -> Iterator[Apart]:
    """A second writer of the same form, in a thread of its own, so that it can wait for the first."""
    with Apart(type(writer), writer.dsn) as apart:
        yield apart


@pytest.fixture
def proxy(shop: Database) -> Iterator[Proxy]:
    """Between a writer and the database."""
    with Proxy.to(shop.dsn) as between:
        yield between


@pytest.fixture
def far_writer_of(shop: Database, proxy: Proxy, request: pytest.FixtureRequest) -> Callable[[type[Writer]], Writer]:
    """A writer with the proxy between it and the database."""

    def make(kind: type[Writer]) -> Writer:
        made = kind(proxy.through(shop.dsn))
        request.addfinalizer(made.close)
        return made

    return make


@pytest.fixture(params=WRITERS, ids=lambda kind: kind.form)
def far_writer(request: pytest.FixtureRequest, far_writer_of: Callable[[type[Writer]], Writer]) -> Writer:
    """Each form in turn, by way of the proxy."""
    return far_writer_of(request.param)
