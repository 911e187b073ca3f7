"""What SQLAlchemy's Session tells of its transactions, turned into callbacks that run after the commit and never else.

A callback belongs to the innermost transaction that was open when it was registered. A savepoint that is released
hands its callbacks to the transaction around it; one that is rolled back, or a session that is closed without a commit,
drops them. Core connections have no event behind their commit, so they have no hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

_KEY: Final = "oncommit.after_commit"

Waiting = list[tuple[SessionTransaction | None, Callable[[], Any]]]


def on_commit(handle: Any, callback: Callable[[], Any]) -> None:
    """Run the callback once the session's transaction has committed; forget it when that is rolled back."""
    session = sync_session(handle)
    waiting: Waiting | None = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = []
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_end)
    waiting.append((innermost(session), callback))


def sync_session(handle: Any) -> Session:
    """The Session behind an AsyncSession or a scoped one."""
    if hasattr(handle, "registry"):
        handle = handle.registry()
    session: Session = getattr(handle, "sync_session", handle)
    return session


def innermost(session: Session) -> SessionTransaction | None:
    """The savepoint we are in, else the transaction."""
    return session.get_nested_transaction() or session.get_transaction()


def _after_commit(session: Session) -> None:
    waiting: Waiting = session.info[_KEY]
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        around = savepoint.parent
        waiting[:] = [(around if owner is savepoint else owner, callback) for owner, callback in waiting]
        return
    due = [callback for _, callback in waiting]
    waiting.clear()
    for callback in due:
        outcome = callback()
        # Under AsyncSession we are inside its greenlet, where an awaitable can be waited for.
        if isawaitable(outcome):
            await_only(outcome)


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    """Whatever still belongs to a transaction that has ended did not commit."""
    waiting: Waiting = session.info[_KEY]
    waiting[:] = [(owner, callback) for owner, callback in waiting if owner is not transaction]
