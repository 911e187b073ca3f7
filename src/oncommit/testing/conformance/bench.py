"""What the suite has to be told about a broker: how to reach it, hurt it, and look at what arrived.

Failure story. A bench looks with means of its own, never through the adapter that is tried, and connects for each look:
the server may have been killed since the last one. What it returns as arrived is complete at the moment of the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from oncommit.brokers.base import Broker
from oncommit.testing.proxy import Proxy


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """One message as the broker holds it."""

    headers: dict[str, str]
    body: bytes
    key: str | None = None
    """As the broker knows it; nothing where it knows no keys."""
    content_type: str | None = None
    """Of the protocol's own field; nothing where it is a header."""

    @property
    def message_id(self) -> str:
        """Which message it is."""
        return self.headers["message_id"]


class ServerControl(Protocol):
    """The server's life. The calls block. The servers of ``oncommit.testing.servers`` are such."""

    def start(self) -> None:
        """Start again after ``kill``, on the same data and port; returns when it answers."""

    def kill(self) -> None:
        """SIGKILL."""

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""

    def resume(self) -> None:
        """SIGCONT."""

    def alive(self) -> bool:
        """Whether it runs; paused counts."""


class WrongLogin(msgspec.Struct, frozen=True):
    """A URL that the server lets nobody in with, and the part of it that must never be shown."""

    url: str
    password: str


class Bench(ABC):
    """One broker to be tried. Make it once for all cases: they use topics of their own."""

    server: ServerControl
    carries_key = False
    """The broker is told the key of a message, apart from the headers."""
    durable = True
    """What is acknowledged outlasts the server's being killed."""
    ping_limit = 5.0
    """Seconds that the adapter gives a ping: what it takes to see that a silent server is no event's fault."""
    recovery = 20.0
    """Seconds within which the adapter works again once the server is back."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the server is."""

    @abstractmethod
    def broker(self, url: str) -> Broker:
        """The adapter, made and not opened."""

    @abstractmethod
    async def make_topic(self) -> str:
        """Make a place for messages, and name it as events would. Nobody else uses it."""

    @abstractmethod
    async def arrived(self, topic: str) -> list[Arrived]:
        """Everything that has arrived there since it was made, oldest first; of one key at least."""

    @abstractmethod
    def missing_topic(self) -> str:
        """A name that a message can be sent to and that leads nowhere."""

    def forbidden_topic(self) -> str | None:
        """A topic that exists and that the adapter's login may not write to; nothing where there is none to be had."""
        return None

    def oversize(self) -> int | None:
        """So many bytes of payload that the server or the client refuses them; nothing where any number is taken."""
        return None

    def wrong_login(self) -> WrongLogin | None:
        """Nothing where the server lets everybody in."""
        return None

    @contextmanager
    def proxied(self) -> Iterator[tuple[Proxy, str]]:
        """A proxy before the server, and the URL by way of it; every byte of the adapter goes through it."""
        with Proxy.to(self.url) as proxy:
            yield proxy, proxy.through(self.url)
