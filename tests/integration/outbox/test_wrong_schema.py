"""W6: tables that are missing or old: the message says `oncommit migrate`, and the transaction stays usable."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from oncommit import Event, Outbox
from oncommit.errors import (
    SchemaMissing,
    SchemaOutdated,
)
from oncommit.testing.servers import Database
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.usable import INSERT
from tests.integration.outbox.writers import (
    AsyncConnectionAsyncpgWriter,
    AsyncpgWriter,
    DjangoWriter,
    PsycopgWriter,
    SessionWriter,
    Writer,
)

# -- The tables are not what they should be


@pytest.fixture
def spoilt(own_shop: Database) -> Iterator[Observer]:
    """A database to spoil."""
    with Observer(own_shop.dsn) as observer:
        yield observer


@pytest.fixture(
    params=[AsyncpgWriter, PsycopgWriter, SessionWriter, AsyncConnectionAsyncpgWriter, DjangoWriter],
    ids=lambda kind: kind.form,
)
def spoilt_writer(request: pytest.FixtureRequest, own_shop: Database) -> Iterator[Writer]:
    """One form of each driver, on the database that is spoilt."""
    made = request.param(own_shop.dsn)
    yield made
    made.close()


def test_missing_tables(spoilt_writer: Writer, spoilt: Observer) -> None:
    spoilt.rows("ALTER SCHEMA oncommit RENAME TO aside")
    outbox = Outbox()
    spoilt_writer.begin()
    for _ in range(2):
        with pytest.raises(SchemaMissing, match="run `oncommit migrate` against this database"):
            spoilt_writer.add(outbox, Event("order.placed"))
    with pytest.raises(SchemaMissing, match="--schema elsewhere"):
        spoilt_writer.add(Outbox(schema="elsewhere"), Event("order.placed"))
    order = uuid4()
    spoilt_writer.run(INSERT, order)
    spoilt_writer.commit()
    assert spoilt.orders() == {order}
    # Migrated at last: no restart is needed.
    spoilt.rows("ALTER SCHEMA aside RENAME TO oncommit")
    spoilt_writer.begin()
    spoilt_writer.add(outbox, event := Event("order.placed"))
    spoilt_writer.commit()
    assert spoilt.live() == [event.id]


def test_an_older_schema(spoilt_writer: Writer, spoilt: Observer) -> None:
    spoilt.rows("ALTER TABLE oncommit.outbox RENAME COLUMN saga_id TO other")
    spoilt_writer.begin()
    with pytest.raises(SchemaOutdated, match=r"oncommit\.outbox has no saga_id.*run `oncommit migrate`"):
        spoilt_writer.add(Outbox(), Event("order.placed"))
    order = uuid4()
    spoilt_writer.run(INSERT, order)
    spoilt_writer.commit()
    assert spoilt.orders() == {order}


def test_tables_that_vanish_later_are_still_explained(spoilt_writer: Writer, spoilt: Observer) -> None:
    """The look at the tables is made once; after it, PostgreSQL's own answer is translated."""
    outbox = Outbox()
    spoilt_writer.begin()
    spoilt_writer.add(outbox, Event("order.placed"))
    spoilt_writer.commit()
    spoilt.rows("ALTER SCHEMA oncommit RENAME TO aside")
    spoilt_writer.begin()
    with pytest.raises(SchemaMissing, match="run `oncommit migrate`"):
        spoilt_writer.add(outbox, Event("order.placed"))
    spoilt_writer.rollback()
