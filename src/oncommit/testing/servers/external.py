"""A server that somebody else runs, named by an environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Self
from urllib.parse import urlsplit

from oncommit.testing.servers.errors import NotReady, ServerError
from oncommit.testing.servers.recipe import Recipe


class ExternalServer:
    """Looks like a `Server`, but its life is not ours: it can be used, not stopped, killed or paused."""

    external = True

    def __init__(self, recipe: Recipe, url: str, variable: str) -> None:
        self.name = recipe.name
        self.recipe = recipe
        self.url = url
        self.variable = variable
        self.version = ""
        self.started_in = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} {self.version} given by {self.variable}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"given by {self.variable}"

    @property
    def dsn(self) -> str:
        """The same as `url`."""
        return self.url

    @property
    def address(self) -> str:
        """Host and port (for Kafka the whole list)."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def port(self) -> int:
        """Its port."""
        port = urlsplit(self.url).port
        if port is None:
            raise ServerError(f"{self.variable} names no port.")
        return port

    def start(self) -> None:
        """See that it answers."""
        try:
            self.version = self.ping()
        except NotReady as error:
            raise ServerError(
                f"The server that {self.variable} names for {self.name} gives no answer ({error}). "
                "Start it, or unset the variable to have one started here."
            ) from error

    def ping(self) -> str:
        """One question, one answer: its version."""
        return self.recipe.ping(self.url, None)

    def alive(self) -> bool:
        """Whether it answers."""
        try:
            self.ping()
        except NotReady:
            return False
        return True

    def close(self) -> None:
        """Nothing to do: it isn't ours."""

    def keep_log(self, folder: Path | None = None) -> Path | None:
        """It is not ours to read."""

    def stop(self, timeout: float = 30) -> NoReturn:  # noqa: ARG002 - as Server has it
        """Refused."""
        self._refuse("stopped")

    def kill(self) -> NoReturn:
        """Refused."""
        self._refuse("killed")

    def pause(self) -> NoReturn:
        """Refused."""
        self._refuse("paused")

    def resume(self) -> NoReturn:
        """Refused."""
        self._refuse("resumed")

    def restart(self) -> NoReturn:
        """Refused."""
        self._refuse("restarted")

    def _refuse(self, what: str) -> NoReturn:
        raise ServerError(
            f"{self.name} is an external server ({self.variable}), so it cannot be {what} from here. "
            f"Unset {self.variable} to have one started here."
        )
