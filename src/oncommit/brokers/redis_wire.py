"""What goes over the wire to Redis: entries, the script that adds them, and how much of it at a time. Pure.

Why a script. In a pipeline every command stands alone: one XADD can be refused and the next, of the same key, be taken,
and a transaction (MULTI) goes on behind a command that fails, too. The script stops at the first refusal of a key. It
also gives one answer for many messages, which is what a client in Python spends most of its time on: with it an event
costs a quarter of what it costs in a pipeline, at half as much again on the server.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from oncommit import codec
from oncommit.brokers.base import Message
from oncommit.brokers.redis_settings import RedisSettings
from oncommit.errors import PublishRejected

CHANNEL: Final = "pubsub://"
"""What a topic begins with that is no stream, but a channel of Pub/Sub."""
BODY: Final = b"ce-data"
"""The field with the payload: the prefix is ours, so that no header of the user can be taken for it."""
PREFIX: Final = "ce-"

MOST_FIELDS: Final = 3000
"""Lua takes about 8000 words in one call, and an entry has two for each field."""
CHUNK_MESSAGES: Final = 250
CHUNK_BYTES: Final = 256 * 1024
"""While the script runs, Redis does nothing else: a chunk is a millisecond or two of its time."""

NO_STREAM: Final = "NOSTREAM"

# ARGV: for each message the number of its words, then its words. The number is negative where the message stands behind
# another of the same key. Answers the numbers of the messages that were refused, each with the reason.
SCRIPT: Final = b"""\
local at, number, open, refused = 1, 0, true, {}
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  number = number + 1
  if words > 0 then open = true else words = -words end
  if open then
    local answer = redis.pcall(unpack(ARGV, at + 1, at + words))
    if not answer or (type(answer) == 'table' and answer.err) then
      open = false
      refused[#refused + 1] = number
      refused[#refused + 1] = answer and answer.err or 'NOSTREAM'
    end
  end
  at = at + words + 1
end
return refused
"""

_encode_json: Final = msgspec.json.Encoder().encode
_decode_json: Final = msgspec.json.Decoder().decode


class Entry(NamedTuple):
    """One message, as the words of its command."""

    place: int
    """In the batch."""
    stream: bytes | None
    words: int
    data: bytes

    @property
    def command(self) -> bytes:
        """As a command of its own."""
        return b"*%d\r\n%b" % (self.words, self.data)


Chain = list[Entry]
"""Messages of one key, each of which needs those before it."""


class Chunk(NamedTuple):
    """Chains that go into one call of the script."""

    chains: list[Chain]

    @property
    def command(self) -> bytes:
        """The call. It names its keys, so that Redis can check who may write to them before it begins."""
        streams = {entry.stream for chain in self.chains for entry in chain if entry.stream is not None}
        parts = [bulk(b"EVAL"), bulk(SCRIPT), bulk(b"%d" % len(streams)), *[bulk(stream) for stream in streams]]
        words = len(parts)
        for chain in self.chains:
            sign = b""
            for entry in chain:
                parts.append(bulk(b"%b%d" % (sign, entry.words)))
                parts.append(entry.data)
                words += entry.words + 1
                sign = b"-"
        return b"*%d\r\n%b" % (words, b"".join(parts))

    def entries(self) -> list[Entry]:
        """As the script counts them."""
        return [entry for chain in self.chains for entry in chain]


class Encoder:
    """Makes entries of messages."""

    def __init__(self, settings: RedisSettings, max_message: int) -> None:
        self._max = max_message
        options = b"" if settings.create else bulk(b"NOMKSTREAM")
        options += b"".join(map(bulk, (b"MAXLEN", b"~", b"%d" % settings.maxlen))) if settings.maxlen else b""
        self._options = options + bulk(b"*")
        self._option_words = 1 + (not settings.create) + 3 * bool(settings.maxlen)

    def encode(self, place: int, message: Message) -> Entry:
        """Raises ``PublishRejected`` for what Redis could not take."""
        try:
            entry = self._live(place, message) if message.topic.startswith(CHANNEL) else self._stored(place, message)
        except UnicodeEncodeError as error:
            raise PublishRejected(f"its headers are no Unicode text: {error}") from error
        if len(entry.data) > self._max:
            raise PublishRejected(f"{len(entry.data)} bytes are more than the {self._max} that Redis is sent")
        return entry

    def _stored(self, place: int, message: Message) -> Entry:
        headers = message.headers
        if len(headers) > MOST_FIELDS:
            raise PublishRejected(f"{len(headers)} headers are more than the {MOST_FIELDS} that an entry can have")
        stream = message.topic.encode()
        parts = [b"$4\r\nXADD\r\n", bulk(stream), self._options]
        for name, value in headers.items():
            first, second = name.encode(), value.encode()
            parts.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(second), second))
        fields = len(headers)
        if message.content_type is not None:
            parts += (b"$%d\r\n%b\r\n$%d\r\n" % (len(BODY), BODY, len(message.body)), message.body, b"\r\n")
            fields += 1
        return Entry(place, stream, 2 + self._option_words + 2 * fields, b"".join(parts))

    def _live(self, place: int, message: Message) -> Entry:
        words = (b"PUBLISH", message.topic.removeprefix(CHANNEL).encode(), document(message))
        return Entry(place, None, len(words), b"".join(map(bulk, words)))


def bulk(word: bytes) -> bytes:
    """One word of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def command(*words: bytes) -> bytes:
    """A command of these words."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def document(message: Message) -> bytes:
    """The message as one JSON document, as CloudEvents' structured mode has it: a channel knows no headers."""
    members: dict[str, object] = {
        name.removeprefix(PREFIX): value for name, value in message.headers.items() if name.startswith(PREFIX)
    }
    if message.content_type is not None:
        members["datacontenttype"] = message.content_type
        if codec.is_json(message.content_type) and _is_json(message.body):
            members["data"] = msgspec.Raw(message.body)
        else:
            members["data_base64"] = b64encode(message.body).decode()
    return _encode_json(members)


def _is_json(body: bytes) -> bool:
    """Whether it is what its content type says: bytes that are not would break out of the document."""
    try:
        _decode_json(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def chunks(chains: Iterable[Chain]) -> Iterator[Chunk]:
    """Pack whole chains: one that is cut could go on in the next chunk behind a refusal in this."""
    packed: list[Chain] = []
    messages = size = 0
    for chain in chains:
        length = sum(len(entry.data) for entry in chain)
        if packed and (messages + len(chain) > CHUNK_MESSAGES or size + length > CHUNK_BYTES):
            yield Chunk(packed)
            packed, messages, size = [], 0, 0
        packed.append(chain)
        messages += len(chain)
        size += length
    if packed:
        yield Chunk(packed)
