"""How a broker spells CloudEvents in its headers.

HTTP, Kafka and AMQP follow their published bindings. AMQP has two spellings and prefers the underscore; both are read,
and on RabbitMQ also the ``ce-`` of its AMQP 0-9-1 binding. The NATS binding had no headers in 1.0.2; what is here is
its 1.0.3 draft, with the content type under both names. Redis has no binding: ours is that of NATS without the
encoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote

import msgspec

STRUCTURED: Final = "application/cloudevents+json"
"""The content type that says: structured mode."""


class Binding(msgspec.Struct, frozen=True):
    """One way of spelling."""

    name: str
    prefix: str
    """What stands before the name of an attribute."""
    content_type: tuple[str, ...] = ("content-type",)
    """The headers that carry the content type; none where the protocol has a field of its own for it."""
    percent: bool = False
    """Header values are percent-encoded, because the protocol can carry nothing but printable ASCII."""
    also: tuple[str, ...] = ()
    """Prefixes that are read, though never written."""

    def attribute(self, header: str) -> str | None:
        """The attribute that a header carries, where it carries one."""
        if header.startswith(self.prefix):  # as we write it: the usual case
            return header[len(self.prefix) :].lower()
        lower = header.lower()
        for prefix in (self.prefix, *self.also):
            if lower.startswith(prefix.lower()):
                return lower[len(prefix) :]
        return None


HTTP: Final = Binding("http", "ce-", percent=True)
KAFKA: Final = Binding("kafka", "ce_")
AMQP: Final = Binding("amqp", "cloudEvents_", content_type=(), also=("cloudEvents:", "ce-"))
NATS: Final = Binding("nats", "ce-", content_type=("content-type", "ce-datacontenttype"), percent=True)
REDIS: Final = Binding("redis", "ce-")

BINDINGS: Final[Mapping[str, Binding]] = MappingProxyType({one.name: one for one in (HTTP, KAFKA, AMQP, NATS, REDIS)})

# ── Values of attributes: as the HTTP binding says (3.1.3.2) ─────────────────────────────────────────

_SENDABLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
_QUOTED_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)


def can_travel(value: str) -> bool:
    """Whether this needs no percent-encoding."""
    # isprintable is true of the space, and of nothing else in ASCII that must be encoded but these two.
    return value.isascii() and value.isprintable() and " " not in value and '"' not in value and "%" not in value


def encode_value(value: str) -> str:
    """The value of an attribute, percent-encoded where it has to be."""
    return value if can_travel(value) else quote(value, safe=_SENDABLE)


def decode_value(value: str) -> str:
    """The way back, also for the quoted strings of older senders. Raises UnicodeDecodeError."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _QUOTED_PAIR.sub(r"\1", value[1:-1])
    return unquote(value, errors="strict") if "%" in value else value


# ── Values of plain headers: readable for those who know nothing of the encoding ─────────────────────

_PRINTABLE: Final = _SENDABLE + '" '
_IN_NEED: Final = re.compile(r"%[0-9A-Fa-f]{2}|[^\x20-\x7e]|\A | \Z").search
_ENCODED: Final = re.compile("%[0-9A-Fa-f]{2}").search


def encode_plain(value: str) -> str:
    """A plain header's value: as it is, if it can travel and cannot be taken for an encoded one."""
    if not _IN_NEED(value):
        return value
    return quote(value, safe=_PRINTABLE if value.strip(" ") == value else _PRINTABLE.rstrip())


def decode_plain(value: str) -> str:
    """The way back. What is no encoding of ours stays as it is."""
    if not _ENCODED(value):
        return value
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        return value
