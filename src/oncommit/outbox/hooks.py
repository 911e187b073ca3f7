"""What happens right after a commit: a wake-up, a first attempt to send, or whatever the application asks for.

Failure story: the transaction is committed and its events are safe before any of this runs. A hook that fails is logged
and changes nothing; a process that dies before its hook leaves the events to the relay's polling.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit.errors import ConfigError
from oncommit.message import Event

AfterCommit = Callable[[tuple[Event[Any], ...]], Awaitable[None] | None]

log = logging.getLogger("oncommit.outbox")

_FAILED: Final = "after_commit failed; its %d event(s) are committed and safe, first %s"
_NOT_AWAITED: Final = (
    "after_commit gave something to await, but this session is a blocking one; its %d event(s) are committed and safe, "
    "first %s: give a plain function"
)


class Added(msgspec.Struct):
    """What one transaction has added, as those behind its commit need it."""

    events: list[Event[Any]] = []
    reserved: list[UUID] = []
    """Ids of those that are to be sent at once."""
    size: int = 0
    """Of their payloads, in bytes, about."""

    def extend(self, other: Added) -> None:
        """More of the same transaction."""
        self.events += other.events
        self.reserved += other.reserved
        self.size += other.size

    def once(self) -> Added:
        """Each event once, though it was added again after its savepoint had been rolled back."""
        return Added(
            list({event.id: event for event in self.events}.values()), list(dict.fromkeys(self.reserved)), self.size
        )


class Behind:
    """All that happens behind a commit: reserved events go to the sender, relays hear of others, then the application.

    Everything that does not have to wait comes first, so that a slow hook delays nothing of ours.
    """

    def __init__(
        self,
        hook: AfterCommit | None,
        offer: Callable[[Sequence[UUID], int], None] | None,
        tell: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._hook = hook
        self._offer = offer
        self._tell = tell

    @property
    def is_wanted(self) -> bool:
        """Whether anything happens at all."""
        return self._hook is not None or self._offer is not None or self._tell is not None

    @property
    def hears(self) -> bool:
        """Whether somebody wants to hear of every commit."""
        return self._hook is not None or self._tell is not None

    def check_blocking(self) -> None:
        """Refuse what a blocking session cannot do, while there is still something to refuse."""
        if self._hook is not None:
            check_blocking(self._hook)

    def committed(self, added: Added) -> Awaitable[None] | None:
        """Never raises; what comes back is to be awaited."""
        self.send(added)
        return self.hear(added)

    def committed_blocking(self, added: Added) -> None:
        """The same where nothing can be awaited."""
        self.send(added)
        self.hear_blocking(added)

    def hear(self, added: Added) -> Awaitable[None] | None:
        """The application hears of it; what comes back is to be awaited."""
        return fire(self._hook, tuple(added.events)) if self._hook is not None and added.events else None

    def hear_blocking(self, added: Added) -> None:
        """The same where nothing can be awaited."""
        if self._hook is not None and added.events:
            fire_blocking(self._hook, tuple(added.events))

    def send(self, added: Added) -> None:
        """What does not wait: the sender and the relays are told."""
        if self._offer is not None and added.reserved:
            self._offer(added.reserved, added.size)
        if self._tell is not None and len(added.events) > len(added.reserved):
            reserved = set(added.reserved)
            self._tell({event.sink for event in added.events if event.id not in reserved})


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
