"""One real server: its life, whatever it is.

Failure story. The server may die at start (port taken: other ports are tried; anything else: an error with the
tail of its log, which is kept), later (seen by `alive`, and by whoever talks to it), or be killed by a test, which
is what it is for. If we die, the watchdog ends it. A `start` that fails leaves nothing but the kept log.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Self

from oncommit.testing.servers.errors import NotReady, ServerError
from oncommit.testing.servers.place import folder_base
from oncommit.testing.servers.ports import ClaimedPort, claim_port
from oncommit.testing.servers.recipe import Home, Recipe
from oncommit.testing.servers.watched import Watched

log = logging.getLogger(__name__)

PORT_TRIES = 5
TAIL_LINES = 25
# Words of the servers here for EADDRINUSE.
PORT_TAKEN = ("address already in use", "eaddrinuse", "could not create any tcp/ip sockets", "already in use")


class Server:
    """A real server on loopback, with its data in a temporary folder.

    Use it as a context manager, or call `start` and `close`. `stop` and `kill` keep data and port for the
    next `start`. All calls block; from async code use `asyncio.to_thread`.
    """

    external = False

    def __init__(self, recipe: Recipe, *, start_timeout: float | None = None) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.version = ""
        self.started_in = 0.0
        self._start_timeout = start_timeout or float(os.environ.get("ONCOMMIT_TEST_START_TIMEOUT", "60"))
        self._claims: dict[str, ClaimedPort] = {}
        self._home: Home | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self.version} at {self.url if self._home else 'no port yet'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- what clients need

    @property
    def port(self) -> int:
        """The port that clients use; the same for the whole life of this object."""
        return self.home.ports[self.recipe.port_roles[0]]

    @property
    def url(self) -> str:
        """Where clients find it."""
        return self.recipe.url(self.port)

    @property
    def dsn(self) -> str:
        """The same as `url`: what one calls it with databases."""
        return self.url

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"started in {self.started_in:.1f} s"

    @property
    def address(self) -> str:
        """Host and port, as Kafka's clients want it."""
        return f"127.0.0.1:{self.port}"

    # -- its life

    def start(self) -> None:
        """Start, and wait until it truly answers. Again after `stop` or `kill`, on the same data and port."""
        begun = time.monotonic()
        first = self._home is None
        if not first and self.alive():
            raise ServerError(f"{self.name} runs already; use restart().")
        try:
            if first:
                self._open_home()
            self._start(tries=PORT_TRIES if first else 1)
        except ServerError as error:
            told = self._with_log(error)
            if first:
                self.close()
            raise told from error
        except BaseException:
            self.close()
            raise
        self.started_in = time.monotonic() - begun

    def stop(self, timeout: float = 30) -> None:
        """Ask it to end, as a service manager would. Data and port stay for `start`."""
        if not self.home.watched.stop(self.recipe.stop_signal, timeout):
            raise self._with_log(ServerError(f"{self.name} did not stop within {timeout:.0f} s; killed."))

    def kill(self) -> None:
        """SIGKILL to every process of it. Data and port stay for `start`.

        A crash of the server, not of the machine: what it wrote without fsync is still in the page cache.
        """
        self.home.watched.signal(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP to every process of it: connections stay open, nothing answers."""
        self.home.watched.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: end of `pause`."""
        self.home.watched.signal(signal.SIGCONT)

    def restart(self) -> None:
        """`stop` where it still runs, then `start`: same data, same port."""
        if self.alive():
            self.stop()
        self.start()

    def close(self) -> None:
        """End it and remove its data. Nothing is left. Twice is fine."""
        home, self._home = self._home, None
        if home is not None:
            home.watched.close()
        self._release_ports()

    # -- looking at it

    @property
    def home(self) -> Home:
        """Folder, ports and processes."""
        if self._home is None:
            raise ServerError(f"{self.name} is not running: call start(), or use it as a context manager.")
        return self._home

    def alive(self) -> bool:
        """Whether its main process runs (paused counts)."""
        return self.home.watched.alive()

    def ping(self) -> str:
        """One question, one answer: its version.

        Raises:
            NotReady: No answer.
        """
        return self.recipe.ping(self.url, self.home)

    def pids(self) -> list[int]:
        """Its processes."""
        return self.home.watched.pids()

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.home.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def keep_log(self, folder: Path | None = None) -> Path | None:
        """Copy the log to where it survives; None where there is none."""
        if self._home is None or not self._home.log.exists():
            return None
        folder = folder or Path(tempfile.gettempdir())
        kept = folder / f"{self._home.folder.name}.log"
        shutil.copyfile(self._home.log, kept)
        return kept

    # -- inside

    def _open_home(self) -> None:
        base, user = folder_base(unprivileged=self.recipe.unprivileged)
        watched = Watched(self.name)
        try:
            self._home = Home(watched.folder(base, user), watched, user)
        except BaseException:
            watched.close()
            raise
        self.recipe.prepare(self._home)

    def _start(self, tries: int) -> None:
        home = self.home
        for left in reversed(range(tries)):
            if not self._claims:
                self._claims = {role: claim_port() for role in self.recipe.port_roles}
                home.ports = {role: claim.number for role, claim in self._claims.items()}
            log_start = home.log.stat().st_size if home.log.exists() else 0
            *helpers, main = self.recipe.programs(home)
            for program in helpers:
                home.watched.spawn(program, main=False)
            home.watched.spawn(main, main=True)
            try:
                self.version = self._wait_until_ready()
            except ServerError:
                home.watched.signal(signal.SIGKILL)
                if not left or not self._port_was_taken(log_start):
                    raise
                log.info("%s: port %d was taken, trying others", self.name, self.port)
                self._release_ports()
            else:
                return

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + self._start_timeout
        pause = 0.02
        while True:
            try:
                version = self.ping()
            except NotReady as error:
                last = error
            else:
                if self.alive():
                    return version
                last = NotReady("it answered and ended")
            if not self.alive():
                raise ServerError(f"{self.name} ended while starting ({last}).") from last
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name} gave no answer within {self._start_timeout:.0f} s ({last}). "
                    "A slow machine? Set ONCOMMIT_TEST_START_TIMEOUT (seconds)."
                ) from last
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)

    def _port_was_taken(self, log_start: int) -> bool:
        said = self.home.log.read_bytes()[log_start:].decode(errors="replace").lower()
        return any(words in said for words in PORT_TAKEN)

    def _release_ports(self) -> None:
        for claim in self._claims.values():
            claim.release()
        self._claims = {}

    def _with_log(self, error: ServerError) -> ServerError:
        kept = self.keep_log()
        if kept is None:
            return error
        return type(error)(f"{error}\nIts log is kept in {kept} and ends:\n{self.log_tail()}")
