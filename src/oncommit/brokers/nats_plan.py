"""Which messages of a publish go to JetStream as a flow, and which one by one. Pure.

A flow (nats_flow.py) is several times quicker, and the only way to have two messages of a key in flight together. It
costs a round trip to begin and one to end, so a handful goes one by one. It goes to one stream, which has to allow it;
so do all messages of a key, or they could overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from oncommit.brokers.base import Message

WORTH_IT: Final = 64
"""Messages of one stream from which on a flow is quicker, whatever their keys."""
LONG_CHAIN: Final = 4
"""Messages of one key from which on it is quicker than waiting for an answer each time."""


class Plan(NamedTuple):
    """Places in the batch that was given."""

    flows: list[list[int]]
    """Each to one stream."""
    singly: list[int]


def plan(batch: Sequence[Message], stream_of: Callable[[str], str | None], *, worth_it: int = WORTH_IT) -> Plan:
    """Divide it. ``stream_of`` names the stream of a topic that allows flows, if it is known to."""
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
    flows: list[list[int]] = []
    for places in by_stream.values():
        if len(places) >= worth_it or _longest_chain(batch, places) >= min(LONG_CHAIN, worth_it):
            flows.append(places)
        else:
            singly += places
    return Plan(flows, sorted(singly))


def _longest_chain(batch: Sequence[Message], places: Iterable[int]) -> int:
    counts: dict[str, int] = {}
    for index in places:
        if (key := batch[index].key) is not None:
            counts[key] = counts.get(key, 0) + 1
    return max(counts.values(), default=0)
