"""Histograms of magnitudes: bars in a table's cell, and a map of how they move by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from opstep.trace.workspace.pages.plot import (
    BOTTOM,
    COLOURS,
    LEFT,
    RIGHT,
    TOP,
    Axis,
    heading,
    picture,
    step_labels,
)

SHADES = 8
COLUMNS = 120  # of a heat map: each shows all of its steps


class Bins(NamedTuple):
    """Elements by floor(log2(abs(x))), from the exponent `lowest` up."""

    counts: Sequence[int]
    lowest: int

    @property
    def end(self) -> int:
        return self.lowest + len(self.counts)


def bars(bins: Bins, width: int = 132, height: int = 26) -> Markup:
    """A histogram as small as a table's cell; empty where it counts nothing."""
    if not any(bins.counts):
        return Markup("")
    most, wide = max(bins.counts), width / max(len(bins.counts), 16)
    path = []
    for k, n in enumerate(bins.counts):
        if n > 0:
            tall = max(1.0, (height - 2) * n / most)
            path.append(f"M{k * wide:.1f} {height}v-{tall:.1f}h{wide * 0.85:.1f}v{tall:.1f}z")
    label = f"2^{bins.lowest} to 2^{bins.end}: {sum(bins.counts):,} elements"
    body = Markup(f'<path d="{"".join(path)}" fill="{COLOURS[0]}"/><title>{label}</title>')
    return picture(width, height, body, label)


def binned(
    rows: Sequence[Mapping[str, Any]], read: Callable[[Any], Mapping[int, int]]
) -> list[tuple[float, Bins]]:
    """At most `COLUMNS` histograms: each of the elements of several steps, the first of which names
    it. `read`: the counts of a row by bin. One that counts nothing is empty.
    """
    each = max(1, -(-len(rows) // COLUMNS))
    columns = []
    for first in range(0, len(rows), each):
        counts: Counter[int] = Counter()
        for row in rows[first : first + each]:
            counts.update(read(row))
        low, high = min(counts, default=0), max(counts, default=-1)
        columns.append((rows[first]["step"], Bins([counts[k] for k in range(low, high + 1)], low)))
    return columns


def heatmap(
    title: str,
    columns: Sequence[tuple[float, Bins]],
    name: Callable[[int], str] = lambda exponent: f"2^{exponent}",
    width: int = 460,
    height: int = 190,
) -> Markup:
    """Histograms side by side by x: darker where more of a column's elements are. One that counts
    nothing leaves its column empty. `name`: how a bin is called.

    All cells of one shade are one path, so that the picture stays small.
    """
    filled = [bins for _, bins in columns if any(bins.counts)]
    if not filled:
        return picture(width, height, heading(title), title)
    low, high = min(bins.lowest for bins in filled), max(bins.end for bins in filled)
    wide = (width - LEFT - RIGHT) / len(columns)
    tall = (height - TOP - BOTTOM) / (high - low)
    shades: list[list[str]] = [[] for _ in range(SHADES)]
    for k, (_, bins) in enumerate(columns):
        whole, left = sum(bins.counts), LEFT + k * wide
        for exponent, n in enumerate(bins.counts, bins.lowest):
            if n > 0:
                top = TOP + (high - exponent - 1) * tall
                cell = f"M{left:.1f} {top:.1f}h{wide + 0.2:.1f}v{tall + 0.2:.1f}h-{wide + 0.2:.1f}z"
                shades[min(SHADES - 1, int(SHADES * math.sqrt(n / whole)))].append(cell)
    parts = [
        Markup(f'<path d="{"".join(cells)}" fill="{COLOURS[0]}" opacity="{(k + 1) / SHADES}"/>')
        for k, cells in enumerate(shades)
        if cells
    ]
    for exponent in range(low, high, max(1, (high - low) // 6)):
        at = TOP + (high - exponent - 0.5) * tall
        label = f'x="{LEFT - 6}" y="{at:.1f}" dy="4" text-anchor="end"'
        parts.append(Markup(f"<text {label}>{name(exponent)}</text>"))
    x = Axis([x for x, _ in columns], LEFT + wide / 2, width - RIGHT - wide / 2)
    parts += [heading(title), step_labels(x, height)]
    return picture(width, height, Markup("").join(parts), title)
