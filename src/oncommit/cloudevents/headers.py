"""Reading the headers of a message that may come from anybody: names, values, sizes, and which of them are whose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn, TypeAlias

import msgspec

from oncommit import checks
from oncommit.cloudevents.binding import Binding, decode_plain, decode_value
from oncommit.errors import CloudEventError

Headers: TypeAlias = Mapping[str, object] | Mapping[bytes, object] | Iterable[tuple[str | bytes, object]] | None
"""As clients give them: a mapping, or pairs where a name may come twice; text or bytes; from AMQP also native types."""

MAX_HEADER_BYTES: Final = 64 * 1024

is_attribute_name: Final = re.compile("[a-z0-9]{1,64}").fullmatch


class Parts(msgspec.Struct, frozen=True):
    """Headers, sorted."""

    attributes: dict[str, str]
    known: dict[str, str]
    """The plain headers that oncommit sets itself, by their lower-case names."""
    users: dict[str, str]
    content_type: str | None
    ignored: list[str]


def complain(attribute: str, problem: str) -> NoReturn:
    """Raise what is wrong with an attribute."""
    raise CloudEventError(f"attribute {attribute[:80]!r}: {problem}")


def read_headers(headers: Headers, binding: Binding, content_type: str | None) -> Parts:
    """Sort them. Raises ``CloudEventError`` for too many, and for attributes that cannot be read."""
    parts = Parts({}, {}, {}, None, [])
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    size = 0
    for raw_name, raw_value in pairs:
        size += len(raw_name) + (len(raw_value) if isinstance(raw_value, str | bytes | bytearray) else 1)
        if size > MAX_HEADER_BYTES:
            complain("headers", f"are more than {MAX_HEADER_BYTES} bytes together")
        name = raw_name if isinstance(raw_name, str) else _utf8(raw_name)
        if name is None:
            parts.ignored.append(repr(raw_name[:80]))
        elif (attribute := binding.attribute(name)) is not None:
            _take_attribute(parts, attribute, raw_value, binding)
        else:
            _take_plain(parts, name, raw_value)
    if binding.percent and "message_id" in parts.known:
        _decode(parts)
    for name in [name for name, value in parts.users.items() if value and checks.problem_of_text(value, size)]:
        parts.ignored.append(name)
        del parts.users[name]
    found = content_type or parts.known.get("content-type") or parts.attributes.get("datacontenttype")
    return Parts(parts.attributes, parts.known, parts.users, found or None, parts.ignored)


def _take_attribute(parts: Parts, name: str, raw: object, binding: Binding) -> None:
    if not is_attribute_name(name):
        parts.ignored.append(name[:80])
        return
    value = _text(_moment(raw) if name == "time" else raw)
    if value is None:
        complain(name, "is no UTF-8 text")
    if binding.percent:
        try:
            value = decode_value(value)
        except UnicodeDecodeError as error:
            raise CloudEventError(f"attribute {name!r}: is percent-encoded, but not UTF-8") from error
    if parts.attributes.setdefault(name, value) != value:
        complain(name, "comes twice, with different values")


def _take_plain(parts: Parts, name: str, raw: object) -> None:
    value = _text(raw)
    if value is not None and name.lower() in checks.RESERVED_HEADERS:
        parts.known[name.lower()] = value
    elif value is not None and checks.is_users_header(name):
        parts.users[name] = value
    else:
        parts.ignored.append(name[:80])


def _decode(parts: Parts) -> None:
    """Undo what a sender of ours did to plain values. Others never did it, so theirs stay as they are."""
    for plain in (parts.known, parts.users):
        for name, value in plain.items():
            plain[name] = decode_plain(value)


def _text(raw: object) -> str | None:
    """A header's value as text; nothing where it has no such form."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bytes | bytearray | memoryview):
        return _utf8(raw)
    if isinstance(raw, bool | int):
        return str(raw).lower()
    return raw.isoformat() if isinstance(raw, datetime) else None


def _utf8(raw: bytes | bytearray | memoryview) -> str | None:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        return None


def _moment(raw: object) -> object:
    """AMQP's own timestamps are milliseconds since 1970."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return raw
    try:
        return datetime.fromtimestamp(raw / 1000, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise CloudEventError("attribute 'time': is no moment within the years 1 to 9999") from error
