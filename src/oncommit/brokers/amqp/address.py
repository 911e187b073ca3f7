"""Where a RabbitMQ is and how to log in: ``amqp://user:password@host:5672/vhost``, or ``amqps://`` for TLS.

Files of certificates are read at each connect, so that renewed ones need no restart. No message repeats the URL, which
may hold a password.
"""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from oncommit.errors import ConfigError

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_FILES: Final = ("cafile", "certfile", "keyfile")


class Address(msgspec.Struct, frozen=True):
    """A broker's URL, taken apart."""

    host: str
    port: int
    vhost: str
    user: str
    password: str
    tls: bool
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def __repr__(self) -> str:
        return f"amqp{'s' if self.tls else ''}://{self.host}:{self.port}/{self.vhost}"

    def credentials(self) -> tuple[str, str]:
        """The SASL mechanism, and what is said in it."""
        return "PLAIN", f"\0{self.user}\0{self.password}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """What TLS asks for; the broker's name is always checked. Raises ``OSError`` for a file that cannot be read."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.cafile)
        if self.certfile is not None:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context


def parse_address(url: str) -> Address:
    """Take a URL apart. Raises ``ConfigError``."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        files = {name: options.pop(name) for name in _FILES if name in options}
    except (ValueError, KeyError):
        raise ConfigError("a RabbitMQ is given as amqp://user:password@host:5672/vhost, or amqps://…") from None
    if options:
        raise ConfigError(f"a RabbitMQ's URL has no setting {next(iter(options))!r}; there are: {', '.join(_FILES)}")
    if files and parts.scheme != "amqps":
        raise ConfigError("certificates need a URL that begins with amqps://")
    return Address(
        host=parts.hostname or "localhost",
        port=port,
        vhost=unquote(parts.path[1:]) or "/",
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        tls=parts.scheme == "amqps",
        **files,
    )
