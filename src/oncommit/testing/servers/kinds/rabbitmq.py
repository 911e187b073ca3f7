"""RabbitMQ from the system's packages.

Several things that it takes for granted must be its own, or parallel runs meet: node name, distribution port
(by default the client's + 20 000, which can leave the range), database, log, plugins file, cookie, and `epmd`, the
daemon in which Erlang nodes find each other. The first node on a machine starts an `epmd` that outlives it; ours
is started beside the broker and ends with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from oncommit.testing.servers.errors import NotReady, ServerUnavailable
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.watched import Program
from oncommit.testing.servers.wire import Wire, wire

# Not the one on PATH: that is a wrapper which changes to the user `rabbitmq`.
PLACES = (
    Path("/usr/lib/rabbitmq/bin/rabbitmq-server"),
    Path("/usr/local/sbin/rabbitmq-server"),
    Path("/opt/rabbitmq/sbin/rabbitmq-server"),
)
GREETING = b"AMQP\x00\x00\x09\x01"
CONNECTION_START = (10, 10)


def rabbitmq(settings: Mapping[str, str] | None = None) -> Server:
    """A RabbitMQ; ``settings`` are further lines of its ``rabbitmq.conf``.

    It needs no switch for durability: a confirm of a persistent message means "on disk".

    Definitions are different: a durable queue declared just before a `kill` was sometimes gone afterwards (3.10,
    once in 14 tries, though its name stood in Mnesia's log; why is not known). So crash tests declare first,
    `restart`, and go on from there.
    """
    return Server(RabbitMQRecipe(settings or {}), start_timeout=120)


def find_rabbitmq() -> Path:
    """The program `rabbitmq-server`, not its wrapper."""
    for place in PLACES:
        if place.exists() and shutil.which("erl"):
            return place
    raise ServerUnavailable(
        "No rabbitmq-server found. Install it (apt-get install rabbitmq-server; in a checkout: "
        "scripts/install-servers), or name a running one in ONCOMMIT_TEST_RABBITMQ_URL."
    )


class RabbitMQRecipe:
    """How to run RabbitMQ."""

    name = "rabbitmq"
    port_roles: tuple[str, ...] = ("client", "distribution", "epmd")
    stop_signal = signal.SIGTERM
    unprivileged = False

    def __init__(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._program = Path()
        self._settings = {"loopback_users.guest": "true", "disk_free_limit.absolute": "50MB", **settings}

    def find(self) -> str:
        """Where its program is."""
        return str(find_rabbitmq())

    def prepare(self, home: Home) -> None:
        """Find the program; no plugins, no file of the system's own broker."""
        self._program = find_rabbitmq()
        home.write("enabled_plugins", "[].\n")
        home.write("rabbitmq.conf", "".join(f"{name} = {value}\n" for name, value in self._settings.items()))

    def programs(self, home: Home) -> list[Program]:
        """`epmd` in the foreground, then the broker as one Erlang process without shell scripts around it."""
        epmd = str(home.ports["epmd"])
        folder = home.folder
        env = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")} | {
            "HOME": str(folder),  # where the cookie is
            "ERL_EPMD_PORT": epmd,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
            "RABBITMQ_NODENAME": node_name(home),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(home.ports["client"]),
            "RABBITMQ_DIST_PORT": str(home.ports["distribution"]),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "no-such-file.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Makes its script become the broker instead of waiting for it, so that SIGTERM reaches the broker.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        daemon = home.program(shutil.which("epmd") or "epmd", "-port", epmd, "-address", "127.0.0.1")
        return [daemon, home.program(self._program, env=env)]

    def url(self, port: int) -> str:
        """As aio-pika reads it."""
        return f"amqp://guest:guest@127.0.0.1:{port}"

    def ping(self, url: str, home: Home | None) -> str:
        """Its greeting, which comes once the broker is up."""
        with wire(url) as connection:
            connection.send(GREETING)
            properties = _read_start(connection)
        node = home.folder.name if home is not None else ""
        if not _text(properties, "cluster_name").startswith(node):
            raise NotReady("another RabbitMQ has this port")
        return f"RabbitMQ {_text(properties, 'version')}"


def node_name(home: Home) -> str:
    """Its name among Erlang nodes; unique, as the folder is."""
    return f"{home.folder.name}@localhost"


def _read_start(connection: Wire) -> bytes:
    """The payload of the frame `connection.start`."""
    kind, _channel, size = struct.unpack(">BHI", connection.read(7))
    if kind == GREETING[0]:
        raise NotReady("it speaks another version of AMQP")
    payload = connection.read(size)
    if kind != 1 or struct.unpack(">HH", payload[:4]) != CONNECTION_START:
        raise NotReady("its greeting is not AMQP")
    return payload


def _text(properties: bytes, name: str) -> str:
    """A long string out of a field table: name, "S", length, bytes."""
    key = bytes([len(name)]) + name.encode() + b"S"
    _, found, rest = properties.partition(key)
    if not found:
        raise NotReady(f"its greeting has no {name}")
    (size,) = struct.unpack(">I", rest[:4])
    return rest[4 : 4 + size].decode()
