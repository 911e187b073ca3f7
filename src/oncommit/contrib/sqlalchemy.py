"""A Unit of Work on a SQLAlchemy session: collect events while you work, have them written with your rows.

Failure story. Collected events live in memory until the session's flush or commit writes them, in its own transaction.
A process that dies before loses events and business rows together; a savepoint that is rolled back takes what was
collected inside it along, and so does a session that is rolled back or closed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from oncommit.db.drivers.sqlalchemy_hooks import Waiting, sync_session
from oncommit.message import Event, SupportsEvent
from oncommit.outbox import Outbox

AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]
Collected = Event[Any] | SupportsEvent


class UnitOfWork:
    """Writes what was collected on a session when that session flushes or commits, after its own rows and in order.

    ``collect`` never touches the database, so it needs no await, and domain code can call it deep inside::

        unit = UnitOfWork(outbox)

        async with AsyncSession(engine) as session, session.begin():
            order = Order(...)
            session.add(order)
            unit.collect(session, OrderPlaced(order))

    A domain object (``to_event()``) is asked for its event only when it is written, after the flush, so that ids which
    the database gives out are known by then.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def collect(self, session: AnySession, *events: Collected) -> None:
        """Remember events for this session's next flush or commit. A wrong event raises here, not at the commit."""
        self._outbox.check(*[thing for thing in events if isinstance(thing, Event)])
        blocking = sync_session(session)
        waiting = self._waiting(blocking)
        for thing in events:
            waiting.append(blocking, thing)

    def _waiting(self, session: Session) -> Waiting[Collected]:
        # By the unit itself, not its address: the session keeps it alive as long as it holds its events.
        waiting: Waiting[Collected] | None = session.info.get(self)
        if waiting is None:
            waiting = session.info[self] = Waiting(session)
            event.listen(session, "after_flush_postexec", self._after_flush)
            event.listen(session, "before_commit", self._before_commit)
        return waiting

    def _after_flush(self, session: Session, _context: Any) -> None:
        self._write(session)

    def _before_commit(self, session: Session) -> None:
        session.flush()  # the business rows first, so that their locks come before the events' ids
        self._write(session)

    def _write(self, session: Session) -> None:
        """Write all that waits, unless inside a savepoint.

        There it would be wrong for what was collected before the savepoint: a rollback to it would take that along.
        Writing only what came inside would put later events before earlier ones. So savepoints wait for what is around
        them; it is the same commit.
        """
        if session.in_nested_transaction():
            return
        things = self._waiting(session).take()
        if things:
            self._outbox.add(session, *things)
