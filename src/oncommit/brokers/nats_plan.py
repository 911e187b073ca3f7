"""Which messages of a publish go to JetStream as atomic batches, and which one by one. Pure.

An atomic batch is stored whole and in order, or not at all, and is answered once: a third of the work a message, and
the only way to have two messages of a key in flight together. It costs a few milliseconds, so a handful goes faster one
by one. A batch goes to one stream, which has to allow it; so do all messages of a key, or they could overtake each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from oncommit.brokers.base import Message

WORTH_IT: Final = 500
"""Messages of one stream from which on batches are faster, whatever their keys."""
LONG_CHAIN: Final = 32
"""Messages of one key from which on they are faster than waiting for an answer each time."""
MOST: Final = 1000
"""Messages in a batch that a server takes."""
MOST_BYTES: Final = 4 * 1024 * 1024
SIDE_BY_SIDE: Final = 4
"""Batches in flight: while one is stored, the next is written."""


class Plan(NamedTuple):
    """Places in the batch that was given."""

    groups: list[list[int]]
    """Each to be sent as atomic batches, one after the other; different groups side by side."""
    singly: list[int]


def plan(batch: Sequence[Message], stream_of: Callable[[str], str | None], *, worth_it: int = WORTH_IT) -> Plan:
    """Divide it. ``stream_of`` names the stream of a topic that takes atomic batches, if it is known to."""
    streams: dict[str, str | None] = {}
    key_streams: dict[str, str | None] = {}
    chosen: list[str | None] = []
    for message in batch:
        topic, key = message.topic, message.key
        stream = streams[topic] if topic in streams else streams.setdefault(topic, stream_of(topic))
        chosen.append(stream)
        if key is not None and key_streams.setdefault(key, stream) != stream:
            key_streams[key] = None
    by_stream: dict[str, list[int]] = {}
    singly: list[int] = []
    for index, message in enumerate(batch):
        stream = chosen[index] if message.key is None else key_streams[message.key]
        if stream is None:
            singly.append(index)
        else:
            by_stream.setdefault(stream, []).append(index)
    groups: list[list[int]] = []
    for places in by_stream.values():
        if len(places) >= worth_it or _longest_chain(batch, places) >= min(LONG_CHAIN, worth_it):
            groups += _divide(batch, places)
        else:
            singly += places
    return Plan(groups, sorted(singly))


def chunks(batch: Sequence[Message], places: Iterable[int]) -> Iterator[list[int]]:
    """Cut a group into batches that a server takes."""
    chunk: list[int] = []
    size = 0
    for index in places:
        length = len(batch[index].body)
        if chunk and (len(chunk) == MOST or size + length > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(index)
        size += length
    if chunk:
        yield chunk


def _longest_chain(batch: Sequence[Message], places: Iterable[int]) -> int:
    counts: dict[str, int] = {}
    for index in places:
        if (key := batch[index].key) is not None:
            counts[key] = counts.get(key, 0) + 1
    return max(counts.values(), default=0)


def _divide(batch: Sequence[Message], places: Sequence[int]) -> list[list[int]]:
    """Groups of about the same size, all of a key in one."""
    count = min(SIDE_BY_SIDE, -(-len(places) // MOST))
    groups: list[list[int]] = [[] for _ in range(count)]
    of_key: dict[str, list[int]] = {}
    for index in places:
        key = batch[index].key
        group = of_key.get(key) if key is not None else None
        if group is None:
            group = min(groups, key=len)
            if key is not None:
                of_key[key] = group
        group.append(index)
    return [group for group in groups if group]
