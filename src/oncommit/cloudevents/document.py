"""The JSON document of structured mode, taken apart; the payload's bytes stay as they were written."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

import msgspec

from oncommit import codec
from oncommit.cloudevents.headers import complain, is_attribute_name
from oncommit.errors import CloudEventError

_CORE: Final = frozenset({"id", "source", "type", "subject", "time", "datacontenttype", "dataschema"})

_decode_document: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_member: Final = msgspec.json.Decoder(str | int | bool | None).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class Document(msgspec.Struct, frozen=True):
    """What was in it."""

    attributes: dict[str, str]
    data: bytes | None
    content_type: str | None
    ignored: list[str]


def read_document(body: bytes) -> Document:
    """Take it apart. Raises ``CloudEventError``."""
    try:
        members = _decode_document(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CloudEventError(f"attribute 'data': the structured event is no JSON object: {error}") from error
    json, octets = members.pop("data", None), members.pop("data_base64", None)
    attributes: dict[str, str] = {}
    ignored: list[str] = []
    for name, raw in members.items():
        if not is_attribute_name(name):
            ignored.append(name[:80])
        elif (text := _canonical(name, raw)) is not None:
            attributes[name] = text
    data, content_type = _data(json, octets, attributes.get("datacontenttype"))
    return Document(attributes, data, content_type, ignored)


def _canonical(name: str, raw: msgspec.Raw) -> str | None:
    """A member of the document as text; nothing where it is null, which means not set."""
    try:
        value = _decode_member(raw)
        if value is None or isinstance(value, str):
            return value
        text = str(value).lower()
    except (msgspec.DecodeError, ValueError) as error:
        raise CloudEventError(f"attribute {name[:80]!r}: must be text, a whole number or a boolean") from error
    if name in _CORE:
        complain(name, "must be text")
    return text


def _data(
    json: msgspec.Raw | None, octets: msgspec.Raw | None, content_type: str | None
) -> tuple[bytes | None, str | None]:
    """The payload's bytes, out of the document's two members for it, and their content type."""
    if json is not None and octets is not None:
        complain("data", "comes twice, as data and as data_base64")
    if octets is not None:
        try:
            return b64decode(_decode_text(octets), validate=True), content_type or codec.OCTETS
        except (msgspec.DecodeError, ValueError) as error:
            raise CloudEventError("attribute 'data_base64': is no Base64 text") from error
    if json is None:
        return None, None
    if content_type is None or codec.is_json(content_type):
        return bytes(json), content_type or codec.JSON
    try:
        return _decode_text(json).encode(), content_type
    except (msgspec.DecodeError, ValueError) as error:
        raise CloudEventError(f"attribute 'data': must be text for the content type {content_type[:80]!r}") from error
