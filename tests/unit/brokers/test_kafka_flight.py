"""Which messages of a batch may be in flight together on Kafka, and what is certain in the end."""

from __future__ import annotations

from typing import Any

import pytest

from oncommit.brokers.base import Message
from oncommit.brokers.kafka_flight import HELD_BACK, Flight
from oncommit.brokers.kafka_written import MOST_KEYS, Written
from oncommit.errors import BrokerError, PublishRejected, TopicUnavailable

POISON = "poison"


class Report:
    """As the client's: where a message was written."""

    def __init__(self, offset: int | None = 7, partition: int = 0) -> None:
        self._offset, self._partition = offset, partition

    def offset(self) -> int | None:
        return self._offset

    def partition(self) -> int:
        return self._partition


def batch(*told: str) -> list[Message]:
    """Each as `topic/key`, or `topic` alone."""
    return [
        Message(str(number), topic, key or None, {}, b"", None)
        for number, (topic, _, key) in enumerate(one.partition("/") for one in told)
    ]


def everywhere(*topics: str) -> Written:
    written = Written()
    written.learn(dict.fromkeys(topics, 1))
    for topic in topics:
        written.note(topic, None, 0)
    return written


def flight(*told: str, written: Written | None = None) -> Flight:
    return Flight(batch(*told), range(len(told)), {one.partition("/")[0] for one in told}, written)


def gone(flight: Flight) -> list[int]:
    """What goes now."""
    going = list(flight.ready)
    flight.open += len(going)
    flight.ready.clear()
    return going


def cause(error: Any, _message: Message) -> BrokerError | None:
    return PublishRejected("too large") if error == POISON else None


def test_a_key_of_one_topic_goes_together() -> None:
    assert gone(flight("t/a", "t/a", "t", "t/b", written=everywhere("t"))) == [0, 1, 2, 3]


def test_where_a_key_changes_its_topic_it_waits_for_the_whole_stretch() -> None:
    one = flight("t/a", "t/a", "u/a", "u/a", "t/a", "t/b", written=everywhere("t", "u"))
    assert gone(one) == [0, 1, 5]
    one.landed(0, None, Report())
    assert gone(one) == []
    one.landed(1, None, Report())
    assert gone(one) == [2, 3]
    one.landed(2, None, Report())
    one.landed(3, None, Report())
    assert gone(one) == [4]
    one.landed(4, None, Report())
    assert not one.is_good
    one.landed(5, None, Report())
    assert one.is_good


def test_where_nothing_is_written_yet_the_first_of_a_key_goes_alone() -> None:
    written = Written()
    written.learn({"t": 2})
    one = flight("t/a", "t/a", "t/a", "t", "t/b", written=written)
    assert gone(one) == [0, 3, 4]
    one.landed(0, None, Report(partition=1))
    assert gone(one) == [1, 2]
    assert written.knows("t", "a")
    assert not written.everywhere(["t"])
    one.landed(4, None, Report(partition=0))
    assert written.everywhere(["t"])


def test_one_by_one_each_waits() -> None:
    one = flight("t/a", "t/a", "t/a")
    for index in range(3):
        assert gone(one) == [index]
        one.landed(index, None, Report())
    assert one.is_good


def test_written_without_an_offset_is_not_written() -> None:
    one = flight("t/a", "t/a", "t/b", written=everywhere("t"))
    gone(one)
    one.landed(0, None, Report(offset=None))
    one.landed(1, None, Report())
    one.landed(2, None, Report())
    assert one.is_over
    assert not one.is_good
    outcomes, doubtful = one.sort_out(cause)
    assert doubtful == [0, 1]
    assert outcomes[2] is None


def test_behind_what_is_refused_for_certain_nothing_counts() -> None:
    one = flight("t/a", "t/a", "u/a", "t/b", written=everywhere("t", "u"))
    gone(one)
    one.landed(0, POISON, Report())
    one.landed(1, None, Report())  # which Kafka promises not to do
    one.landed(3, "for another's sake", Report())
    assert gone(one) == []
    outcomes, doubtful = one.sort_out(cause)
    assert isinstance(outcomes[0], PublishRejected)
    assert outcomes[1:3] == [HELD_BACK, HELD_BACK]
    assert doubtful == [3]


def test_our_own_refusal_is_certain_and_stops_its_key() -> None:
    one = flight("t/a", "u/a", "t", written=everywhere("t", "u"))
    one.refused(one.ready.popleft(), TopicUnavailable("no"))
    assert one.stopped == {"a"}
    assert gone(one) == [2]
    one.landed(2, "for another's sake", Report())
    outcomes, doubtful = one.sort_out(cause)
    assert isinstance(outcomes[0], TopicUnavailable)
    assert outcomes[1] is HELD_BACK
    assert doubtful == [2]


def test_a_new_partition_makes_a_topic_young_again() -> None:
    written = everywhere("t")
    written.learn({"t": 2})
    assert not written.everywhere(["t"])
    written.note("t", "k", 1)
    assert written.everywhere(["t"])


def test_of_a_topic_nobody_was_told_of_keys_are_remembered_up_to_a_limit() -> None:
    written = Written()
    written.note("t", "first", 0)
    assert written.knows("t", "first")
    for number in range(MOST_KEYS):
        written.note("t", str(number), 0)
    assert not written.knows("t", "first")
    assert not written.everywhere(["t"])


@pytest.mark.parametrize("written", [None, Written(), everywhere("t", "u")])
def test_an_empty_batch_is_good(written: Written | None) -> None:
    assert flight(written=written).is_good
