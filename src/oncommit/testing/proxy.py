"""A TCP proxy that fails on command: what networks do to a connection, at the moment a test chooses.

    with Proxy("127.0.0.1", 5432) as proxy:
        connection = await asyncpg.connect(proxy.through(dsn))
        ...
        proxy.drop_answer()                # the next request arrives, its answer does not
        await transaction.commit()         # raises; committed it is

It knows nothing of the protocol. A request is what a client sends until the server says something; so faults can be
placed by counting requests, which works for PostgreSQL, for brokers, for anything that asks and answers.

Failure story. The proxy runs in a thread with an event loop of its own, so that blocking and asyncio tests use it
alike, and a test that hangs does not hang the proxy. Each command returns when it is in force. A target that cannot be
reached shows as a connection that is reset. If the test's process dies, the thread goes with it and both ends see their
connection closed. Cutting is a reset (RST): neither end can mistake it for an orderly goodbye, and nothing that was on
its way arrives.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

R = TypeVar("R")

CHUNK: Final = 64 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Way(Enum):
    """The direction in which bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class ProxyError(Exception):
    """The proxy itself is not what the test takes it for: not started, or closed."""


@dataclass
class _Fault:
    """A fault that waits for its request."""

    skip: int
    forward: bool


@dataclass(eq=False)
class _Link:
    """One client's connection and ours to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    asking: bool = False
    dropping: bool = False

    def cut(self) -> None:
        for writer in (self.client, self.server):
            _reset(writer)


@dataclass
class _Line:
    """What holds for one direction."""

    delay: float = 0.0
    open: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Forwards a loopback port to a server, until it is told otherwise; `listen` names the port, else any will do."""

    def __init__(self, host: str, port: int, *, listen: int = 0) -> None:
        self._target = (host, port)
        self._listen_on = listen
        self._links: set[_Link] = set()
        self._fault: _Fault | None = None
        self._struck = threading.Event()
        self._accepting = True
        self._lines: dict[Way, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._requests = 0
        self.host = "127.0.0.1"
        self.port = 0

    @classmethod
    def to(cls, url: str) -> Self:
        """In front of the server that this URL or DSN names."""
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            msg = "a proxy needs a URL with a host and a port"
            raise ProxyError(msg)
        return cls(parts.hostname, parts.port)

    def through(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}{self.host}:{self.port}"))

    # -- its life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen; returns when clients can connect."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="oncommit-proxy", daemon=True)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        """Reset every connection and stop listening. Twice is fine."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        loop = self._running()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._loop = None

    # -- faults

    @property
    def connections(self) -> int:
        """How many there are now."""
        return self._do(lambda: len(self._links))

    @property
    def requests(self) -> int:
        """How many requests were seen so far, for placing a fault at each of them."""
        return self._do(lambda: self._requests)

    def cut(self) -> int:
        """Reset every connection; new ones are welcome. Says how many there were."""
        return self._do(self._cut)

    def refuse(self) -> None:
        """Reset whoever connects from now on; ``heal`` ends it. What is connected stays so."""
        self._do(lambda: self._set_accepting(accepting=False))

    def hold(self, *ways: Way) -> None:
        """Let nothing through, in these directions or both; connections stay open, and nobody is told.

        What is held goes on its way with ``heal``, as retransmission would have it.
        """

        def hold() -> None:
            for way in ways or Way:
                self._lines[way].open.clear()

        self._do(hold)

    def delay(self, seconds: float, *ways: Way) -> None:
        """Keep everything waiting that long, in these directions or both."""

        def delay() -> None:
            for way in ways or Way:
                self._lines[way].delay = seconds

        self._do(delay)

    def cut_request(self, *, after: int = 0) -> None:
        """The next request is not forwarded, and its connection reset; ``after``: so many pass before it."""
        self._arm(_Fault(after, forward=False))

    def drop_answer(self, *, after: int = 0) -> None:
        """The next request is forwarded, and the connection reset the moment the server answers.

        The server has done what it was asked, and the client cannot know. ``after``: so many requests pass before it.
        """
        self._arm(_Fault(after, forward=True))

    def heal(self) -> None:
        """Everything as at first: no fault armed, nothing held or late, everybody welcome."""
        self._do(self._heal)

    @property
    def struck(self) -> bool:
        """Whether the fault that was armed last has happened; ``heal`` forgets it."""
        return self._struck.is_set()

    def wait_until_struck(self, timeout: float) -> bool:
        """Wait for it."""
        return self._struck.wait(timeout)

    # -- in the caller's thread

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            msg = "the proxy is not running: use it as a context manager, or call start()"
            raise ProxyError(msg)
        return self._loop

    def _do(self, act: Callable[[], R]) -> R:
        """Act in the proxy's loop and wait for it, so that no byte moves between command and effect."""
        loop = self._running()

        async def acting() -> R:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), loop).result()

    def _arm(self, fault: _Fault) -> None:
        def arm() -> None:
            self._struck.clear()
            self._fault = fault

        self._do(arm)

    # -- in the proxy's thread

    def _run(self, ready: threading.Event) -> None:
        loop = self._loop = asyncio.new_event_loop()
        server = loop.run_until_complete(self._listen())
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            self._cut()
            loop.run_until_complete(self._end_tasks())
            loop.close()

    async def _listen(self) -> asyncio.Server:
        self._lines = {way: _Line() for way in Way}
        self._heal()
        server = await asyncio.start_server(self._accepted, self.host, self._listen_on)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # One that was closed with bytes still to send would wait for a client that may never read them.
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        for _ in range(3):  # the turns in which aborted transports let go of their sockets
            await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if not self._accepting:
            _reset(to_client)
            self._writers.discard(to_client)
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(to_client)
            return
        self._writers.add(to_server)
        link = _Link(to_client, to_server)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(link, from_client, to_server, Way.TO_SERVER)),
            asyncio.ensure_future(self._pump(link, from_server, to_client, Way.TO_CLIENT)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for writer in (to_client, to_server):
                writer.close()
                if writer.transport.is_closing() and not writer.transport.get_write_buffer_size():
                    self._writers.discard(writer)

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Forward until one end has had enough. An end that closes in order is told on in order by `_serve`."""
        line = self._lines[way]
        try:
            while data := await reader.read(CHUNK):
                if line.delay:
                    await asyncio.sleep(line.delay)
                await line.open.wait()
                if not self._lets_pass(link, way):
                    link.cut()
                    self._struck.set()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            link.cut()

    def _lets_pass(self, link: _Link, way: Way) -> bool:
        """Whether these bytes may go on; counts requests and lets the armed fault strike."""
        if way is Way.TO_CLIENT:
            link.asking = False
            return not link.dropping
        if link.asking:
            return True
        link.asking = True
        self._requests += 1
        fault = self._fault
        if fault is None:
            return True
        if fault.skip:
            fault.skip -= 1
            return True
        self._fault = None
        link.dropping = fault.forward
        return fault.forward

    def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def _set_accepting(self, *, accepting: bool) -> None:
        self._accepting = accepting

    def _heal(self) -> None:
        self._fault = None
        self._struck.clear()
        self._accepting = True
        for line in self._lines.values():
            line.delay = 0.0
            line.open.set()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end gets a reset, not a goodbye."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
