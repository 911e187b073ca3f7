"""A writer of every form on a database of its own, with the business table `orders` beside our tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from oncommit.testing.proxy import Proxy
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import WRITERS, Writer

ORDERS = "CREATE TABLE orders (event_id uuid PRIMARY KEY, key text NOT NULL, tag text NOT NULL)"


@pytest.fixture
def shop(database: Database) -> Database:
    """The newest PostgreSQL, with a business table."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
    return database


@pytest.fixture
def any_shop(any_database: Database) -> Database:
    """The oldest PostgreSQL, then the newest, with a business table."""
    with psycopg.connect(any_database.dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
    return any_database


@pytest.fixture
def observer(shop: Database) -> Iterator[Observer]:
    """Somebody else, who sees what is committed."""
    with Observer(shop.dsn) as seeing:
        yield seeing


@pytest.fixture(params=WRITERS, ids=lambda kind: kind.form)
def writer(request: pytest.FixtureRequest, shop: Database) -> Iterator[Writer]:
    """Each form in turn."""
    made = request.param(shop.dsn)
    yield made
    made.close()


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


@pytest.fixture
def other(writer: Writer) -> Iterator[Writer]:
    """A second writer of the same form."""
    made = type(writer)(writer.dsn)
    yield made
    made.close()
