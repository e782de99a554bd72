"""Plots of whatever has a `step`: rows of tables and of queries become panels by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from opstep.runtime.ir.amounts import size
from opstep.trace.workspace.pages.cells import duration, number, read_counts
from opstep.trace.workspace.picture import COLOURS, PALE, mark_odd, new_figure, write_figure

# Columns that tell series apart, and figures that say nothing when they are drawn.
GROUPS = ("run", "name", "tensor", "op_name", "site", "op", "result", "stream", "turn")
NO_FIGURE = {"step", "line", "lowest", "id", "execution", "activation", "start_ns", "end_ns"}
BAD = ("nan", "posinf", "neginf", "inf")
SPREAD = ("mean", "std", "min", "max")  # of one series they share a panel
MOST_SERIES, MOST_PANELS, COLUMNS = 8, 9, 2
WIDTH, HEIGHT, DPI = 5.6, 2.6, 96  # inches, of a panel
FAR = 1e300  # how far up is drawn

Row = Mapping[str, Any]
Draw = Callable[[Any], None]


def plottable(columns: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether the rows are a few series of figures by step."""
    if "step" not in columns or len({row["step"] for row in _stepped(rows)}) < 2:
        return False
    few = len(_series(columns, rows)) <= MOST_SERIES
    return few and bool(_figures(columns, rows)) and find_spec("matplotlib") is not None


def svg(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    """A panel for each figure."""
    panels = _panels(columns, rows)
    lines = -(-len(panels) // COLUMNS)
    wide = min(COLUMNS, len(panels))
    odd = _odd_steps(columns, rows)
    with new_figure(WIDTH * wide, HEIGHT * lines, DPI, "constrained") as figure:
        for k, (title, draw) in enumerate(panels):
            axes = figure.add_subplot(lines, wide, k + 1)
            draw(axes)
            axes.set_title(title, loc="left", weight="bold", size=10)
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            axes.grid(axis="x", visible=False)
            mark_odd(axes, odd)
        file = BytesIO()
        write_figure(figure, file, "svg")
    return file.getvalue()


def _panels(columns: Sequence[str], rows: Sequence[Row]) -> list[tuple[str, Draw]]:
    series, names = _series(columns, rows), _figures(columns, rows)
    found: list[tuple[str, Draw]] = []
    if len(series) == 1:
        (only,) = series.values()
        if {"mean", "std"} <= set(names):
            found.append(("mean", lambda axes: _spread(axes, only)))
            names = [n for n in names if n not in SPREAD]
        if any(any(read_counts(row.get("histogram")) or []) for row in only):
            found.append(("elements by magnitude", lambda axes: _heatmap(axes, only)))
    found += [(name, lambda axes, name=name: _lines(axes, series, name)) for name in names]
    return found[:MOST_PANELS]


def _lines(axes: Any, series: Mapping[str, Sequence[Row]], name: str) -> None:
    """A figure of each series."""
    for colour, (label, rows) in zip(COLOURS, series.items(), strict=False):
        xs, ys = _steps(rows), _numbers(rows, name)
        axes.plot(xs, ys, color=colour, label=label or name, marker="." if len(xs) < 30 else "")
    axes.yaxis.set_major_formatter(lambda value, _: _unit(name)(value))
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False)


def _spread(axes: Any, rows: Sequence[Row]) -> None:
    """The mean as a line, mean ± std and min to max as bands."""
    xs, mean, std = _steps(rows), _numbers(rows, "mean"), _numbers(rows, "std")
    if "min" in rows[0] and "max" in rows[0]:
        low, high = _numbers(rows, "min"), _numbers(rows, "max")
        axes.fill_between(xs, low, high, color=PALE, alpha=0.4, linewidth=0, label="min to max")
    below, above = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, below, above, color=COLOURS[0], alpha=0.25, linewidth=0, label="± std")
    axes.plot(xs, mean, color=COLOURS[0], label="mean")
    axes.yaxis.set_major_formatter(lambda value, _: number(float(value)))
    axes.legend(fontsize=8, frameon=False)


def _heatmap(axes: Any, rows: Sequence[Row]) -> None:
    """Histograms side by side: darker where more of a step's elements are."""
    import numpy as np

    steps: dict[float, Counter[int]] = {}
    for row in rows:
        counts, low = read_counts(row["histogram"]) or [], row["lowest"]
        found = {k: n for k, n in enumerate(counts, low if isinstance(low, int) else 0) if n}
        steps.setdefault(float(row["step"]), Counter()).update(found)
    exponents = [k for counts in steps.values() for k in counts]
    ys = np.arange(min(exponents), max(exponents) + 1)
    shares = [[c[y] / max(1, c.total()) for c in steps.values()] for y in ys.tolist()]
    shown = np.ma.masked_equal(np.sqrt(shares), 0)
    axes.pcolormesh(
        list(steps), ys, shown, cmap="Blues", vmin=0, vmax=1, shading="nearest", rasterized=True
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"2^{value:g}")


# --- which rows and columns -----------------------------------------------------------------------


def _figures(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Columns of numbers that can be drawn."""
    return [
        name
        for name in dict.fromkeys(columns)
        if name not in NO_FIGURE
        and name not in GROUPS
        and name not in BAD
        and any(row[name] is not None for row in rows)
        and all(row[name] is None or isinstance(row[name], (int, float)) for row in rows)
        and not _constant_count(name, rows)
    ]


def _constant_count(name: str, rows: Sequence[Row]) -> bool:
    """Counts that never change are no news."""
    counts = ("count", "zero", "subnormal", "unwritten")
    return name in counts and len({row[name] for row in rows}) == 1


def _series(columns: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows in order of step, by a label of what tells the series apart."""
    keys = [k for k in GROUPS if k in columns and len({str(row[k]) for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sorted(_stepped(rows), key=lambda row: row["step"]):
        label = " ".join(str(row[k])[:40] for k in keys)
        found.setdefault(label.lstrip("_"), []).append(row)  # no legend has what begins with _
    return found


def _stepped(rows: Sequence[Row]) -> list[Row]:
    """Those whose step is a number: an answer of SQL may hold anything under that name."""
    return [row for row in rows if isinstance(row["step"], int)]


def _odd_steps(columns: Sequence[str], rows: Sequence[Row]) -> list[float]:
    """Steps with NaNs or infinities."""
    present = [name for name in BAD if name in columns]
    bad = (r for r in _stepped(rows) if any(isinstance(r[n], int) and r[n] > 0 for n in present))
    return sorted({float(row["step"]) for row in bad})


def _steps(rows: Sequence[Row]) -> list[float]:
    return [float(row["step"]) for row in rows]


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    """NaN where there is nothing that can be drawn."""
    values = (row[name] for row in rows)
    return [
        max(-FAR, min(FAR, float(v)))
        if isinstance(v, (int, float)) and math.isfinite(v)
        else math.nan
        for v in values
    ]


def _unit(name: str) -> Callable[[float], str]:
    """The format of a column's values at an axis."""
    if name.endswith("_ns"):
        return duration
    if name == "seconds":
        return lambda s: duration(s * 1e9)
    return size if name.endswith("bytes") else lambda value: number(float(value))
