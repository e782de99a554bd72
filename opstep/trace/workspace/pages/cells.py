"""Cells of tables: figures in the units people read, links from runs to ops to lines.

What stands in a workspace comes from programs and their users: all of it is escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from opstep.trace.workspace.pages import words
from opstep.trace.workspace.pages.histograms import Bins, bars
from opstep.trace.workspace.pages.plot import clipped


class RunLabel(NamedTuple):
    """What every mention of a run shows."""

    key: str
    status: str
    file: str
    began_ns: int | None


class Cell(NamedTuple):
    value: Any
    row: Mapping[str, Any]  # the values of the row by column
    runs: Mapping[int, RunLabel]
    table: str | None  # None in the answer of a query


Show = Callable[[Cell], "Markup | None"]  # None: as Datasette shows it


def show(column: str, cell: Cell) -> Markup | None:
    """The cell as HTML, or None where Datasette's way is good enough."""
    if cell.value is None or isinstance(cell.value, bytes):
        return None
    found = SHOWN.get(column)
    if found is None:
        found = next((f for end, f in ENDINGS.items() if column.endswith(end)), _plain)
    return found(cell)


# --- links ----------------------------------------------------------------------------------------


def run_link(run: Any, label: RunLabel | None) -> Markup:
    if label is None:
        return Markup("{}").format(run)
    return Markup('<span class="nowrap"><a href="/-/run/{}"><code>{}</code></a> {}</span>').format(
        run, label.key, badge(label.status)
    )


def badge(word: str) -> Markup:
    """A word such as a run's status, in its colour."""
    return Markup('<span class="badge is-{}">{}</span>').format(
        word if word.isalpha() else "other", word
    )


def line_link(run: Any, line: Any) -> Markup:
    return Markup('<a href="/-/program/{0}?line={1}#L{1}">{1}</a>').format(run, line)


def op_link(run: Any, op: Any, text: Any) -> Markup:
    return Markup('<a href="/-/op/{}/{}">{}</a>').format(run, op, text)


def _run(cell: Cell) -> Markup | None:
    return run_link(cell.value, cell.runs[cell.value]) if cell.value in cell.runs else None


def _run_id(cell: Cell) -> Markup | None:
    return run_link(cell.row.get("id"), cell.runs.get(cell.row.get("id", 0)))


def _line(cell: Cell) -> Markup | None:
    """Lines of the run's program lead there; those of the library stand in another file."""
    run, file = cell.row.get("run"), cell.row.get("file")
    label = cell.runs.get(run) if isinstance(run, int) else None
    if label is None or not isinstance(cell.value, int) or cell.value < 1:
        return None
    return line_link(run, cell.value) if file in (None, label.file) else None


def _op(cell: Cell) -> Markup | None:
    run = cell.row.get("run")
    return None if run is None else op_link(run, cell.value, cell.value)


def _op_name(cell: Cell) -> Markup | None:
    run, op = cell.row.get("run"), cell.row.get("op")
    if run is None or op is None:
        return None
    return op_link(run, op, cell.value)


# --- figures --------------------------------------------------------------------------------------


def figure(text: str, raw: Any, mark: str = "") -> Markup:
    """A figure as people read it; the raw value is its title."""
    return Markup('<span class="figure{}" title="{}">{}</span>').format(
        f" {mark}" if mark else "", raw, text
    )


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def of_number(text: Callable[[Any], str], mark: str = "") -> Show:
    def shown(cell: Cell) -> Markup | None:
        return figure(text(cell.value), cell.value, mark) if is_number(cell.value) else None

    return shown


_duration = of_number(words.duration)
_size = of_number(words.size)
_count = of_number(words.count)
_seconds = of_number(lambda s: words.duration(s * 1e9))


def _since(cell: Cell) -> Markup | None:
    """A moment, as the time since the run began."""
    label = cell.runs.get(cell.row.get("run", 0))
    if label is None or label.began_ns is None or not isinstance(cell.value, int):
        return None
    return figure(f"+{(cell.value - label.began_ns) / 1e6:,.3f} ms", cell.value)


def _bad(cell: Cell) -> Markup | None:
    """Counts of what should not be there."""
    if not isinstance(cell.value, int):
        return None
    if cell.value == 0:
        return Markup('<span class="figure none">0</span>')
    return figure(words.number(cell.value), cell.value, "bad")


def _share(cell: Cell) -> Markup | None:
    """A share of the whole, with a bar."""
    if not is_number(cell.value) or not 0 <= cell.value <= 1:
        return None
    return share_bar(cell.value)


def share_bar(share: float) -> Markup:
    return Markup(
        '<span class="nowrap"><span class="share" title="{}"><span style="width: {}px"></span>'
        "</span> {}</span>"
    ).format(share, f"{share * 60:.0f}", f"{share:.1%}")


def _plain(cell: Cell) -> Markup | None:
    if isinstance(cell.value, float):
        mark = "" if math.isfinite(cell.value) else "bad"
        return figure(words.number(cell.value), cell.value, mark)
    return None


# --- texts ----------------------------------------------------------------------------------------


def _moment(cell: Cell) -> Markup | None:
    """``2026-11-21 05:12:03``: fractions and the zone stand in the title."""
    text = str(cell.value)
    return figure(text[:19].replace("T", " "), text) if "T" in text[:11] else None


def _code(cell: Cell) -> Markup | None:
    text = str(cell.value)
    return Markup('<code class="long" title="{}">{}</code>').format(text, clipped(text, 120))


def _badge(cell: Cell) -> Markup | None:
    return badge(str(cell.value))


def _kind(cell: Cell) -> Markup | None:
    return _badge(cell) if cell.table == "findings" else None


def _program(cell: Cell) -> Markup | None:
    if not isinstance(cell.value, str):
        return None
    lines = words.amount(cell.value.count("\n") + 1, "line")
    run = cell.row.get("id" if cell.table == "runs" else "run")
    return Markup('<a href="/-/program/{}">{}</a>').format(run, lines)


def _operands(cell: Cell) -> Markup | None:
    """``x: f32[8, 4], w: f32[4, 2]``"""
    pairs = as_json(cell.value)
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return None
    return Markup("<code>{}</code>").format(", ".join(f"{name}: {type}" for name, type in pairs))


def _attrs(cell: Cell) -> Markup | None:
    """``kernel=[2, 2], stride=[2, 2]``"""
    attrs = as_json(cell.value)
    if not isinstance(attrs, dict):
        return None
    return Markup("<code>{}</code>").format(", ".join(f"{k}={v}" for k, v in attrs.items()))


def _histogram(cell: Cell) -> Markup | None:
    bins = read_bins(cell.value, cell.row.get("lowest"))
    return None if bins is None else bars(bins)


def read_bins(text: Any, lowest: Any) -> Bins | None:
    """A histogram as it is stored, or None where this is none."""
    counts = as_json(text)
    if not isinstance(counts, list) or not all(isinstance(n, int) and n >= 0 for n in counts):
        return None
    return Bins(counts, lowest if isinstance(lowest, int) else 0)


def as_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


# --- which column is shown how --------------------------------------------------------------------

BAD = ("nan", "posinf", "neginf", "inf", "unwritten", "other_nan", "other_inf", "nan_a", "nan_b")
SHOWN: dict[str, Show] = {
    "run": _run,
    "other": _run,
    "key": _run_id,
    "line": _line,
    "op": _op,
    "op_name": _op_name,
    "name": _op_name,
    "start_ns": _since,
    "end_ns": _since,
    "began_ns": lambda cell: None,
    "seconds": _seconds,
    "bytes": _size,
    "nbytes": _size,
    "flops": _count,
    "flops_a_second": _count,
    "share": _share,
    "histogram": _histogram,
    "status": _badge,
    "kind": _kind,
    "verdict": _badge,
    "program": _program,
    "operands": _operands,
    "attrs": _attrs,
    "statement": _code,
    "site": _code,
    "frame": _code,
    "shape": _code,
    "began": _moment,
    "ended": _moment,
    "saved": _moment,
}
SHOWN |= dict.fromkeys(BAD, _bad)
ENDINGS: dict[str, Show] = {"_ns": _duration, "_bytes": _size}
