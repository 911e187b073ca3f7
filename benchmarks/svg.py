"""Bars as SVG, written by hand: no dependency is worth a few rectangles.

It has a background of its own and follows the reader's light or dark scheme, so it can be read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

LEFT, WIDTH, RIGHT, BAR, GAP, TOP, BOTTOM, HEAD = 260, 440, 190, 16, 7, 58, 46, 24
STYLE = """
svg { --paper: #ffffff; --ink: #1d242b; --soft: #5b6670; --line: #d9dee3;
      --ours: #1f7a8c; --side: #9fb3c1; --other: #c9a227; --bad: #c2553d }
@media (prefers-color-scheme: dark) {
  svg { --paper: #171c21; --ink: #e7ecf0; --soft: #a3afb9; --line: #333c44;
        --ours: #4fb3c6; --side: #6b7f8e; --other: #d8b84a; --bad: #e0785f } }
text { fill: var(--ink); font: 13px system-ui, sans-serif } .soft { fill: var(--soft) } .head { font-weight: 600 }
.grid { stroke: var(--line) } .spread { stroke: var(--ink); stroke-width: 1.5 }
.gate { stroke: var(--ink); stroke-dasharray: 3 2 }
"""


@dataclass(frozen=True)
class Bar:
    """One figure: where its pairs lie, what it has to be, and what is written behind it."""

    label: str
    value: float
    note: str
    kind: str = "ours"
    low: float | None = None
    high: float | None = None
    gate: float | None = None


@dataclass(frozen=True)
class Group:
    """Bars under a heading."""

    head: str
    bars: Sequence[Bar]


class Axis:
    """From a value to a place; in steps of ten where ``log``."""

    def __init__(self, values: Iterable[float], *, log: bool) -> None:
        found = [value for value in values if value > 0] or [1.0]
        self._log = log
        if log:
            self._low = 10.0 ** math.floor(math.log10(min(found)))
            self._high = 10.0 ** math.ceil(math.log10(max(found)))
            if self._low == self._high:
                self._high *= 10
            steps = round(math.log10(self._high / self._low))
            self.ticks = [self._low * 10.0**step for step in range(steps + 1)]
        else:
            step = nice(max(found) / 5)
            self._high = step * math.ceil(max(found) / step)
            self.ticks = [step * number for number in range(round(self._high / step) + 1)]

    def place(self, value: float) -> float:
        """In pixels."""
        if self._log:
            share = math.log10(max(value, self._low) / self._low) / math.log10(self._high / self._low)
        else:
            share = value / self._high
        return round(LEFT + WIDTH * min(share, 1.0), 1)


def nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, not below the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)


def chart(title: str, unit: str, groups: Sequence[Group], *, log: bool = False) -> str:
    """The whole picture."""
    rows = sum(len(group.bars) for group in groups)
    bottom = TOP + rows * (BAR + GAP) + sum(HEAD for group in groups if group.head)
    width, height = LEFT + WIDTH + RIGHT, bottom + BOTTOM
    values = [edge for group in groups for bar in group.bars for edge in (bar.value, bar.high, bar.gate) if edge]
    axis = Axis(values, log=log)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'role="img" aria-label={quoteattr(title)}>',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
        f'<text class="head" x="16" y="26">{escape(title)}</text>',
    ]
    for tick in axis.ticks:
        x = axis.place(tick)
        parts.append(f'<line class="grid" x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{x}" y="{bottom + 17}" text-anchor="middle">{tick:,.10g}</text>')
    parts.append(
        f'<text class="soft" x="{LEFT + WIDTH / 2}" y="{bottom + 37}" text-anchor="middle">{escape(unit)}</text>'
    )
    y = TOP
    for group in groups:
        if group.head:
            parts.append(f'<text class="head" x="16" y="{y + 12}">{escape(group.head)}</text>')
            y += HEAD
        for bar in group.bars:
            parts += drawn(bar, axis, y)
            y += BAR + GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def drawn(bar: Bar, axis: Axis, y: float) -> list[str]:
    """One bar with its label, spread, gate and note."""
    end, middle = axis.place(bar.value), y + BAR / 2
    parts = [
        f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{round(end - LEFT, 1)}" height="{BAR}" fill="var(--{bar.kind})"/>',
    ]
    if bar.low is not None and bar.high is not None:
        low, end_high = axis.place(bar.low), axis.place(bar.high)
        parts.append(f'<line class="spread" x1="{low}" y1="{middle}" x2="{end_high}" y2="{middle}"/>')
        end = max(end, end_high)
    if bar.gate is not None:
        x = axis.place(bar.gate)
        parts.append(f'<line class="gate" x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + BAR + 3}"/>')
        end = max(end, x)
    return [*parts, f'<text x="{end + 8}" y="{y + 13}">{escape(bar.note)}</text>']
