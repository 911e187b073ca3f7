"""What a kind of server has to tell, and the place that it gets."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from oncommit.testing.servers.watched import Program, User, Watched


@dataclass
class Home:
    """Where a server lives: its folder, its ports by role, the user it runs as."""

    folder: Path
    watched: Watched
    user: User | None
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """Output of all its programs."""
        return self.folder / "server.log"

    def program(self, *argv: str | Path, env: dict[str, str] | None = None) -> Program:
        """A command that runs here."""
        return Program(
            argv=[str(word) for word in argv],
            cwd=str(self.folder),
            log=str(self.log),
            env=dict(os.environ) if env is None else env,
            user=self.user,
        )

    def write(self, name: str, text: str) -> Path:
        """Write a configuration file that the server's user can read."""
        path = self.folder / name
        path.write_text(text)
        if self.user is not None:
            os.chown(path, self.user.uid, self.user.gid)
        return path


class Recipe(Protocol):
    """What differs from server to server."""

    name: str
    port_roles: tuple[str, ...]  # the first is the one that clients use
    stop_signal: signal.Signals
    unprivileged: bool  # refuses to run as root

    def find(self) -> str:
        """Where its program is.

        Raises:
            ServerUnavailable: It is not installed here.
        """
        ...

    def prepare(self, home: Home) -> None:
        """Before the first start: find the programs, make what the first start needs."""

    def programs(self, home: Home) -> list[Program]:
        """What to start, in this order; the last is the server itself."""
        ...

    def url(self, port: int) -> str:
        """Where clients find it."""
        ...

    def ping(self, url: str, home: Home | None) -> str:
        """Talk to it; the version it tells. With a `home`, make sure that it is the one who lives there.

        Raises:
            NotReady: No answer, not the right one, or somebody else's.
        """
        ...
