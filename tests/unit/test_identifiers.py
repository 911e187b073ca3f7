"""Names that end up in SQL or in settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, DEFAULT_SINK, check_schema, check_sink, wake_channel, wake_list

HOSTILE: list[Any] = [
    "",
    " ",
    'x"; drop',
    'x"; DROP SCHEMA public CASCADE; --',
    "x'; select 1; --",
    "x;",
    "x --",
    "x.y",
    "x y",
    "x\n",
    "\nx",
    "x\0",
    "x" * 64,
    "1x",
    "Oncommit",
    "größe",
    "оncommit",  # the first letter is Cyrillic
    "x\u200b",
    "$1",
    "%s",
    "{x}",
    "../x",
    "x\\",
    None,
    7,
    b"oncommit",
    ["oncommit"],
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_hostile_names_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"schema name .* cannot be used: lower-case letters"):
        check_schema(name)
    with pytest.raises(ConfigError, match=r"sink name .* cannot be used: lower-case letters"):
        check_sink(name)


@pytest.mark.parametrize("name", [DEFAULT_SCHEMA, "_", "a", "shop_outbox2", "x" * 63, "_pg"])
def test_schemas_that_will_do(name: str) -> None:
    assert check_schema(name) == name


@pytest.mark.parametrize("name", ["pg_catalog", "pg_", "pg_outbox", "a-b"])
def test_schemas_that_will_not(name: str) -> None:
    with pytest.raises(ConfigError):
        check_schema(name)


@pytest.mark.parametrize("name", [DEFAULT_SINK, "a", "eu-west_1", "x" * 63])
def test_sinks_that_will_do(name: str) -> None:
    assert check_sink(name) == name


@pytest.mark.parametrize("name", ["_a", "-a"])
def test_sinks_that_will_not(name: str) -> None:
    with pytest.raises(ConfigError):
        check_sink(name)


@given(st.text(max_size=80))
def test_what_passes_needs_no_quoting(name: str) -> None:
    try:
        check_schema(name)
    except ConfigError:
        return
    assert name.isascii()
    assert name.replace("_", "a").isalnum()
    assert name == name.lower()
    assert len(name) <= 63


def test_channels_of_wake_ups() -> None:
    """As long as PostgreSQL takes, and different where schemas are."""
    assert wake_channel("oncommit") == "oncommit_wake"
    names = {wake_channel(schema) for schema in ("a" * 58, "a" * 59, "a" * 60, "a" * 62 + "b", "a" * 62 + "c")}
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)
    with pytest.raises(ConfigError):
        wake_channel('x"; DROP TABLE orders; --')


def test_lists_of_wake_ups() -> None:
    assert wake_list("shop.eu-1") == "outbox:wake:shop.eu-1"
    for wrong in ("", "a b", "a:b", "-a", "a" * 64, "ä", None):
        with pytest.raises(ConfigError, match="service name"):
            wake_list(wrong)  # type: ignore[arg-type]
