"""Presets: a few settings that go together. Everything that is said elsewhere goes before them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PRESETS: Final[Mapping[str, Mapping[tuple[str, ...], object]]] = MappingProxyType(
    {
        # Something is seen at once, ends at once, and fails so that one can watch it.
        "dev": {
            ("relay", "poll_idle"): "100ms",
            ("relay", "poll_woken"): "100ms",
            ("relay", "stop_timeout"): "5s",
            ("retry", "base"): "500ms",
            ("retry", "cap"): "30s",
            ("relay", "circuit_cap"): "5s",
        },
        # As in production, but what fails shows within the hour.
        "staging": {
            ("relay", "poll_idle"): "1s",
            ("relay", "poll_woken"): "1s",
            ("retry", "cap"): "10m",
        },
        "prod": {
            ("relay", "poll_idle"): "1s",
            ("relay", "poll_woken"): "5s",
            ("relay", "stop_timeout"): "30s",
            ("retry", "cap"): "1h",
        },
    }
)
