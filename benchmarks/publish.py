"""From the JSON in benchmarks/results/ to the page: its tables, and the plots beside the JSON and in the page.

    .venv/bin/python -m benchmarks.measure latency relay-nats
    .venv/bin/python -m benchmarks.publish

Whatever results are there are shown; what was measured together is told by what is in a file, not by its name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import figures

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/internals/benchmarks.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
NONE = "None are published yet.\n"

Result = dict[str, Any]
Show = Callable[[list[Result]], str]

# Name of the plot, heading, alternative text, table, plot.
SECTIONS: list[tuple[str, str, str, Show, Show]] = [
    ("write", "Writing", "Share of commits kept with an event", figures.write_table, figures.write_plot),
    ("relay", "The relay", "Events per second of all sides", figures.relay_table, figures.relay_plot),
    ("conditions", "Conditions", "Share of the rate kept", figures.kept_table, figures.kept_plot),
    ("latency", "Latency", "Milliseconds from commit to broker", figures.latency_table, figures.latency_plot),
]


def section_of(result: Result) -> str | None:
    """Which part of the page shows it; none for a run of single sides."""
    if "mode" in result:
        return "latency"
    if "driver" in result:
        return "write"
    if "kept" in result:
        return "conditions"
    return "relay" if "ratio" in result and "factor" in result else None


def gathered(folder: Path) -> dict[str, list[Result]]:
    """All results, by section."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        for result in told if isinstance(told, list) else [told]:
            section = section_of(result)
            if section is not None:
                found.setdefault(section, []).append(result)
    return found


def shown(results: dict[str, list[Result]]) -> tuple[str, dict[str, str]]:
    """What stands between the markers, and the plots by name."""
    text, plots = "", {}
    for name, heading, alternative, table, plot in SECTIONS:
        if found := results.get(name):
            plots[name] = plot(found)
            text += f"### {heading}: figures\n\n![{alternative}](benchmarks-{name}.svg)\n\n{table(found)}\n"
            text += f"Measured on {figures.machine(found)}\n"
    return text or NONE, plots


def filled(page: str, text: str) -> str:
    """The page with this between its markers."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name} lacks its markers: {BEGIN.strip()} and {END.strip()}")
    return f"{head}{begin}\n{text.strip()}\n\n{end}{tail}"


def main() -> None:
    text, plots = shown(gathered(RESULTS))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    for name, plot in plots.items():
        (RESULTS / f"{name}.svg").write_text(plot, encoding="utf-8")
        (PAGE.parent / f"benchmarks-{name}.svg").write_text(plot, encoding="utf-8")  # pages show what lies beside them
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(plots) or 'no results yet'}")


if __name__ == "__main__":
    main()
