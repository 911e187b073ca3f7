"""From a URL to what librdkafka is told. Pure.

    kafka://host:9092,host2:9092
    kafka://user:password@host:9093?sasl=SCRAM-SHA-512&tls=true

What the adapter's promises rest on cannot be set otherwise. The rest can, by ``KafkaBroker(url, settings={…})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from oncommit.errors import ConfigError

Settings = dict[str, Any]

PORT: Final = 9092
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OPTIONS: Final = ("ca", "max_message", "sasl", "tls")
MAX_MESSAGE: Final = 1_000_000
"""Bytes; what a broker takes that nobody has configured, with room for what Kafka adds."""

_PROMISED: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    # Nothing of a partition is accepted behind something that was refused.
    "enable.gapless.guarantee": True,
    "max.in.flight.requests.per.connection": 5,
    # Messages that time out one by one would leave gaps that the guarantee does not cover: the adapter gives up all.
    "message.timeout.ms": 0,
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "oncommit",
    "compression.type": "lz4",
    "linger.ms": 5,
    "request.timeout.ms": 30_000,
    # As the Java client does it, so that everybody looks for a key in the same partition.
    "partitioner": "murmur2_random",
    # A topic is given so long to appear. librdkafka's 30 s would hold up all others in the batch.
    "topic.metadata.propagation.max.ms": 1_000,
    # A topic that takes no more than this at once gets its messages one by one (see kafka.py); rarely, then.
    "batch.size": 256 * 1024,
    "queue.buffering.max.kbytes": 64 * 1024,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    "message.max.bytes": MAX_MESSAGE,
}
_CAREFUL: Final[Mapping[str, Any]] = {
    # One of a key is in flight, so nothing can be overtaken, and one that is refused is refused alone.
    "enable.idempotence": False,
    "enable.gapless.guarantee": False,
    "batch.num.messages": 1,
    "linger.ms": 0,
}


def settings_of(url: str, more: Mapping[str, Any] | None = None) -> Settings:
    """What librdkafka is told. Raises ``ConfigError``, which never repeats a password."""
    place, _, query = url.partition("://")[2].partition("?")
    login, at, hosts = place.rpartition("@")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ConfigError(f"kafka:// has no option {unknown[0]!r}; there are: {', '.join(OPTIONS)}")
    settings: Settings = dict(_DEFAULTS) | {"bootstrap.servers": _servers(hosts)}
    if "max_message" in options:
        settings["message.max.bytes"] = limit = _number(options["max_message"])
        settings["queue.buffering.max.kbytes"] = max(settings["queue.buffering.max.kbytes"], limit // 512)
    settings |= _security(login if at else None, options)
    if refused := sorted(set(more or {}) & set(_PROMISED)):
        raise ConfigError(f"the setting {refused[0]!r} cannot be changed: what the adapter promises rests on it")
    return settings | dict(more or {}) | dict(_PROMISED)


def careful(settings: Settings) -> Settings:
    """The same, each message on its own."""
    return settings | dict(_CAREFUL)


def _servers(hosts: str) -> str:
    names = [host.strip() for host in hosts.rstrip("/").split(",")]
    if not all(names) or any("/" in name for name in names):
        raise ConfigError("a Kafka is given as kafka://host:9092, or several: kafka://host:9092,host2:9092")
    return ",".join(name if _has_port(name) else f"{name}:{PORT}" for name in names)


def _has_port(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and not name.endswith("]")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise ConfigError("kafka://…?max_message= takes a number of bytes, such as 5000000")
    return int(text)


def _security(login: str | None, options: Mapping[str, str]) -> Settings:
    tls = options.get("tls", "false").lower()
    if tls not in ("true", "false"):
        raise ConfigError("kafka://…?tls= is either true or false")
    settings: Settings = {}
    if options.get("ca"):
        settings["ssl.ca.location"] = options["ca"]
        tls = options.get("tls", "true").lower()
    if login is None:
        if "sasl" in options:
            raise ConfigError("kafka://…?sasl= needs a login: kafka://user:password@host:9092?sasl=…")
        return settings | {"security.protocol": "SSL"} if tls == "true" else settings
    mechanism = options.get("sasl", "").upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(f"a login to Kafka needs to know how: add ?sasl= with one of {', '.join(MECHANISMS)}")
    user, _, password = login.partition(":")
    return settings | {
        "security.protocol": "SASL_SSL" if tls == "true" else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": unquote(user),
        "sasl.password": unquote(password),
    }
