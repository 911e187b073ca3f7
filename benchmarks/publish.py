"""From benchmarks/results/write.json to the page: its table, and a plot beside it.

    .venv/bin/oncommit bench write --json > benchmarks/results/write.json
    .venv/bin/python benchmarks/publish.py

The plot is a few rectangles, written by hand: no dependency is worth ten bars.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/write.json"
PAGE = ROOT / "docs/internals/benchmarks.md"
PLOT = ROOT / "docs/internals/benchmarks-write.svg"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"

LEFT, WIDTH, BAR, GAP, TOP = 300, 480, 18, 10, 40


def name(result: dict[str, Any]) -> str:
    what = f", {result['batch']} at once" if "batch" in result else ""
    return result["driver"] + (" (usual schema)" if result["schema"] == "usual" else "") + what


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| driver | schema | without an event, or raw rows | with | ratio | spread of pairs | gate | |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for result in results:
        batch = "batch" in result
        base, other = ("raw_events_per_s", "events_per_s") if batch else ("without_per_s", "with_per_s")
        unit = "events/s, one call" if batch else "commits/s"
        gate = f"{result['gate']:g}" if "gate" in result else ""
        verdict = {None: "", True: "met", False: "**missed**"}[result.get("passed")]
        low, high = result["spread"]
        lines.append(
            f"| `{result['driver']}` | {result['schema']} | {result[base]:,.0f} {unit} | {result[other]:,.0f} "
            f"| **{result['ratio']:.2f}** | {low:.2f} to {high:.2f} | {gate} | {verdict} |"
        )
    about = results[0]["about"]
    versions = {key: value for result in results for key, value in result["about"].items() if key in PACKAGES}
    packages = ", ".join(f"{PACKAGES[key]} {versions[key]}" for key in PACKAGES if key in versions)
    loads = [result["load_before"] for result in results]
    memory = next(r["memory_growth_bytes"] for r in results if "batch" in r and r["schema"] == "oncommit") / 2**20
    count = next(r["batch"] for r in results if "batch" in r)
    built = next(r for r in results if "batch" in r and r["schema"] == "oncommit")
    return "\n".join(lines) + (
        f"\n\nMedians of {results[0]['pairs']} pairs. PostgreSQL {about['postgresql']} (fsync {about['fsync']}, "
        f"synchronous_commit {about['synchronous_commit']}, shared_buffers {about['shared_buffers']}), Python "
        f"{about['python']}, {packages}; {about['system']}, {about['cores']} cores; load before the measurements "
        f"{min(loads):g} to {max(loads):g}. The call with {count:,} events made the process grow by {memory:.0f} MiB "
        "at its peak. Where the hand has to make its columns from the same orders (ids, JSON) as well, it writes "
        f"{built['raw_built_events_per_s']:,.0f} a second, and `add` {built['ratio_built']:.2f} of that.\n"
    )


PACKAGES = {"asyncpg": "asyncpg", "psycopg": "psycopg", "sqlalchemy": "SQLAlchemy", "django": "Django"}


def plot(results: list[dict[str, Any]]) -> str:
    height = TOP + len(results) * (BAR + GAP) + 30
    bottom = height - 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {height}" role="img"',
        'font-family="sans-serif" font-size="13" aria-label="Ratio of commits with an event to commits without">',
        f'<rect width="{LEFT + WIDTH + 60}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">with an event / without (the line in a bar: its pairs)</text>',
    ]
    for tenth in range(0, 11, 2):
        x = LEFT + WIDTH * tenth // 10
        parts.append(f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="#555">{tenth / 10:g}</text>')
    for number, result in enumerate(results):
        y = TOP + number * (BAR + GAP)
        low, high = (LEFT + round(WIDTH * min(edge, 1.05)) for edge in result["spread"])
        color = "#9aa5b1" if result["schema"] == "usual" else "#c2553d" if result.get("passed") is False else "#2f6f8f"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{name(result)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{round(WIDTH * result["ratio"])}" height="{BAR}" fill="{color}"/>',
            f'<line x1="{low}" y1="{y + 9}" x2="{high}" y2="{y + 9}" stroke="#111" stroke-width="2"/>',
            f'<text x="{high + 8}" y="{y + 13}">{result["ratio"]:.2f}</text>',
        ]
        if "gate" in result:
            x = LEFT + round(WIDTH * result["gate"])
            parts.append(
                f'<line x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + BAR + 3}" stroke="#111" stroke-dasharray="3 2"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def filled(page: str, results: list[dict[str, Any]]) -> str:
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name} lacks its markers: {BEGIN.strip()} and {END.strip()}")
    return f"{head}{begin}\n{table(results)}\n{end}{tail}"


def main() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    PLOT.write_text(plot(results), encoding="utf-8")


if __name__ == "__main__":
    main()
