"""What Hypothesis draws events from."""

from __future__ import annotations

from hypothesis import strategies as st

from oncommit.message import Event

# What an event may hold: no controls, no surrogates, no line or paragraph separators.
sendable = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])
# JSON can hold the controls too, but PostgreSQL no NUL.
storable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(storable, max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(storable, max_size=8), inner, max_size=4),
    max_leaves=12,
)


def names(most: int) -> st.SearchStrategy[str]:
    """Text of up to so many bytes."""
    return st.text(sendable, min_size=1, max_size=most // 4)


ids = names(120)
headers = st.dictionaries(st.from_regex(r"x[a-z0-9-]{0,8}", fullmatch=True), st.text(sendable, max_size=20), max_size=3)
traces = st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", fullmatch=True)

payloads = st.one_of(
    st.fixed_dictionaries({"payload": json_values}),
    st.fixed_dictionaries({"payload": st.binary(max_size=40)}),
    st.fixed_dictionaries({"payload": st.binary(max_size=40), "content_type": st.just("application/avro")}),
    st.fixed_dictionaries({"payload": json_values, "content_type": st.just("application/vnd.shop+json")}),
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event, as far as it can be seen on the wire."""
    traceparent = draw(st.none() | traces)
    return Event(
        draw(names(255)),
        **draw(payloads),
        aggregate=draw(st.none() | st.tuples(names(255), names(255))),
        key=draw(st.none() | ids),
        id=draw(st.uuids()),
        headers=draw(headers),
        schema_version=draw(st.integers(1, 2**31 - 1)),
        correlation_id=draw(st.none() | ids),
        causation_id=draw(st.none() | ids),
        saga_id=draw(st.none() | st.uuids()),
        traceparent=traceparent,
        tracestate=draw(st.none() | ids) if traceparent else None,
    )
