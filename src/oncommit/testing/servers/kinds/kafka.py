"""Kafka 4 as one process that is broker and controller (KRaft, no ZooKeeper), on the machine's Java.

Its jars are looked for in `$ONCOMMIT_KAFKA_HOME` (an unpacked Kafka, or any folder with `libs`), then
`$ONCOMMIT_TOOLS/kafka`, `.tools/kafka` of a checkout (where scripts/install-servers puts them), and
`~/.cache/oncommit/kafka`.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import struct
import uuid
from pathlib import Path

from oncommit.testing.servers.errors import NotReady, ServerUnavailable
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.watched import Program
from oncommit.testing.servers.wire import Wire, wire

METADATA, METADATA_VERSION = 3, 4  # the newest form of the question that has no tagged fields
SANE_SIZE = 1_000_000  # of an answer about one broker; else it is no Kafka

COMMON = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "auto.create.topics.enable": "false",  # a topic that is missing shall be seen
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    # After kill -9 a new incarnation must wait until the old one counts as gone (by default 9 s).
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
# A small machine shared with the tests: a quick start counts for more than peak speed.
JAVA_FLAGS = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem")


def kafka(
    *,
    durable: bool = False,
    settings: dict[str, str] | None = None,
    logins: dict[str, str] | None = None,
    proxied: bool = False,
) -> Server:
    """A Kafka.

    Args:
        durable: Each batch is on disk before it is acknowledged (Kafka itself trusts in replicas).
        settings: More of `server.properties`.
        logins: Users with their passwords; they enter by another port, `home.ports["login"]` (SASL/PLAIN).
        proxied: A Kafka tells its clients where to connect, so a proxy needs a port that it tells: listen on
            `home.ports["before"]` and forward to `home.ports["behind"]`.
    """
    flush = {"log.flush.interval.messages": "1"} if durable else {}
    recipe = KafkaRecipe(flush | (settings or {}), logins=logins or {}, proxied=proxied)
    return Server(recipe, start_timeout=120)


def find_libs() -> Path:
    """The folder with Kafka's jars."""
    homes = [os.environ.get("ONCOMMIT_KAFKA_HOME"), _below(os.environ.get("ONCOMMIT_TOOLS"))]
    checkout = Path(__file__).resolve().parents[5]
    if (checkout / "pyproject.toml").exists():
        homes.append(_below(str(checkout / ".tools")))
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    homes.append(_below(str(Path(cache) / "oncommit")))
    tried = [Path(home) / "libs" for home in homes if home]
    for libs in tried:
        if list(libs.glob("kafka_*.jar")):
            return libs
    raise ServerUnavailable(
        f"No Kafka found (looked in {', '.join(map(str, tried))}). Unpack a Kafka 4 and name its folder in "
        "ONCOMMIT_KAFKA_HOME (in a checkout: scripts/install-servers), or name a running one in "
        "ONCOMMIT_TEST_KAFKA_BOOTSTRAP."
    )


def find_java() -> Path:
    """The program `java`: from JAVA_HOME, else from PATH."""
    java_home = os.environ.get("JAVA_HOME")
    found = f"{java_home}/bin/java" if java_home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise ServerUnavailable("Kafka needs Java 17 or newer. Install it (apt-get install default-jre-headless).")
    return Path(found)


def _below(folder: str | None) -> str | None:
    return f"{folder}/kafka" if folder else None


class KafkaRecipe:
    """How to run Kafka."""

    name = "kafka"
    stop_signal = signal.SIGTERM
    unprivileged = False

    def __init__(self, settings: dict[str, str], *, logins: dict[str, str], proxied: bool) -> None:
        self.port_roles: tuple[str, ...] = ("client", "controller")
        if logins:
            self.port_roles += ("login",)
        if proxied:
            self.port_roles += ("behind", "before")
        self._logins = logins
        self._settings = COMMON | settings
        self._cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # An id that begins with a dash would be read as an option by the storage tool.
        self._cluster = "A" + self._cluster[1:]
        self._libs = Path()
        self._java = Path()

    def find(self) -> str:
        """Where its jars and Java are."""
        return f"{find_libs()} on {find_java()}"

    def prepare(self, home: Home) -> None:  # noqa: ARG002 - others need it
        """Find the programs; the storage is formatted once the ports are known."""
        self._libs = find_libs()
        self._java = find_java()

    def programs(self, home: Home) -> list[Program]:
        """The server."""
        settings = self._settings | self._listeners(home.ports) | {"log.dirs": str(home.folder / "data")}
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        conf = home.write("server.properties", text)
        if not (home.folder / "data" / "meta.properties").exists():
            home.watched.run(self._class(home, "kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", conf))
        return [self._class(home, "kafka.Kafka", conf)]

    def _listeners(self, ports: dict[str, int]) -> dict[str, str]:
        """Where it listens, and what it tells its clients of that."""
        told = {"CLIENT": ports["client"]}
        listens = told | {"CONTROLLER": ports["controller"]}
        protocols = {"CLIENT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        more: dict[str, str] = {}
        if "login" in ports:
            told["LOGIN"] = listens["LOGIN"] = ports["login"]
            protocols["LOGIN"] = "SASL_PLAINTEXT"
            users = " ".join(f'user_{name}="{password}"' for name, password in self._logins.items())
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            more["listener.name.login.sasl.enabled.mechanisms"] = "PLAIN"
            more["listener.name.login.plain.sasl.jaas.config"] = f"{module} required {users};"
        if "behind" in ports:
            told["PROXIED"], listens["PROXIED"] = ports["before"], ports["behind"]
            protocols["PROXIED"] = "PLAINTEXT"
        return more | {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listens.items()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in told.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        }

    def url(self, port: int) -> str:
        """A URL for those who want one; Kafka's own clients take `Server.address`."""
        return f"kafka://127.0.0.1:{port}"

    def ping(self, url: str, home: Home | None) -> str:
        """Ask for the cluster: it has a broker that is in service, and a controller."""
        with wire(url) as connection:
            cluster, brokers, controller = _ask_metadata(connection)
        if home is not None and cluster != self._cluster:
            raise NotReady("another Kafka has this port")
        if not brokers or controller < 0:
            raise NotReady("no broker is in service yet")
        return f"Kafka {_version(self._libs)}" if home is not None else "Kafka"

    def _class(self, home: Home, name: str, *arguments: str | Path) -> Program:
        logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true")
        temporary = f"-Djava.io.tmpdir={home.folder}"
        return home.program(self._java, *JAVA_FLAGS, *logging, temporary, "-cp", f"{self._libs}/*", name, *arguments)


def _version(libs: Path) -> str:
    jar = next(libs.glob("kafka-clients-*.jar"), None)
    return jar.stem.removeprefix("kafka-clients-") if jar else "(unknown version)"


def _ask_metadata(connection: Wire) -> tuple[str, int, int]:
    """Cluster id, number of brokers, id of the controller."""
    header = struct.pack(">hhih", METADATA, METADATA_VERSION, 1, -1)  # correlation id 1, no client id
    request = header + struct.pack(">iB", 0, 0)  # no topics, create none
    connection.send(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", connection.read(4))
    if not 0 < size < SANE_SIZE:
        raise NotReady("its answer is not Kafka's")
    connection.read(8)  # correlation id, throttle time
    (brokers,) = struct.unpack(">i", connection.read(4))
    for _ in range(brokers):
        connection.read(4)
        _read_string(connection)
        connection.read(4)
        _read_string(connection)
    cluster = _read_string(connection)
    (controller,) = struct.unpack(">i", connection.read(4))
    return cluster, brokers, controller


def _read_string(connection: Wire) -> str:
    (size,) = struct.unpack(">h", connection.read(2))
    return connection.read(size).decode() if size > 0 else ""
