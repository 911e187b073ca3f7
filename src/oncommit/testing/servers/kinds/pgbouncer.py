"""PgBouncer from the system's packages, in transaction mode, in front of a PostgreSQL."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from oncommit.testing.servers.errors import NotReady, ServerError, ServerUnavailable
from oncommit.testing.servers.external import ExternalServer
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.sql import fetch_value
from oncommit.testing.servers.watched import Program


def pgbouncer(upstream: Server | ExternalServer, *, settings: dict[str, str] | None = None) -> Server:
    """A PgBouncer in front of a running PostgreSQL; `settings` go into its `[pgbouncer]` section."""
    return Server(PgBouncerRecipe(upstream, settings or {}))


def find_pgbouncer() -> Path:
    """The program `pgbouncer`; Debian has it where only root's PATH looks."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServerUnavailable(
            "No pgbouncer found. Install it (apt-get install pgbouncer; in a checkout: scripts/install-servers)."
        )
    return Path(found)


class PgBouncerRecipe:
    """How to run PgBouncer."""

    name = "pgbouncer"
    port_roles: tuple[str, ...] = ("client",)
    stop_signal = signal.SIGTERM
    unprivileged = True

    def __init__(self, upstream: Server | ExternalServer, settings: dict[str, str]) -> None:
        self._upstream = upstream
        self._settings = settings
        self._program = Path()

    def find(self) -> str:
        """Where its program is."""
        return str(find_pgbouncer())

    def prepare(self, home: Home) -> None:
        """Find the program; everybody that PostgreSQL knows may come in."""
        self._program = find_pgbouncer()
        home.write("users.txt", '"postgres" ""\n')

    def programs(self, home: Home) -> list[Program]:
        """The server."""
        host, _, port = self._upstream.address.rpartition(":")
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(home.ports["client"]),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(home.folder / "users.txt"),
            "auth_user": "postgres",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "default_pool_size": "20",
            "ignore_startup_parameters": "extra_float_digits,search_path,options",
        } | self._settings
        lines = ["[databases]", f"* = host={host} port={port}", "[pgbouncer]"]
        lines += [f"{key} = {value}" for key, value in settings.items()]
        return [home.program(self._program, home.write("pgbouncer.ini", "\n".join(lines) + "\n"))]

    def url(self, port: int) -> str:
        """As libpq, asyncpg and psycopg read it."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def ping(self, url: str, home: Home | None) -> str:  # noqa: ARG002 - the query goes through to PostgreSQL
        """A query that goes through it."""
        try:
            behind = fetch_value(url, "select current_setting('server_version')", timeout=2)
        except ServerError as error:
            raise NotReady(str(error)) from error
        return f"PgBouncer before PostgreSQL {behind.split()[0]}"
