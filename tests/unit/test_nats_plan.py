"""What goes as a flow: whole keys, to one stream each, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncommit.brokers.base import Message
from oncommit.brokers.nats_plan import LONG_CHAIN, WORTH_IT, plan


def message(key: str | None = None, topic: str = "one.a") -> Message:
    return Message("id", topic, key, {}, b"{}", None)


def stream_of(topic: str) -> str | None:
    return {"one.a": "one", "one.b": "one", "two.a": "two"}.get(topic)


def test_a_handful_goes_one_by_one() -> None:
    batch = [message(str(n)) for n in range(WORTH_IT - 1)]
    assert plan(batch, stream_of) == ([], list(range(WORTH_IT - 1)))


def test_many_go_as_a_flow() -> None:
    batch = [message(str(n)) for n in range(WORTH_IT)]
    assert plan(batch, stream_of) == ([list(range(WORTH_IT))], [])


def test_a_long_chain_goes_as_a_flow() -> None:
    batch = [message("a") for _ in range(LONG_CHAIN)]
    assert plan(batch, stream_of) == ([list(range(LONG_CHAIN))], [])
    assert plan(batch[1:], stream_of) == ([], list(range(LONG_CHAIN - 1)))


def test_a_key_that_goes_to_two_streams_keeps_its_order_one_by_one() -> None:
    batch = [message("a", "one.a"), message("b", "one.a"), message("a", "two.a"), message("b", "one.b")]
    assert plan(batch, stream_of, worth_it=2) == ([[1, 3]], [0, 2])


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from(["one.a", "one.b", "two.a", "none"])),
        max_size=60,
    )
)
def test_every_message_goes_once_and_every_key_in_order(spec: list[tuple[str | None, str]]) -> None:
    batch = [message(key, topic) for key, topic in spec]
    flows, singly = plan(batch, stream_of, worth_it=2)
    assert sorted([index for group in flows for index in group] + singly) == list(range(len(batch)))
    for key in "abcd":
        homes = [place for place in [*flows, singly] if any(batch[index].key == key for index in place)]
        assert len(homes) <= 1
    for group in flows:
        assert group == sorted(group)
        assert len({stream_of(batch[index].topic) for index in group}) == 1
