"""The servers of one test run: each started when first asked for, all closed at the end."""

from __future__ import annotations

import threading
from pathlib import Path

from oncommit.testing.servers.catalog import AnyServer, named_server
from oncommit.testing.servers.errors import ServerError, ServerUnavailable


class ServerPool:
    """Starts each server once; remembers what could not be had, so that it is asked for once."""

    def __init__(self) -> None:
        self.running: dict[str, AnyServer] = {}
        self.used: dict[str, str] = {}  # name → version and whereabouts, for the report at the end
        self.missing: dict[str, ServerUnavailable] = {}
        self.broken: dict[str, ServerError] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> AnyServer:
        """The running server of that name.

        Raises:
            ServerUnavailable: It is not installed here.
            ServerError: It did not start.
        """
        with self._lock:
            if name in self.missing:
                raise self.missing[name]
            if name in self.broken:
                raise self.broken[name]
            if name not in self.running:
                self.running[name] = self._start(name)
            return self.running[name]

    def keep_logs(self, folder: Path) -> list[Path]:
        """Copy the logs of our own servers."""
        kept = [one.keep_log(folder) for one in self.running.values() if not one.external]
        return [path for path in kept if path is not None]

    def close(self) -> None:
        """End all."""
        for one in self.running.values():
            one.close()

    def _start(self, name: str) -> AnyServer:
        try:
            started = named_server(name)
            started.start()
        except ServerUnavailable as error:
            self.missing[name] = error
            raise
        except ServerError as error:
            self.broken[name] = error
            raise
        self.used[name] = f"{started.version} at {started.address} ({started.origin})"
        return started
