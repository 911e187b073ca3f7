"""The servers by name, and the environment variables that replace them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from oncommit.testing.servers.errors import ServerError
from oncommit.testing.servers.external import ExternalServer
from oncommit.testing.servers.kinds.kafka import kafka
from oncommit.testing.servers.kinds.nats import nats
from oncommit.testing.servers.kinds.postgres import postgres
from oncommit.testing.servers.kinds.rabbitmq import rabbitmq
from oncommit.testing.servers.kinds.redis import redis
from oncommit.testing.servers.server import Server

AnyServer = Server | ExternalServer


@dataclass(frozen=True)
class Entry:
    """One kind of server."""

    make: Callable[[bool], Server]  # argument: durable
    variable: str
    scheme: str = ""  # put before the variable's value where that is no URL


CATALOG = {
    "postgres18": Entry(lambda durable: postgres(18, durable=durable), "ONCOMMIT_TEST_POSTGRES18_DSN"),
    "postgres15": Entry(lambda durable: postgres(15, durable=durable), "ONCOMMIT_TEST_POSTGRES15_DSN"),
    "nats": Entry(lambda durable: nats(durable=durable), "ONCOMMIT_TEST_NATS_URL"),
    "redis": Entry(lambda durable: redis(durable=durable), "ONCOMMIT_TEST_REDIS_URL"),
    "rabbitmq": Entry(lambda _durable: rabbitmq(), "ONCOMMIT_TEST_RABBITMQ_URL"),
    "kafka": Entry(lambda durable: kafka(durable=durable), "ONCOMMIT_TEST_KAFKA_BOOTSTRAP", scheme="kafka"),
}


def named_server(name: str, *, durable: bool = False) -> AnyServer:
    """The server of that name, not started: one of ours, or the one that the environment names."""
    entry = CATALOG.get(name)
    if entry is None:
        raise ServerError(f"No server is called {name!r}; there are {', '.join(CATALOG)}.")
    ours = entry.make(durable)
    given = os.environ.get(entry.variable)
    if not given:
        return ours
    url = given if "://" in given or not entry.scheme else f"{entry.scheme}://{given}"
    return ExternalServer(ours.recipe, url, entry.variable)
