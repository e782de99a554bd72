"""Lines to draw: figures of a workspace by step, or columns of an answer, as few points as a screen
can show.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import figures, row_formats
from opstep.trace.workspace.browsing.catalog import file_stamp
from opstep.trace.workspace.browsing.results import Result
from opstep.trace.workspace.query import Ended
from opstep.trace.workspace.store import PATIENCE_S, open_reading


def downsample(xs: np.ndarray, ys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points of a line whose xs go up, that look like all of them: of each
    piece of the axis the least and the greatest. NaN in `ys` is a gap and stays one.

    `xs`, `ys`: f64[n]. The first and the last point are always there.
    """
    count = len(xs)
    if count <= most or most < 4:
        return xs, ys
    pieces = (most - 2) // 3
    low, high = float(xs[0]), float(xs[-1])
    if high > low:
        borders = np.searchsorted(xs, np.linspace(low, high, pieces + 1)[:-1])
    else:
        borders = np.linspace(0, count, pieces + 1)[:-1].astype(np.int64)
    borders = np.unique(borders)
    gap = np.isnan(ys)
    least, greatest = (
        _at(np.where(gap, fill, ys), borders, pick)
        for fill, pick in ((np.inf, np.minimum), (-np.inf, np.maximum))
    )
    gaps = borders[np.add.reduceat(gap.astype(np.int64), borders) > 0]
    first_gaps = gaps + _first(gap, gaps, np.append(borders, count))
    indices = np.unique(np.concatenate([[0], least, greatest, first_gaps, [count - 1]]))
    return xs[indices], ys[indices]


def _at(ys: np.ndarray, borders: np.ndarray, pick: np.ufunc) -> np.ndarray:
    """The index of the extreme of each piece: the first of equal ones."""
    ends = np.append(borders[1:], len(ys))
    extremes = np.repeat(pick.reduceat(ys, borders), ends - borders)
    hits = np.flatnonzero(ys == extremes)
    pieces = np.searchsorted(borders, hits, side="right") - 1
    _, first = np.unique(pieces, return_index=True)
    return hits[first]


def _first(gap: np.ndarray, begins: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Of pieces that have a gap: how far after their begin it stands."""
    ends = borders[np.searchsorted(borders, begins, side="right")]
    found = [int(np.argmax(gap[a:b])) for a, b in zip(begins, ends, strict=True)]
    return np.array(found, np.int64)


MOST_LINES = 40  # that are sent
MOST_POINTS = 40_000  # of all lines together
_LEAST_POINTS = 60  # of a line, however many there are
_MOST_CACHED = 4  # drawings whose points are kept: to look closer at a part needs no reading
_INSTRUCTIONS = 20_000


class PlotLine(NamedTuple):
    """A line, with all its points. `ys` are NaN where there is no figure; `odd` are the xs where
    the tensor had NaNs or infinities.
    """

    label: str
    site: str
    run: str  # key, "" where it is of no run
    xs: np.ndarray  # f64[n], going up
    ys: np.ndarray  # f64[n]
    odd: np.ndarray  # f64[m]


class Plot(NamedTuple):
    lines: list[PlotLine]
    unit: str  # seconds, elements, or ""
    axis: str  # what the xs are


class PlotCache:
    """Plots that were asked for lately, while their files stay as they are."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple, Plot] = OrderedDict()
        self._lock = threading.Lock()

    def of_figures(self, path: Path, what: str, stop: threading.Event) -> Plot:
        """The plot that a text of `figures` asks for. Raises `InputError`, with the place in it."""
        key = (str(path), what, file_stamp(path))
        with self._lock:
            found = self._cached.get(key)
        if found is None:
            found = _read(path, what, stop)
            with self._lock:
                self._cached[key] = found
                while len(self._cached) > _MOST_CACHED:
                    self._cached.popitem(last=False)
        return found


def _read(path: Path, what: str, stop: threading.Event) -> Plot:
    query = figures.parse(what)
    with closing(open_reading(path, update=False, patience=PATIENCE_S)) as connection:
        connection.set_progress_handler(lambda: int(stop.is_set()), _INSTRUCTIONS)
        try:
            lines = figures.read(connection, query)
        except InputError:
            if stop.is_set():
                raise Ended("stopped") from None
            raise
    labels = figures.labels_of(lines)
    plotted = [_plot_line(line, label) for line, label in zip(lines, labels, strict=True)]
    return Plot(plotted, figures.unit_of(query), "step")


def _plot_line(line: figures.Line, label: str) -> PlotLine:
    ys = np.array([np.nan if y is None else y for y in line.ys], np.float64)
    xs, odd = np.array(line.xs, np.float64), np.array(line.odd, np.float64)
    return PlotLine(label, line.site, line.run.key, xs, ys, odd)


def of_answer(result: Result, x: int, ys: list[int], by: int | None) -> Plot:
    """Columns of an answer over another one of it; `by`: a line for each value of this column."""
    if not result.done:
        raise InputError("the query still runs", hint="plot it once all its rows are there")
    groups: dict[Any, list[tuple]] = {}
    try:
        for row in result.values([x, *ys, *([] if by is None else [by])]):
            groups.setdefault(None if by is None else row[-1], []).append(row)
    except sqlite3.Error as error:
        raise InputError(f"the answer cannot be read: {error}") from None
    lines = []
    for value, rows in groups.items():
        for k, column in enumerate(ys):
            name = result.columns[column]
            label = name if by is None else str(value) if len(ys) == 1 else f"{value}: {name}"
            line = _columns(label, [row[0] for row in rows], [row[k + 1] for row in rows])
            if len(line.xs):
                lines.append(line)
    if not lines:
        raise InputError(f"{result.columns[x]} has no numbers to draw by")
    return Plot(lines, "", result.columns[x])


def _columns(label: str, xs: list[Any], ys: list[Any]) -> PlotLine:
    """Points of two columns, by x; what is not a number is a gap, infinities are marked."""
    x = np.array([_number(v) for v in xs], np.float64)
    y = np.array([_number(v) for v in ys], np.float64)
    finite = np.isfinite(x)
    x, y = x[finite], y[finite]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    odd = x[np.isinf(y)]
    return PlotLine(label, "", "", x, np.where(np.isinf(y), np.nan, y), odd)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def write_csv(plot: Plot, target: Path) -> int:
    """All points, a row each; how many. Raises `OSError`."""
    columns = ["line", "site", "run", plot.axis, "value"]

    def rows() -> Iterator[tuple]:
        for line in plot.lines:
            head = (line.label, line.site, line.run)
            for x, y in zip(line.xs.tolist(), line.ys.tolist(), strict=True):
                yield *head, int(x) if x.is_integer() else x, None if y != y else y

    return row_formats.write_file(target, "csv", columns, rows())


# --- what is sent ---------------------------------------------------------------------------------


def plot_json(plot: Plot, points: int, low: float | None, high: float | None) -> dict[str, Any]:
    """A part of a plot for the screen: its lines, those that reach farthest first, with at most
    `points` points each.
    """
    lines = sorted(plot.lines, key=_reach, reverse=True)[:MOST_LINES]
    most = max(_LEAST_POINTS, min(points, MOST_POINTS // max(1, len(lines))))
    return {
        "axis": plot.axis,
        "unit": plot.unit,
        "lines": [_line_json(line, most, low, high) for line in lines],
        "all": len(plot.lines),
        "points": sum(len(line.xs) for line in plot.lines),
        "odd": _odd(plot, points, low, high),
    }


def _line_json(line: PlotLine, most: int, low: float | None, high: float | None) -> dict[str, Any]:
    begin, end = 0, len(line.xs)
    if low is not None and high is not None:  # and a point to both sides: lines go to the edge
        begin = max(0, int(np.searchsorted(line.xs, low)) - 1)
        end = min(end, int(np.searchsorted(line.xs, high, side="right")) + 1)
    xs, ys = downsample(line.xs[begin:end], line.ys[begin:end], most)
    return {
        "label": line.label,
        "site": line.site,
        "run": line.run,
        "points": len(line.xs),
        "xs": [int(x) if x.is_integer() else float(f"{x:.9g}") for x in xs.tolist()],
        "ys": [None if y != y else float(f"{y:.7g}") for y in ys.tolist()],
    }


def _reach(line: PlotLine) -> float:
    return float(np.nanmax(np.abs(line.ys))) if not np.isnan(line.ys).all() else -1.0


def _odd(plot: Plot, points: int, low: float | None, high: float | None) -> list[dict[str, Any]]:
    """Places where tensors had NaNs or infinities: the x, and some of the tensors' names."""
    found: dict[float, list[str]] = {}
    for line in plot.lines:
        for x in line.odd.tolist():
            if low is None or high is None or low <= x <= high:
                found.setdefault(x, []).append(line.label)
    positions = sorted(found)
    if len(positions) > points:
        positions = [positions[k] for k in np.linspace(0, len(positions) - 1, points).astype(int)]
    return [{"x": x, "count": len(found[x]), "labels": found[x][:5]} for x in positions]
