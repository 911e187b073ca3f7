"""A socket for one question to a server, with our error where it fails."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO
from urllib.parse import urlsplit

from oncommit.testing.servers.errors import NotReady

TIMEOUT = 2.0


class Wire:
    """Send bytes, read exactly so many, or a line."""

    def __init__(self, connection: socket.socket, stream: BinaryIO) -> None:
        self._connection = connection
        self._stream = stream

    def send(self, data: bytes) -> None:
        """All of it."""
        self._connection.sendall(data)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        data = self._stream.read(count)
        if len(data) < count:
            raise NotReady("it closed the connection")
        return data

    def line(self) -> str:
        """Up to CRLF, without it."""
        line = self._stream.readline(1_000_000)
        if not line.endswith(b"\n"):
            raise NotReady("it closed the connection")
        return line.decode(errors="replace").rstrip("\r\n")


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """A connection to the first host that the URL names."""
    first = urlsplit(url).netloc.rpartition("@")[2].split(",")[0]
    host, _, port = first.rpartition(":")
    if not port.isdigit():
        raise NotReady("its address names no port")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), TIMEOUT) as connection,
            connection.makefile("rb") as stream,
        ):
            yield Wire(connection, stream)
    except OSError as error:
        raise NotReady(f"{first}: {error}") from error
