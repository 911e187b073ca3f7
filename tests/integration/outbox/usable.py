"""What more than one file of these tests says."""

from __future__ import annotations

from oncommit import Event, Outbox
from tests.integration.outbox.observer import Observer
from tests.integration.outbox.writers import Writer

INSERT = "INSERT INTO orders VALUES ($1, 'k', 't')"


def assert_usable(writer: Writer, observer: Observer) -> None:
    """The transaction that is open goes on, and commits what it did before and after."""
    event = Event("order.placed")
    writer.run(INSERT, event.id)
    assert writer.add(Outbox(), event) == (event.id,)
    writer.commit()
    assert event.id in observer.live()
    assert event.id in observer.orders()
