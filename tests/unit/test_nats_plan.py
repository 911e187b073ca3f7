"""What goes as atomic batches: whole keys, to one stream each, in order, no batch larger than a server takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncommit.brokers.base import Message
from oncommit.brokers.nats_plan import LONG_CHAIN, MOST, MOST_BYTES, SIDE_BY_SIDE, WORTH_IT, chunks, plan


def message(key: str | None = None, topic: str = "one.a", size: int = 2) -> Message:
    return Message("id", topic, key, {}, b"x" * size, None)


def stream_of(topic: str) -> str | None:
    return {"one.a": "one", "one.b": "one", "two.a": "two"}.get(topic)


def test_a_handful_goes_one_by_one() -> None:
    batch = [message(str(n)) for n in range(WORTH_IT - 1)]
    assert plan(batch, stream_of) == ([], list(range(WORTH_IT - 1)))


def test_many_go_side_by_side() -> None:
    groups, singly = plan([message(str(n)) for n in range(5000)], stream_of)
    assert not singly
    assert [len(group) for group in groups] == [1250] * SIDE_BY_SIDE


def test_a_long_chain_goes_as_a_batch() -> None:
    batch = [message("a") for _ in range(LONG_CHAIN)]
    assert plan(batch, stream_of) == ([list(range(LONG_CHAIN))], [])
    assert plan(batch[1:], stream_of) == ([], list(range(LONG_CHAIN - 1)))


def test_a_key_that_goes_to_two_streams_keeps_its_order_one_by_one() -> None:
    batch = [message("a", "one.a"), message("b", "one.a"), message("a", "two.a"), message("b", "one.b")]
    assert plan(batch, stream_of, worth_it=2) == ([[1, 3]], [0, 2])


def test_a_batch_is_no_larger_than_a_server_takes() -> None:
    batch = [message("a") for _ in range(2 * MOST + 1)]
    assert [len(chunk) for chunk in chunks(batch, range(len(batch)))] == [MOST, MOST, 1]
    large = [message("a", size=MOST_BYTES // 2) for _ in range(5)]
    assert list(chunks(large, range(5))) == [[0, 1], [2, 3], [4]]
    assert list(chunks([message(size=2 * MOST_BYTES)], [0])) == [[0]]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from(["one.a", "one.b", "two.a", "none"])),
        max_size=60,
    )
)
def test_every_message_goes_once_and_every_key_in_order(spec: list[tuple[str | None, str]]) -> None:
    batch = [message(key, topic) for key, topic in spec]
    groups, singly = plan(batch, stream_of, worth_it=2)
    assert sorted([index for group in groups for index in group] + singly) == list(range(len(batch)))
    for key in "abcd":
        homes = [place for place in [*groups, singly] if any(batch[index].key == key for index in place)]
        assert len(homes) <= 1
    for group in groups:
        assert group == sorted(group)
        assert len({stream_of(batch[index].topic) for index in group}) == 1
