"""What must be true of what arrived. Pure; the messages say what was asked for, in the order of their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import BrokerError
from oncommit.testing.conformance.bench import Arrived


def acknowledged(messages: Sequence[Message], outcomes: Sequence[Outcome]) -> list[Message]:
    """Those that the adapter says the broker has; one outcome each, every one of a kind that there is."""
    assert len(outcomes) == len(messages), f"{len(outcomes)} outcomes for {len(messages)} messages"
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, BrokerError), f"{outcome!r} is no outcome"
    return [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None]


def check_all(messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
    """Every one was acknowledged."""
    acknowledged(messages, outcomes)
    bad = [outcome for outcome in outcomes if outcome is not None]
    assert not bad, f"{len(bad)} of {len(messages)} were not acknowledged, the first with {bad[0]!r}"


def check_there(arrived: Sequence[Arrived], messages: Iterable[Message]) -> None:
    """Each of these has arrived, at least once."""
    there = {one.message_id for one in arrived}
    lost = [message for message in messages if message.message_id not in there]
    assert not lost, f"{len(lost)} acknowledged messages are not there, the first is {lost[0].message_id}"


def check_once(arrived: Sequence[Arrived], messages: Iterable[Message]) -> None:
    """Each of these has arrived exactly once, and nothing else has."""
    counted = Counter(one.message_id for one in arrived)
    wanted = Counter(message.message_id for message in messages)
    assert counted == wanted, f"too often: {counted - wanted}; too seldom: {wanted - counted}"


def check_order(arrived: Sequence[Arrived], messages: Sequence[Message]) -> None:
    """Of each key: what arrived for the first time stands in the order of the messages, and has no gap.

    A gap means that the broker took a message although it had not taken one before it.
    """
    places = {message.message_id: place for place, message in enumerate(messages)}
    keys: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        if message.key is not None:
            keys.setdefault(message.key, []).append(place)
    firsts: dict[str, list[int]] = {}
    for place in dict.fromkeys(places[one.message_id] for one in arrived if one.message_id in places):
        if (key := messages[place].key) is not None:
            firsts.setdefault(key, []).append(place)
    for key, found in firsts.items():
        assert found == keys[key][: len(found)], f"key {key!r}: sent {keys[key]}, arrived {found}"


def check_equal(arrived: Arrived, message: Message, *, carries_key: bool) -> None:
    """It is the same, byte for byte; the broker or the adapter may have added headers."""
    assert arrived.message_id == message.message_id
    assert arrived.body == message.body
    for name, value in message.headers.items():
        assert arrived.headers.get(name) == value, f"header {name!r}"
    if arrived.content_type is not None:
        assert arrived.content_type == message.content_type
    if carries_key:
        assert arrived.key == message.key
