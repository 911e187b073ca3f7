"""Redis from the system's packages."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oncommit.testing.servers.errors import NotReady, ServerUnavailable
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.watched import Program
from oncommit.testing.servers.wire import Wire, wire


def redis(*, durable: bool = False, settings: Sequence[str] = ()) -> Server:
    """A Redis with an append-only file. `durable`: each write is on disk before it is answered.

    `settings` are further lines of its configuration; `{folder}` in one is the folder of its data.
    """
    return Server(RedisRecipe(durable=durable, settings=settings))


def find_redis() -> Path:
    """The program `redis-server`."""
    found = shutil.which("redis-server")
    if found is None:
        raise ServerUnavailable(
            "No redis-server found. Install it (apt-get install redis-server; in a checkout: "
            "scripts/install-servers), or name a running one in ONCOMMIT_TEST_REDIS_URL."
        )
    return Path(found)


class RedisRecipe:
    """How to run Redis."""

    name = "redis"
    port_roles: tuple[str, ...] = ("client",)
    stop_signal = signal.SIGTERM
    unprivileged = False

    def __init__(self, *, durable: bool, settings: Sequence[str] = ()) -> None:
        self._settings = tuple(settings)
        self._fsync = "always" if durable else "no"
        self._program = Path()

    def find(self) -> str:
        """Where its program is."""
        return str(find_redis())

    def prepare(self, home: Home) -> None:  # noqa: ARG002 - others need it
        """Find the program."""
        self._program = find_redis()

    def programs(self, home: Home) -> list[Program]:
        """The server; no snapshots, the append-only file is enough for a restart."""
        lines = [
            "bind 127.0.0.1",
            f"port {home.ports['client']}",
            f"dir {home.folder}",
            'save ""',
            "appendonly yes",
            f"appendfsync {self._fsync}",
            "daemonize no",
            *[line.replace("{folder}", str(home.folder)) for line in self._settings],
        ]
        return [home.program(self._program, home.write("redis.conf", "\n".join(lines) + "\n"))]

    def url(self, port: int) -> str:
        """As redis-py reads it."""
        return f"redis://127.0.0.1:{port}/0"

    def ping(self, url: str, home: Home | None) -> str:
        """Log in where the URL says so, and ask who it is."""
        given = urlsplit(url)
        with wire(url) as connection:
            if given.password:
                _ask(connection, "AUTH", unquote(given.username or "default"), unquote(given.password))
            answer = _ask(connection, "INFO")
        info = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
        if "redis_version" not in info:
            raise NotReady("it is not Redis")
        if home is not None and int(info["process_id"]) not in home.watched.pids():
            raise NotReady("another Redis has this port")
        if info.get("loading") == "1":
            raise NotReady("it is still reading its data")
        return f"Redis {info['redis_version']}"


def _ask(connection: Wire, *words: str) -> str:
    parts = [word.encode() for word in words]
    request = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    connection.send(b"*%d\r\n%s" % (len(parts), request))
    head = connection.line()
    if head.startswith("$") and head != "$-1":
        return connection.read(int(head[1:]) + 2).decode(errors="replace")
    if head.startswith("+"):
        return head[1:]
    raise NotReady(head)
