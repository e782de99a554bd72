"""Cells of tables: figures in the units people read, and links from ops to what they did.

What stands in a workspace comes from programs and their users: all of it is escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from opstep.runtime.expressions.text import bars
from opstep.runtime.ir.amounts import size
from opstep.runtime.ir.calls import amount

DATABASE = "data"  # its name in addresses, whatever the file is called


class Cell(NamedTuple):
    value: Any
    row: Mapping[str, Any]  # the values of the row by column
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


def link(text: Any, path: str, **parameters: Any) -> Markup:
    """A link into the database, with the parameters of a query."""
    query = f"?{urlencode(parameters)}" if parameters else ""
    return Markup('<a href="/{}/{}{}">{}</a>').format(DATABASE, path, query, text)


def _run(cell: Cell) -> Markup | None:
    is_id = isinstance(cell.value, int)
    return link(cell.value, f"runs/{cell.value}") if is_id else None


def _op(cell: Cell) -> Markup | None:
    run, op = cell.row.get("run"), cell.row.get("op")
    if run is None or op is None:
        return None
    return link(cell.value, "what_an_op_did", run=run, op_name=op)


def _tensor(cell: Cell) -> Markup | None:
    run = cell.row.get("run")
    return run and link(cell.value, "history_of_a_tensor", run=run, tensor=cell.value)


def _name(cell: Cell) -> Markup | None:
    return _tensor(cell) if cell.table == "results" else _op(cell)


def _line(cell: Cell) -> Markup | None:
    run = cell.row.get("run")
    return run and link(cell.value, "ops", run=run, line=cell.value)


def _program(cell: Cell) -> Markup | None:
    if cell.table != "runs" or not isinstance(cell.value, str):
        return None
    lines = amount(cell.value.count("\n") + 1, "line")
    return link(lines, "line_by_line", run=cell.row.get("id"))


# --- figures and texts ----------------------------------------------------------------------------


def figure(text: str, raw: Any, mark: str = "") -> Markup:
    """A figure as people read it; the raw value is its title."""
    return Markup('<span class="figure{}" title="{}">{}</span>').format(
        f" {mark}" if mark else "", raw, text
    )


def of_number(text: Callable[[Any], str]) -> Show:
    def shown(cell: Cell) -> Markup | None:
        is_number = isinstance(cell.value, (int, float))
        return figure(text(cell.value), cell.value) if is_number else None

    return shown


def _bad(cell: Cell) -> Markup | None:
    """Counts of what should not be there."""
    if not isinstance(cell.value, int):
        return None
    return figure(number(cell.value), cell.value, "bad" if cell.value else "none")


def _plain(cell: Cell) -> Markup | None:
    if isinstance(cell.value, float):
        mark = "" if math.isfinite(cell.value) else "bad"
        return figure(number(cell.value), cell.value, mark)
    return None


def _code(cell: Cell) -> Markup | None:
    return Markup("<code>{}</code>").format(cell.value)


def _histogram(cell: Cell) -> Markup | None:
    """Bars, from the exponent `lowest` up."""
    counts = read_counts(cell.value)
    if counts is None:
        return None
    low = cell.row.get("lowest")
    low = low if isinstance(low, int) else 0
    title = f"2^{low} to 2^{low + len(counts)}: {sum(counts):,} elements"
    return Markup('<span class="bars" title="{}">{}</span>').format(title, bars(counts))


def read_counts(text: Any) -> list[int] | None:
    """A histogram as it is stored, or None where this is none."""
    try:
        counts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(counts, list) or not all(isinstance(n, int) and n >= 0 for n in counts):
        return None
    return counts


# --- in the units that people read ----------------------------------------------------------------


def duration(ns: float) -> str:
    """``812 ns``, ``12.3 µs``, ``3.41 ms``, ``1.2 s``"""
    for limit, scale, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns / 1e9:,.3g} s" if abs(ns) < 1e12 else f"{ns / 1e9:,.0f} s"


def count(n: float) -> str:
    """``812``, ``12.3 k``, ``3.4 M``: for amounts of work, such as FLOPs."""
    if abs(n) < 1000:
        return f"{n:,.0f}"
    power = min(4, int(math.log10(abs(n))) // 3)
    return f"{n / 1000**power:,.1f}{(' k', ' M', ' G', ' T')[power - 1]}"


def number(x: float | int | None) -> str:
    """``0.01234``, ``-3.1e-07``, ``12,288``, ``∞``; None as a dash."""
    if x is None:
        return "–"
    if isinstance(x, int):
        return f"{x:,}" if abs(x) < 10**15 else f"{x:.4g}"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    return f"{x:.4g}"


def coded(text: str) -> Markup:
    """A text in which what stands in `backticks` is code."""
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else escape(part)
        for k, part in enumerate(parts)
    )


# --- which column is shown how --------------------------------------------------------------------

BAD = ("nan", "posinf", "neginf", "inf", "unwritten", "other_nan", "other_inf", "nan_a", "nan_b")
SHOWN: dict[str, Show] = {
    "run": _run,
    "other": _run,
    "op": _op,
    "op_name": _op,
    "name": _name,
    "tensor": _tensor,
    "line": _line,
    "program": _program,
    "seconds": of_number(lambda s: duration(s * 1e9)),
    "bytes": of_number(size),
    "nbytes": of_number(size),
    "flops": of_number(count),
    "flops_a_second": of_number(count),
    "share": of_number(lambda part: f"{part:.1%}"),
    "histogram": _histogram,
    "statement": _code,
    "text": _code,
}
SHOWN |= dict.fromkeys(BAD, _bad)
SHOWN |= dict.fromkeys(("start_ns", "end_ns", "began_ns"), lambda cell: None)  # moments
ENDINGS: dict[str, Show] = {"_ns": of_number(duration), "_bytes": of_number(size)}
