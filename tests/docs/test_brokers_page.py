"""The page on brokers says what the adapters declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncommit.brokers import page
from oncommit.brokers.registry import ADAPTERS

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "brokers.md"


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page.refresh(text), "run: python -m oncommit.brokers.page docs/guides/brokers.md"


def test_every_broker_has_its_section_and_every_scheme_its_place() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for scheme in ADAPTERS:
        assert f"`{scheme}://`" in text
    for title in ("NATS", "Kafka", "RabbitMQ"):
        assert f"\n## {title} {{ #{title.lower()} }}\n" in text


def test_a_page_without_markers_is_told() -> None:
    with pytest.raises(ValueError, match="lacks its markers"):
        page.refresh("# Brokers\n")
