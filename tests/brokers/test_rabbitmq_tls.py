"""RabbitMQ behind TLS: whom we trust, who we are, and certificates that are renewed while we run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from oncommit.errors import BrokerUnavailable
from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import ServerUnavailable, rabbitmq
from oncommit.testing.servers.ports import claim_port
from tests.brokers.rabbit import connected, kinds, message, opened

DAYS = "2"


class Authority:
    """One that signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", f"/CN={name}",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key."""
        certificate, key = self._folder / f"{self._name}.{name}.pem", self._folder / f"{self._name}.{name}.key"
        request, extensions = self._folder / "request", self._folder / "extensions"
        extensions.write_text("subjectAltName = IP:127.0.0.1\n")
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)
        )
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key),
            "-CAcreateserial", "-days", DAYS, "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)


@dataclass
class Secured:
    """A RabbitMQ that speaks TLS and asks for a certificate."""

    plain: str
    port: int
    ours: Authority
    folder: Path

    def url(self, **files: Path) -> str:
        query = "&".join(f"{name}={path}" for name, path in files.items())
        return f"amqps://guest:guest@127.0.0.1:{self.port}/?{query}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    ours = Authority(folder, "ours")
    certificate, key = ours.sign("server")
    port = claim_port()
    settings = {
        "listeners.ssl.default": f"127.0.0.1:{port.number}",
        "ssl_options.cacertfile": str(ours.certificate),
        "ssl_options.certfile": str(certificate),
        "ssl_options.keyfile": str(key),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    try:
        with rabbitmq(settings) as server:
            yield Secured(server.url, port.number, ours, folder)
    except ServerUnavailable as error:
        not_to_be_had(error)
    finally:
        port.release()


async def test_a_publish_by_tls(secured: Secured) -> None:
    certificate, key = secured.ours.sign("client")
    url = secured.url(cafile=secured.ours.certificate, certfile=certificate, keyfile=key)
    async with connected(secured.plain) as rabbit, opened(url) as broker:
        queue = await rabbit.queue()
        batch = [message(body=bytes(size)) for size in (0, 10, 300_000)] * 50
        assert set(kinds(await broker.publish(batch, timeout=30))) == {"sent"}
        assert len(await rabbit.arrived(queue, 150)) == 150


async def test_a_server_that_nobody_we_know_vouches_for_is_left_alone(secured: Secured) -> None:
    certificate, key = secured.ours.sign("client")
    for files in ({"cafile": Authority(secured.folder, "theirs").certificate}, {}):
        with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
            async with opened(secured.url(**files, certfile=certificate, keyfile=key)):
                pass


async def test_a_login_needs_our_certificate_and_finds_it_when_it_was_renewed(secured: Secured) -> None:
    """The files are read at each connect, so nothing has to be restarted."""
    certificate, key = Authority(secured.folder, "theirs").sign("client")
    url = secured.url(cafile=secured.ours.certificate, certfile=certificate, keyfile=key)
    with pytest.raises(BrokerUnavailable):
        async with opened(url) as broker:
            await broker.ping()
    for renewed, place in zip(secured.ours.sign("client"), (certificate, key), strict=True):
        shutil.copyfile(renewed, place)
    async with opened(url) as broker:
        await broker.ping()


async def test_files_that_are_not_there_are_named(secured: Secured) -> None:
    with pytest.raises(BrokerUnavailable, match=r"cafile|No such file"):
        async with opened(secured.url(cafile=secured.folder / "none.pem")):
            pass
