"""Things that wait for the end of a SQLAlchemy session's transaction: callbacks behind its commit, collected events.

What waits belongs to the innermost transaction that was open when it came. A savepoint that is released hands it to the
transaction around it; one that is rolled back, or a session that is closed without a commit, drops it. Core connections
have no event behind their commit, so there is nothing of this for them.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import ScopedRegistry, await_only

T = TypeVar("T")
Callback = tuple[Connection, Callable[[], Any]]

_KEY: Final = "oncommit.after_commit"
_DUE: Final = "oncommit.committed"


class Waiting(Generic[T]):
    """Items of one session, each with the transaction or savepoint that it stands and falls with."""

    def __init__(self, session: Session) -> None:
        self._items: list[tuple[SessionTransaction | None, T]] = []
        event.listen(session, "after_commit", self._released)
        event.listen(session, "after_transaction_end", self._ended)

    def append(self, session: Session, item: T) -> None:
        """Wait with what is open now; the session's first use begins its transaction."""
        owner = session.get_nested_transaction() or session.get_transaction() or session.begin()
        self._items.append((owner, item))

    def take(self) -> list[T]:
        """All that waits, in the order in which it came; nothing waits afterwards."""
        items = [item for _, item in self._items]
        self._items.clear()
        return items

    def _released(self, session: Session) -> None:
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            around = savepoint.parent
            self._items = [(around if owner is savepoint else owner, item) for owner, item in self._items]

    def _ended(self, _session: Session, transaction: SessionTransaction) -> None:
        """Whatever still belongs to a transaction that has ended did not commit."""
        self._items = [(owner, item) for owner, item in self._items if owner is not transaction]


def on_commit(handle: Any, callback: Callable[[], Any]) -> None:
    """Run the callback once the session's transaction has committed; forget it when that is rolled back."""
    session = sync_session(handle)
    waiting: Waiting[Callback] | None = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = Waiting(session)
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _fire)
    waiting.append(session, (session.connection(), callback))


def awaits(handle: Any) -> bool:
    """Whether this session's commit can wait for something async: a Session inside ``AsyncSession.run_sync`` can."""
    try:
        return bool(unscoped(handle).get_bind().dialect.is_async)
    except SQLAlchemyError:  # several databases, none, closed: its own error says so better
        return True


def tells(handle: Any) -> bool:
    """Whether this session will hear of the commit: not surely where it works in somebody else's transaction."""
    try:
        return not isinstance(sync_session(handle).get_bind(), Connection)
    except SQLAlchemyError:  # as in awaits
        return False


def unscoped(handle: Any) -> Any:
    """The session that a scoped one stands for."""
    registry = getattr(handle, "registry", None)
    return registry() if isinstance(registry, ScopedRegistry) else handle


def sync_session(handle: Any) -> Session:
    """The Session behind an AsyncSession or a scoped one."""
    handle = unscoped(handle)
    session: Session = getattr(handle, "sync_session", handle)
    return session


def _committed(session: Session) -> None:
    """Put aside what has committed.

    A session that joined somebody else's transaction (``Session(bind=connection)``) says it has committed when it has
    not, and will never know. Then there is no hook, as on any Core connection.
    """
    if session.in_nested_transaction():  # a savepoint was released; nothing has committed yet
        return
    waiting: Waiting[Callback] = session.info[_KEY]
    session.info[_DUE] = [callback for connection, callback in waiting.take() if not connection.in_transaction()]


def _fire(session: Session, transaction: SessionTransaction) -> None:
    """Call it when the transaction has ended, not before: until then the session keeps its connection from the pool."""
    if transaction.parent is not None:
        return
    for callback in session.info.pop(_DUE, ()):
        outcome = callback()
        # Under AsyncSession we are inside its greenlet, where an awaitable can be waited for.
        if isawaitable(outcome):
            await_only(outcome)
