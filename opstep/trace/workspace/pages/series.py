"""Plots of whatever has a `step`: rows of tables and of queries become panels of lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opstep.trace.workspace.pages import words
from opstep.trace.workspace.pages.plot import Band, Line, Panel, clipped

# Columns that tell series apart, and figures that say nothing when they are drawn.
GROUPS = ("run", "name", "tensor", "op_name", "site", "op", "result", "stream", "turn")
NO_FIGURE = {"step", "line", "lowest", "id", "execution", "activation", "start_ns", "end_ns"}
BAD = {"nan": "NaN", "posinf": "+inf", "neginf": "-inf", "inf": "inf"}
MOST_SERIES, MOST_PANELS = 8, 9

Row = Mapping[str, Any]


def plottable(columns: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether the rows are a few series of figures by step."""
    if "step" not in columns or len({row["step"] for row in stepped(rows)}) < 2:
        return False
    return bool(figures(columns, rows)) and len(grouped(columns, rows)) <= MOST_SERIES


def panels(columns: Sequence[str], rows: Sequence[Row]) -> list[Panel]:
    """A panel for each figure; mean, std, min and max of one series share one."""
    groups = grouped(columns, rows)
    names = figures(columns, rows)
    marks = bad_steps(columns, rows)
    found = []
    if len(groups) == 1 and {"mean", "std"} <= set(names):
        found.append(distribution("mean", next(iter(groups.values())), marks))
        names = [n for n in names if n not in ("mean", "std", "min", "max")]
    for name in names[: MOST_PANELS - len(found)]:
        lines = [
            Line(label, [(row["step"], as_float(row[name])) for row in members])
            for label, members in groups.items()
        ]
        found.append(Panel(name, lines, marks=marks, show=unit(name)))
    return found


def distribution(title: str, rows: Sequence[Row], marks: Sequence[tuple[float, str]]) -> Panel:
    """The mean as a line, mean ± std and min to max as bands."""
    inner, outer = [], []
    for row in rows:
        step, mean, std = row["step"], as_float(row["mean"]), as_float(row["std"])
        if mean is not None and std is not None:
            inner.append((step, mean - std, mean + std))
        if "min" in row and row["min"] is not None and row["max"] is not None:
            outer.append((step, row["min"], row["max"]))
    bands = [Band("min to max", outer)] if outer else []
    mean = Line("mean", [(row["step"], as_float(row["mean"])) for row in rows])
    return Panel(title, [mean], [*bands, Band("± std", inner)], marks)


def figures(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Columns of numbers that can be drawn."""
    return [
        name
        for name in dict.fromkeys(columns)
        if name not in NO_FIGURE
        and name not in GROUPS
        and name not in BAD
        and any(row[name] is not None for row in rows)
        and all(row[name] is None or isinstance(row[name], (int, float)) for row in rows)
        and not constant_count(name, rows)
    ]


def constant_count(name: str, rows: Sequence[Row]) -> bool:
    """Counts that never change are no news."""
    return (
        name in ("count", "zero", "subnormal", "unwritten")
        and len({row[name] for row in rows}) == 1
    )


def grouped(columns: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The series, in order of step, by a label of what tells them apart."""
    keys = [k for k in GROUPS if k in columns and len({str(row[k]) for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in sorted(stepped(rows), key=lambda row: row["step"]):
        found.setdefault(" ".join(clipped(str(row[k]), 40) for k in keys), []).append(row)
    return found


def stepped(rows: Sequence[Row]) -> list[Row]:
    """Those whose step is a number: an answer of SQL may hold anything under that name."""
    return [row for row in rows if isinstance(row["step"], int)]


def bad_steps(columns: Sequence[str], rows: Sequence[Row]) -> list[tuple[float, str]]:
    """Steps with NaNs or infinities, and how many."""
    there = [name for name in BAD if name in columns]
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        for name in there:
            if isinstance(row[name], int) and row[name] > 0 and isinstance(row["step"], int):
                counts = found.setdefault(row["step"], {})
                counts[BAD[name]] = counts.get(BAD[name], 0) + row[name]
    return [
        (step, f"step {step}: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))
        for step, counts in sorted(found.items())
    ]


def unit(name: str) -> Callable[[float], str]:
    """How a column's values are written at an axis."""
    if name.endswith("_ns"):
        return words.duration
    if name == "seconds":
        return lambda s: words.duration(s * 1e9)
    return words.size if name.endswith("bytes") else words.number


def as_float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
