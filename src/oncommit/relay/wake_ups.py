"""From where a relay is woken: the database's notifications, a list in Redis, both or neither; below them, it polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from oncommit.identifiers import DEFAULT_SCHEMA
from oncommit.relay.listener import Connect, Listener
from oncommit.relay.wake_list import WakeList


class WakeUps(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, beside or instead of the database that is relayed."""

    listen_database: str | None = None
    """The same database past its pooler; without it, that which is relayed."""
    redis: str | None = None
    """URL of a Redis with the list ``outbox:wake:{service}``."""
    service: str = DEFAULT_SCHEMA

    def __repr__(self) -> str:
        """Without the URLs, which may hold passwords."""
        return f"WakeUps(service={self.service!r})"


class Sources:
    """What wakes one relay."""

    def __init__(self, wake: Callable[[str | None], None]) -> None:
        self._wake = wake
        self._sources: list[Listener | WakeList] = []

    def add_listener(self, dsn: str, schema: str, connect: Connect) -> None:
        """Listen there; ``connect`` leads to where writers are."""
        self._sources.append(Listener(dsn, schema, self._wake, connect))

    def add_list(self, url: str, service: str, others: Callable[[], int]) -> None:
        """Take from the list of this service; ``others`` says how many relays are to hear of it, too."""
        self._sources.append(WakeList(url, service, self._wake, others))

    @property
    def work(self) -> bool:
        """Whether wake-ups can arrive."""
        return any(source.works for source in self._sources)

    def start(self) -> list[asyncio.Task[None]]:
        """As tasks, which run until they are cancelled."""
        return [asyncio.create_task(source.run(), name="oncommit wake-ups") for source in self._sources]
