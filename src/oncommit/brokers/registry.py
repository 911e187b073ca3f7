"""From a URL to the adapter of its broker, by the URL's scheme.

Adapters are imported when they are asked for: the client of a broker that nobody uses need not be installed. Packages
of others register theirs as an entry point of the group ``oncommit.brokers``: its name is the scheme, its object makes
a ``Broker`` from a URL. Our own schemes cannot be taken over.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from oncommit.brokers.base import Broker
from oncommit.errors import ConfigError, MissingDependency

GROUP: Final = "oncommit.brokers"

MakeBroker = Callable[[str], Broker]


class Adapter(NamedTuple):
    """Where an adapter of ours is, and the extra that brings its client."""

    module: str
    name: str
    extra: str


# To add an adapter, add a line.
ADAPTERS: Final[dict[str, Adapter]] = {
    "kafka": Adapter("oncommit.brokers.kafka", "KafkaBroker", "kafka"),
    "nats": Adapter("oncommit.brokers.nats", "NatsBroker", "nats"),
    "redis": Adapter("oncommit.brokers.redis", "RedisBroker", "redis"),
    "rediss": Adapter("oncommit.brokers.redis", "RedisBroker", "redis"),
    "unix": Adapter("oncommit.brokers.redis", "RedisBroker", "redis"),
    "amqp": Adapter("oncommit.brokers.rabbitmq", "RabbitBroker", "rabbitmq"),
    "amqps": Adapter("oncommit.brokers.rabbitmq", "RabbitBroker", "rabbitmq"),
}


def make_broker(url: str) -> Broker:
    """The broker at this URL, not opened yet.

    Example:
        >>> make_broker("nats://localhost:4222").capabilities.name
        'nats'

    Raises:
        ConfigError: The URL has no scheme, or one that nobody has registered. The message does not repeat the URL,
            which may hold a password.
        MissingDependency: The client for this broker is not installed; the message names the extra.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if not scheme:
        msg = f"a broker is given as a URL, such as nats://localhost:4222; there are: {', '.join(schemes())}"
        raise ConfigError(msg)
    if scheme in ADAPTERS:
        return _ours(scheme, ADAPTERS[scheme])(url)
    for point in _others():
        if point.name == scheme:
            return cast("MakeBroker", point.load())(url)
    msg = (
        f"no adapter is known for a broker at {scheme}://; there are: {', '.join(schemes())}. "
        f"Others come as packages with an entry point in the group {GROUP}"
    )
    raise ConfigError(msg)


def schemes() -> list[str]:
    """The schemes that are known here, ours first."""
    return [*ADAPTERS, *sorted({point.name for point in _others()} - ADAPTERS.keys())]


def describe_broker(url: str) -> str:
    """Where a URL points, for messages: scheme, hosts and ports, never a login.

    Example:
        >>> describe_broker("nats://app:secret@mq:4222")
        'nats://mq:4222'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if "," not in url else f"{parts.scheme}://…"


def _ours(scheme: str, adapter: Adapter) -> MakeBroker:
    try:
        made: MakeBroker = getattr(import_module(adapter.module), adapter.name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "oncommit":
            raise
        msg = (
            f"a broker at {scheme}:// needs the package {error.name!r}, which is not installed; "
            f"run: pip install 'oncommit[{adapter.extra}]'"
        )
        raise MissingDependency(msg) from error
    return made


def _others() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))
