"""Payloads to bytes and back: JSON by msgspec, and bytes as they are.

JSON as msgspec writes it, with three refusals: NaN and the infinities (it would write ``null``), NUL characters
(PostgreSQL could store but never read them) and lone surrogates (no UTF-8 for them).
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"

# In MessagePack a double is 0xCB and eight bytes; all bits of its exponent are set where it is not finite.
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
# An escaped NUL is \u0000 behind an even number of backslashes; behind an odd number the backslash itself is escaped.
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Unserialisable(Exception):
    """A value that cannot become JSON, and where in the payload it sits. message.py makes a PayloadError of it."""

    def __init__(self, problem: str, path: str = "payload") -> None:
        self.problem = problem
        self.path = path
        super().__init__(f"{path}: {problem}")


def _extend(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models, without importing pydantic; and subclasses of scalars."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    # As their base class sees them: str(value) would ask what the subclass makes of itself.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    msg = f"a {type(value).__module__}.{type(value).__qualname__} has no JSON form"
    raise TypeError(msg)


_encode = msgspec.json.Encoder(enc_hook=_extend).encode
_pack = msgspec.msgpack.Encoder(enc_hook=_extend).encode
_decode = msgspec.json.Decoder().decode


def encode(payload: Any) -> bytes:
    """The payload as JSON: dict, list, scalar, dataclass, msgspec struct, pydantic model, and what they hold."""
    try:
        encoded = _encode(payload)
    except UnicodeEncodeError as error:
        problem = "has a lone surrogate, which has no UTF-8 form"
        raise Unserialisable(problem, _find(payload, _has_surrogate)) from error
    except RecursionError as error:
        problem = "refers to itself or is nested too deeply"
        raise Unserialisable(problem) from error
    except Exception as error:  # an object's own serialiser may raise whatever it likes
        raise Unserialisable(str(error) or type(error).__name__) from error
    # Both checks look for what cannot be missed in bytes, and only then walk the payload.
    if b"null" in encoded and _may_hold_nan(payload) and (path := _find(payload, _is_nan)):
        problem = "NaN and infinity have no JSON form"
        raise Unserialisable(problem, path)
    if b"\\" in encoded and b"\\u0000" in encoded and _ESCAPED_NUL.search(encoded):
        problem = "has a NUL character, which PostgreSQL text cannot hold"
        raise Unserialisable(problem, _find(payload, _has_nul) or "payload")
    return encoded


def decode(data: bytes | str) -> Any:
    """JSON to plain values. Raises ValueError for what is no JSON."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        msg = f"not JSON: {error}"
        raise ValueError(msg) from error


def is_json(content_type: str) -> bool:
    """Whether this content type is JSON, by name or by suffix (RFC 6839)."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def _may_hold_nan(payload: Any) -> bool:
    """Whether a ``null`` in the JSON may have been a NaN.

    MessagePack keeps NaN and None apart, and writing it takes a twentieth of the time of a walk. Other bytes may look
    like NaN there; the walk decides.
    """
    try:
        return _NOT_FINITE.search(_pack(payload)) is not None
    except Exception:  # noqa: BLE001 - what JSON can hold and MessagePack cannot, such as integers beyond 64 bits
        return True


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _has_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _has_surrogate(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _find(payload: Any, bad: Any) -> str:
    """The path of the first bad scalar, for the error message; empty where there is none."""
    plain = msgspec.to_builtins(payload, enc_hook=_extend, str_keys=True)
    waiting: list[tuple[str, Any]] = [("payload", plain)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((f"{path} (a key)", key) for key in value)
            waiting.extend((f"{path}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            waiting.extend((f"{path}[{number}]", item) for number, item in enumerate(value))
        elif bad(value):
            return path.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return ""
