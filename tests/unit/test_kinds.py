"""How values are written in settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.config.kinds import SECONDS, SIZE, SWITCH, whole
from oncommit.config.relay import RelaySettings
from oncommit.errors import ConfigError
from oncommit.retry import RetryPolicy, policy_of


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("1.5h", 5400), ("14d", 14 * 86400), ("5", 5), (" 5 m ", 300), (2, 2), (0.25, 0.25)],
)
def test_durations(written: object, seconds: float) -> None:
    assert SECONDS.read(written) == seconds


@pytest.mark.parametrize("written", ["", "s", "0s", "-3s", "1w", "1 000s", True, None, 0, -1, float("nan"), [3], "inf"])
def test_no_durations(written: object) -> None:
    with pytest.raises(ConfigError, match="must be a duration"):
        SECONDS.read(written)


@given(st.integers(min_value=1, max_value=10**9))
def test_what_is_shown_reads_as_what_it_was(number: int) -> None:
    assert SIZE.read(SIZE.show(number)) == number
    assert SECONDS.read(SECONDS.show(float(number))) == number
    assert SECONDS.read(SECONDS.show(number / 1e9)) == pytest.approx(number / 1e9)
    assert whole().read(str(number)) == number


@pytest.mark.parametrize("written", ["yes", "ON", "1", "true", True])
def test_yes(written: object) -> None:
    assert SWITCH.read(written) is True


@pytest.mark.parametrize("written", ["no", "Off", "0", "false", False])
def test_no(written: object) -> None:
    assert SWITCH.read(written) is False


@pytest.mark.parametrize("written", ["maybe", "", 2, 1.0, None, {}, []])
def test_neither(written: object) -> None:
    with pytest.raises(ConfigError, match="must be true or false"):
        SWITCH.read(written)


@pytest.mark.parametrize(
    ("field", "value"), [("lease", "10s"), ("batch_rows", 1.5), ("archive", 1), ("archive", "yes"), ("source", 3)]
)
def test_settings_made_by_hand_have_values_of_their_kind(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        RelaySettings(**{field: value})  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["a", "b", "*"]), max_size=6), st.text("ab", max_size=8))
def test_patterns_of_types(pieces: list[str], event_type: str) -> None:
    import fnmatch

    pattern = "".join(pieces)
    chosen = policy_of(event_type, {pattern: RetryPolicy(max_attempts=2)}, RetryPolicy())
    assert (chosen.max_attempts == 2) == fnmatch.fnmatchcase(event_type, pattern)
