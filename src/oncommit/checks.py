"""The checks that an event passes on construction. Pure; written for the common case, as every event pays for them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

import msgspec

from oncommit import codec
from oncommit.errors import ConfigError, InvalidEvent
from oncommit.identifiers import DEFAULT_SINK, check_sink

if TYPE_CHECKING:
    from oncommit.message import Event

# In bytes of UTF-8. The archive's indexes hold the aggregate and the correlation id, and PostgreSQL's index entries end
# at 2,700 bytes; the schema has the same limits, so that plain SQL cannot write what the relay could never archive.
MAX_TYPE: Final = 255
MAX_AGGREGATE_ID: Final = 1024
MAX_KEY: Final = 1024
MAX_TOPIC: Final = 255
MAX_CORRELATION: Final = 512
MAX_HEADERS: Final = 16 * 1024
MAX_COUNT: Final = 2**31 - 1
MAX_PRIORITY: Final = 9

RESERVED_HEADERS: Final = {
    "message_id": "id",
    "content-type": "content_type",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "correlation_id": "correlation_id",
    "causation_id": "causation_id",
}
RESERVED_PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_", "oncommit-", "oncommit_")

# A field name of RFC 9110, which every broker of ours takes.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CONTENT_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;\s*[\w.+-]+=(\"[^\"\x00-\x1f]*\"|[\w.+-]+))*", re.ASCII)
_IDENTITY: Final = (str, int, UUID)
_UNSENDABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def check_event(event: Event[Any]) -> None:
    """Raise ``InvalidEvent`` for the first field that is wrong."""
    kind = event.type
    if not isinstance(kind, str):
        raise InvalidEvent("type", f"must be text, not {type(kind).__name__}")
    if not (kind.isascii() and kind.isprintable() and 0 < len(kind) <= MAX_TYPE):
        _text(event, "type", kind, MAX_TYPE)
    if event.aggregate is not None:
        _aggregate(event, event.aggregate)
    if not isinstance(event.id, UUID):
        _refuse(event, "id", f"must be a UUID, not {type(event.id).__name__}")
    if type(event.priority) is not int or not 0 <= event.priority <= MAX_PRIORITY:
        _integer(event, "priority", event.priority, 0, MAX_PRIORITY)
    if type(event.schema_version) is not int or not 1 <= event.schema_version <= MAX_COUNT:
        _integer(event, "schema_version", event.schema_version, 1, MAX_COUNT)
    if event.sink != DEFAULT_SINK:
        try:
            check_sink(event.sink)
        except ConfigError as error:
            raise InvalidEvent("sink", str(error), event=describe(event)) from error
    if event.headers:
        _headers(event, event.headers)
    _optional(event)


def _optional(event: Event[Any]) -> None:
    """The fields that most events leave alone."""
    if event.key is not None:
        _text(event, "key", event.key, MAX_KEY)
    if event.topic is not None:
        _text(event, "topic", event.topic, MAX_TOPIC)
    if event.not_before is not None:
        _moment(event, event.not_before)
    if event.content_type is not None:
        _content_type(event, event.content_type)
    if event.max_attempts is not None:
        _integer(event, "max_attempts", event.max_attempts, 1, MAX_COUNT)
    _relations(event)


def _relations(event: Event[Any]) -> None:
    """What the event belongs to."""
    if event.correlation_id is not None:
        _text(event, "correlation_id", event.correlation_id, MAX_CORRELATION)
    if event.causation_id is not None:
        _text(event, "causation_id", event.causation_id, MAX_CORRELATION)
    if event.saga_id is not None and not isinstance(event.saga_id, UUID):
        _refuse(event, "saga_id", f"must be a UUID, not {type(event.saga_id).__name__}")
    if event.traceparent is not None:
        _text(event, "traceparent", event.traceparent, MAX_TYPE)
        if not is_traceparent(event.traceparent):
            _refuse(event, "traceparent", "is no W3C trace context (00-<32 hex>-<16 hex>-<2 hex>)")
    if event.tracestate is not None:
        _text(event, "tracestate", event.tracestate, MAX_CORRELATION)


def _aggregate(event: Event[Any], aggregate: object) -> None:
    if not isinstance(aggregate, tuple) or len(aggregate) != 2:  # noqa: PLR2004 - type and id
        _refuse(event, "aggregate", 'must be a pair of type and id, such as ("order", 42)')
    kind, identity = aggregate
    _text(event, "aggregate type", kind, MAX_TYPE)
    if isinstance(identity, bool) or not isinstance(identity, _IDENTITY):
        _refuse(event, "aggregate id", f"must be text, a whole number or a UUID, not {type(identity).__name__}")
    if isinstance(identity, str):
        _text(event, "aggregate id", identity, MAX_AGGREGATE_ID)
    elif isinstance(identity, int):
        _integer(event, "aggregate id", identity, -(2**127), 2**128 - 1)


def _headers(event: Event[Any], headers: object) -> None:
    if not isinstance(headers, Mapping):
        _refuse(event, "headers", f"must be a mapping of text to text, not {type(headers).__name__}")
    # A copy of our own: what the caller does to his mapping afterwards has not been checked.
    msgspec.structs.force_setattr(event, "headers", dict(headers))
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            _refuse(event, "headers", f"{name!r} is no header name: letters, digits and punctuation, 128 at most")
        lower = name.lower()
        if lower in RESERVED_HEADERS:
            _refuse(event, "headers", f"{name!r} is set by oncommit: give Event({RESERVED_HEADERS[lower]}=…) instead")
        if lower.startswith(RESERVED_PREFIXES):
            _refuse(event, "headers", f"{name!r} has a prefix that CloudEvents and oncommit keep for themselves")
        if not isinstance(value, str):
            _refuse(event, f"headers[{name!r}]", f"must be text, not {type(value).__name__}")
        if value:
            _text(event, f"headers[{name!r}]", value, MAX_HEADERS)
        size += len(name) + len(value)
    if size > MAX_HEADERS:
        _refuse(event, "headers", f"{size} characters together; the limit is {MAX_HEADERS}")


def is_users_header(name: object) -> bool:
    """Whether a user may give a header of this name: one that can be sent, and that oncommit does not set itself."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        return False
    lower = name.lower()
    return lower not in RESERVED_HEADERS and not lower.startswith(RESERVED_PREFIXES)


def is_traceparent(text: str) -> bool:
    """Whether this is a W3C trace context of version 00."""
    return _TRACEPARENT.fullmatch(text) is not None


def _moment(event: Event[Any], moment: object) -> None:
    if not isinstance(moment, datetime):
        _refuse(event, "not_before", f"must be a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        _refuse(event, "not_before", "has no time zone; say which moment it is, such as datetime.now(UTC)")


def _content_type(event: Event[Any], content_type: object) -> None:
    if not isinstance(content_type, str) or not _CONTENT_TYPE.fullmatch(content_type) or len(content_type) > MAX_TYPE:
        _refuse(event, "content_type", f"{content_type!r} is no media type, such as application/avro")
    if codec.is_json(content_type) and "charset" in content_type.lower() and "utf-8" not in content_type.lower():
        _refuse(event, "content_type", "JSON is UTF-8 here")


def _integer(event: Event[Any], field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _refuse(event, field, f"must be a whole number from {least} to {most}, not {value!r}")


def _text(event: Event[Any], field: str, value: object, limit: int) -> None:
    if isinstance(value, str) and value.isascii() and value.isprintable() and 0 < len(value) <= limit:
        return
    if (problem := problem_of_text(value, limit)) is not None:
        _refuse(event, field, problem)


def problem_of_text(value: object, limit: int) -> str | None:
    """What keeps this from being text without control characters or surrogates, within a limit of UTF-8 bytes."""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if not value:
        return "is empty"
    if len(value) <= limit and value.isascii() and value.isprintable():
        return None
    # Each character has a byte at least, so a hostile value is not looked at one by one.
    if len(value) > limit:
        return f"is {len(value)} characters long; the limit is {limit} bytes"
    # What splits or poisons headers, subjects and log lines: controls, lone surrogates, line and paragraph separators.
    for character in value:
        if unicodedata.category(character) in _UNSENDABLE:
            return f"has the character U+{ord(character):04X}, which cannot be sent"
    size = len(value.encode())
    return f"is {size} bytes long; the limit is {limit}" if size > limit else None


def _refuse(event: Event[Any], field: str, problem: str) -> NoReturn:
    raise InvalidEvent(field, problem, event=describe(event))


def describe(event: Event[Any]) -> str:
    """How an error names an event."""
    kind = event.type if len(event.type) <= MAX_TYPE else event.type[:60] + "…"
    return f"{kind!r} ({event.id})"
