"""Real servers for tests, demos and benchmarks, on loopback and in temporary folders.

    with postgres(18) as server:
        print(server.dsn)

They end with the process that started them, however that ends. `python -m oncommit.testing.servers` gives the same
servers to a developer. Linux only; elsewhere name running servers in the environment (`ONCOMMIT_TEST_…`).
"""

from __future__ import annotations

from oncommit.testing.servers.catalog import CATALOG, AnyServer, named_server
from oncommit.testing.servers.databases import Database, Databases
from oncommit.testing.servers.errors import NotReady, ServerError, ServerUnavailable
from oncommit.testing.servers.external import ExternalServer
from oncommit.testing.servers.kinds.kafka import kafka
from oncommit.testing.servers.kinds.nats import nats
from oncommit.testing.servers.kinds.pgbouncer import pgbouncer
from oncommit.testing.servers.kinds.postgres import postgres
from oncommit.testing.servers.kinds.rabbitmq import rabbitmq
from oncommit.testing.servers.kinds.redis import redis
from oncommit.testing.servers.pool import ServerPool
from oncommit.testing.servers.server import Server

__all__ = [
    "CATALOG",
    "AnyServer",
    "Database",
    "Databases",
    "ExternalServer",
    "NotReady",
    "Server",
    "ServerError",
    "ServerPool",
    "ServerUnavailable",
    "kafka",
    "named_server",
    "nats",
    "pgbouncer",
    "postgres",
    "rabbitmq",
    "redis",
]
