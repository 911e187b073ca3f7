"""The proxy, against a server that answers each line with itself: what it does to a connection on command."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from oncommit.testing.proxy import Proxy, ProxyError, Way


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.seen.append(line)  # type: ignore[attr-defined]
                self.wfile.write(line)
        except ConnectionError:
            self.server.seen.append(b"reset")  # type: ignore[attr-defined]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.seen: list[bytes] = []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.server_address[1]) as made:
        yield made


class Client:
    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def ask(self, text: bytes) -> bytes:
        self.socket.sendall(text + b"\n")
        return self.answer()

    def answer(self) -> bytes:
        got = b""
        while not got.endswith(b"\n"):
            more = self.socket.recv(100)
            if not more:
                return got + b"<end>"
            got += more
        return got.strip()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    with Client(proxy) as made:
        yield made


def test_it_forwards_both_ways(client: Client, proxy: Proxy) -> None:
    assert [client.ask(b"one"), client.ask(b"two")] == [b"one", b"two"]
    assert proxy.connections == 1
    assert proxy.requests == 2
    big = b"x" * 1_000_000
    assert client.ask(big) == big
    assert proxy.requests == 3  # however many packets it took


def test_cut_resets_and_new_ones_are_welcome(client: Client, proxy: Proxy) -> None:
    client.ask(b"one")
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.answer()
    with Client(proxy) as again:
        assert again.ask(b"two") == b"two"


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_request_that_is_cut_never_arrives(client: Client, proxy: Proxy, server: Server, after: int) -> None:
    proxy.cut_request(after=after)
    for number in range(after):
        assert client.ask(b"%d" % number) == b"%d" % number
    assert not proxy.struck
    with pytest.raises(ConnectionResetError):
        client.ask(b"lost")
    assert proxy.wait_until_struck(5)
    assert b"lost\n" not in server.seen


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_request_whose_answer_is_dropped_was_done(client: Client, proxy: Proxy, server: Server, after: int) -> None:
    proxy.drop_answer(after=after)
    for number in range(after):
        assert client.ask(b"%d" % number) == b"%d" % number
    with pytest.raises(ConnectionResetError):
        client.ask(b"done")
    assert proxy.wait_until_struck(5)
    assert b"done\n" in server.seen


def test_a_fault_strikes_once(client: Client, proxy: Proxy) -> None:
    proxy.cut_request()
    with pytest.raises(ConnectionResetError):
        client.ask(b"lost")
    with Client(proxy) as again:
        assert again.ask(b"fine") == b"fine"


def test_heal_takes_a_fault_back(client: Client, proxy: Proxy) -> None:
    proxy.cut_request()
    proxy.heal()
    assert client.ask(b"fine") == b"fine"
    assert not proxy.struck


@pytest.mark.parametrize(("way", "arrives"), [(Way.TO_SERVER, False), (Way.TO_CLIENT, True)])
def test_one_direction_held(client: Client, proxy: Proxy, server: Server, way: Way, arrives: bool) -> None:
    proxy.hold(way)
    client.socket.sendall(b"held\n")
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.answer()
    assert (b"held\n" in server.seen) is arrives
    client.socket.settimeout(5)
    proxy.heal()
    assert client.answer() == b"held"


def test_held_connections_can_be_cut(client: Client, proxy: Proxy, server: Server) -> None:
    proxy.hold()
    client.socket.sendall(b"lost\n")
    deadline = time.monotonic() + 5
    while not proxy.connections and time.monotonic() < deadline:
        pass
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.answer()
    assert b"lost\n" not in server.seen


def test_delay(client: Client, proxy: Proxy) -> None:
    proxy.delay(0.15, Way.TO_CLIENT)
    begun = time.monotonic()
    assert client.ask(b"late") == b"late"
    assert time.monotonic() - begun >= 0.15


def test_refused(client: Client, proxy: Proxy) -> None:
    assert client.ask(b"one") == b"one"
    proxy.refuse()
    with pytest.raises(ConnectionError), Client(proxy) as refused:
        refused.ask(b"two")
    assert client.ask(b"three") == b"three"
    proxy.heal()
    with Client(proxy) as again:
        assert again.ask(b"four") == b"four"


def test_a_server_that_is_not_there_is_a_reset() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Proxy(*unused.getsockname()) as proxy, pytest.raises(ConnectionError), Client(proxy) as client:
            client.ask(b"one")


def test_an_end_that_closes_in_order_is_told_on_in_order(proxy: Proxy, server: Server) -> None:
    client = Client(proxy)
    assert client.ask(b"one") == b"one"
    client.socket.shutdown(socket.SHUT_WR)
    assert client.answer() == b"<end>"
    client.socket.close()
    assert server.seen == [b"one\n"]


def test_urls() -> None:
    proxy = Proxy.to("postgresql://me:secret@db.example:5432/shop?x=1")
    proxy.port = 99
    through = proxy.through("postgresql://me:secret@db.example:5432/shop?x=1")
    assert through == "postgresql://me:secret@127.0.0.1:99/shop?x=1"
    with pytest.raises(ProxyError, match="a host and a port"):
        Proxy.to("postgresql:///shop")


def test_closed_is_closed(server: Server) -> None:
    proxy = Proxy("127.0.0.1", server.server_address[1])
    with pytest.raises(ProxyError, match="not running"):
        proxy.cut()
    proxy.start()
    with Client(proxy) as client:
        client.ask(b"one")
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            client.answer()
    with pytest.raises(ConnectionError):
        Client(proxy)
