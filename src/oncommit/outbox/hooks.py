"""What happens right after a commit: a wake-up, a first attempt to send, or whatever the application asks for.

Failure story: the transaction is committed and its events are safe before any of this runs. A hook that fails is logged
and changes nothing; a process that dies before its hook leaves the events to the relay's polling.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final

from oncommit.errors import ConfigError
from oncommit.message import Event

AfterCommit = Callable[[tuple[Event[Any], ...]], Awaitable[None] | None]

log = logging.getLogger("oncommit.outbox")

_FAILED: Final = "after_commit failed; its %d event(s) are committed and safe, first %s"
_NOT_AWAITED: Final = (
    "after_commit gave something to await, but this session is a blocking one; its %d event(s) are committed and safe, "
    "first %s: give a plain function"
)


def fire(hook: AfterCommit, events: tuple[Event[Any], ...]) -> Awaitable[None] | None:
    """Call the hook. Its failure is logged here and goes no further; an asyncio hook gives what is to be awaited."""
    try:
        outcome = hook(events)
    except Exception:
        log.exception(_FAILED, len(events), events[0].id)
        return None
    return _guarded(outcome, events) if isawaitable(outcome) else None


def check_blocking(hook: AfterCommit) -> None:
    """Refuse an async hook for a blocking session, while there is still something to refuse."""
    if iscoroutinefunction(hook) or iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004 - not whether
        msg = "after_commit is an async function, but this session is a blocking one: give a plain function"
        raise ConfigError(msg)


def fire_blocking(hook: AfterCommit, events: tuple[Event[Any], ...]) -> None:
    """Call the hook where nothing can be awaited. Too late for errors: what it hides behind a plain face is logged."""
    try:
        outcome = hook(events)
    except Exception:
        log.exception(_FAILED, len(events), events[0].id)
        return
    if isawaitable(outcome):
        getattr(outcome, "close", getattr(outcome, "cancel", lambda: None))()
        log.error(_NOT_AWAITED, len(events), events[0].id)


async def _guarded(outcome: Awaitable[None], events: tuple[Event[Any], ...]) -> None:
    try:
        await outcome
    except Exception:
        log.exception(_FAILED, len(events), events[0].id)
