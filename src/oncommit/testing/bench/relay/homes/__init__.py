"""A broker's side of a benchmark: the server where none is given, and a place for the events, emptied between rounds.

One file a broker. What is made has a random name in it and is removed at the end; of a run that is killed it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec

from oncommit.brokers.registry import make_broker
from oncommit.errors import ConfigError, MissingDependency
from oncommit.message import Event
from oncommit.testing.bench.relay.timeline import Arrival
from oncommit.testing.servers import AnyServer, Server, kafka, nats, rabbitmq, redis
from oncommit.testing.servers.sql import run_async
from oncommit.topics import default_rules


class Home(Protocol):
    """The place at one broker where the events of a benchmark go."""

    storage: str
    """How it keeps them, in a phrase."""

    async def make(self) -> None:
        """Make it."""

    async def empty(self) -> None:
        """Remove what came, so that each round starts alike."""

    async def arrived(self) -> Arrival:
        """How many messages there are, and since when."""

    async def remove(self) -> None:
        """Take it away."""


class Kind(msgspec.Struct, frozen=True):
    """How to get a server of this kind, and what that means for what it acknowledges."""

    start: Callable[[], Server]
    durability: str


# With the settings in which most people run them: these acknowledge what is written, and flush it a little later.
KINDS: Final = {
    "nats": Kind(nats, "file storage, sync_interval 2m (NATS's default)"),
    "redis": Kind(
        lambda: redis(settings=["appendfsync everysec"]), "appendonly, appendfsync everysec (Redis's default)"
    ),
    "rabbitmq": Kind(rabbitmq, "durable queue, persistent messages, publisher confirms"),
    "kafka": Kind(
        kafka, "acks=all of one broker, written before acknowledged, flushed by the system (Kafka's default)"
    ),
}


class Target(msgspec.Struct, frozen=True):
    """Where a benchmark's events go."""

    name: str
    url: str
    event_type: str
    home: Home
    about: dict[str, Any]

    def empty(self) -> None:
        """Remove what came."""
        run_async(self.home.empty)

    def arrived(self) -> Arrival:
        """How many messages there are, and since when."""
        return run_async(self.home.arrived)


@contextmanager
def a_target(broker: str, run: str) -> Iterator[Target]:
    """A broker by name, started here, or by its URL, with a place for events of the type ``<run>.order.placed``.

    Raises:
        ConfigError: No such broker, or none that a benchmark knows how to prepare.
        BrokerUnavailable: It cannot be reached.
        ServerError: It does not start, or is not installed here.
        MissingDependency: What looks into it is not installed.
    """
    if "://" not in broker and broker not in KINDS:
        raise ConfigError(f"a broker is a URL, or one of {', '.join(KINDS)}, not {broker!r}")
    starting = nullcontext(None) if "://" in broker else KINDS[broker].start()
    with starting as server:
        yield from _prepared(broker if server is None else server.url, server, run)


def _prepared(url: str, server: AnyServer | None, run: str) -> Iterator[Target]:
    name = make_broker(url).capabilities.name
    if name not in KINDS:
        raise ConfigError(f"a benchmark knows how to prepare {', '.join(KINDS)}, not {name}")
    event = Event(f"{run}.order.placed", aggregate=("account", 1))
    topic = default_rules(name).resolve(event)
    try:
        home: Home = import_module(f"{__name__}.{name}").make_home(url, topic)
    except ModuleNotFoundError as error:
        package = (error.name or "").replace("_", "-")
        raise MissingDependency(f"a benchmark looks into {name} with {package}: pip install {package}") from error
    about = {
        "broker_version": server.version if server else "given by URL",
        "own_broker": server is not None,
        "broker_storage": home.storage,
        "broker_durability": KINDS[name].durability if server else "as that server is set up",
    }
    run_async(lambda: _reached(url))
    run_async(home.make)
    try:
        yield Target(name, url, event.type, home, about)
    finally:
        run_async(home.remove)


async def _reached(url: str) -> None:
    """By the adapter, whose time limits are short and whose errors tell no password."""
    broker = make_broker(url)
    try:
        await broker.open()
        await broker.ping()
    finally:
        await broker.close()
