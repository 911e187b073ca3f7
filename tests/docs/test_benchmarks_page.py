"""From results to the page: tables and plots of what the commands print, and the page as the results that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from benchmarks.measure import RUNS
from benchmarks.publish import PAGE, RESULTS, filled, gathered, shown
from benchmarks.svg import Axis, nice
from oncommit.cli.bench import command
from oncommit.testing.bench.latency import Latency
from oncommit.testing.bench.relay.results import RelayResult, gates

ABOUT = {
    "postgresql": "18.4", "fsync": "on", "synchronous_commit": "on", "shared_buffers": "128MB", "python": "3.11.7",
    "system": "Linux x86_64", "cores": 2, "oncommit": "1", "broker_version": "NATS 2", "broker_storage": "a stream",
    "broker_durability": "as it comes",
}  # fmt: skip


def relay(**other: Any) -> RelayResult:
    told: dict[str, Any] = {
        "broker": "nats", "events": 1000, "keys": "uniform", "payload_bytes": 300, "pairs": 1, "batch": 500,
        "relay_per_s": 900.0, "cpu_us_per_event": 20.0, "peak_rss_mb": 60.0, "seconds": {}, "load_before": 0.5,
        "about": ABOUT, "rounds": {},
    }  # fmt: skip
    result = RelayResult(**{**told, **other})
    result.gates = gates(result)
    return result


def beside_ceiling(**other: Any) -> RelayResult:
    sides = {
        "direct": [1000.0, 1100.0],
        "adapter": [2000.0],
        "database": [3000.0],
        "relay": [900.0],
        "reference": [60.0],
    }
    told = {f"{side}_per_s": rates[0] for side, rates in sides.items()}
    return relay(
        **{**told, "rounds": sides, "ratio": 0.9, "spread": (0.8, 0.95), "adapter_ratio": 0.45, "factor": 15.0, **other}
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    latency = Latency(
        mode="poll", p50_ms=14.1, p99_ms=70.0, max_ms=88.7, idle_cpu_percent=0.2, events=400, events_per_s=200.0,
        sent_behind_commit=100, gates=[], load_before=0.1, about=ABOUT,
    )  # fmt: skip
    write = {
        "driver": "asyncpg", "schema": "oncommit", "without_per_s": 100.0, "with_per_s": 65.0, "ratio": 0.65,
        "spread": [0.6, 0.7], "pairs": 1, "gate": 0.7, "passed": False, "load_before": 0.2, "about": ABOUT,
    }  # fmt: skip
    found: dict[str, Any] = {
        "a": beside_ceiling(),
        "b": beside_ceiling(keys="zipf", relay_per_s=720.0),
        "c": relay(conditions=["2 relays"], plain_per_s=1000.0, kept=0.85, kept_spread=(0.8, 0.9)),
        "d": [latency],
        "e": [write],
        "f": relay(),  # of single sides: not for the page
    }
    for name, result in found.items():
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(result))
    return tmp_path


def test_every_result_finds_its_table(results: Path) -> None:
    text, plots = shown(gathered(results))
    assert list(plots) == ["write", "relay", "conditions", "latency"]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == 4 + 5  # four heads, and no row for single sides
    assert "| **0.90** (0.80 to 0.95) ≥ 0.85 met |" in text
    assert "| **0.85** (0.80 to 0.90) ≥ 0.9 **missed** |" in text
    assert "Of the rate with uniform keys: nats, Zipf keys 0.80." in text
    assert "| poll | **14.1**" in text
    assert "| 25% |" in text
    for name in plots:
        assert f"](benchmarks-{name}.svg)" in text
    page = filled("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n", text)
    assert page.startswith("before\n")
    assert page.endswith("<!-- figures: end -->\nafter\n")
    assert "old" not in page
    assert filled(page, text) == page


def test_plots_are_pictures_with_units_and_figures(results: Path) -> None:
    _, plots = shown(gathered(results))
    texts = {name: [node.text for node in ET.fromstring(plot).iter() if node.text] for name, plot in plots.items()}
    assert "events per second" in texts["relay"]
    assert "900 (0.90 of the ceiling)" in texts["relay"]
    assert "milliseconds, in steps of ten" in texts["latency"]
    assert "14.1 ms" in texts["latency"]
    assert "0.85" in texts["conditions"]
    for plot in plots.values():
        assert "prefers-color-scheme: dark" in plot


def test_axes() -> None:
    assert [nice(value) for value in (0.9, 1, 1.1, 3, 6, 180)] == [1, 1, 2, 5, 10, 200]
    axis = Axis([10, 90], log=False)
    assert axis.ticks == [0, 20, 40, 60, 80, 100]
    assert axis.place(0) < axis.place(50) < axis.place(100) == axis.place(500)
    assert Axis([0.5, 88], log=True).ticks == [0.1, 1, 10, 100]
    log = Axis([0.5, 88], log=True)
    assert log.place(10) - log.place(1) == pytest.approx(log.place(1) - log.place(0.1), abs=0.2)


def test_the_page_shows_the_results_that_are_there() -> None:
    text, plots = shown(gathered(RESULTS))
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, text) == page, "run: .venv/bin/python -m benchmarks.publish"
    for name, plot in plots.items():
        assert (PAGE.parent / f"benchmarks-{name}.svg").read_text(encoding="utf-8") == plot
        assert (RESULTS / f"{name}.svg").read_text(encoding="utf-8") == plot
    for path in RESULTS.glob("*.json"):
        assert path.stem in RUNS
        json.loads(path.read_text(encoding="utf-8"))


def test_what_is_measured_for_the_page_are_commands_that_there_are() -> None:
    for arguments in RUNS.values():
        name, *options = arguments
        command.commands[name].make_context(name, [*options, "--json"])
