"""Figures by step, a line a tensor, for ``plot``.

stats.absmax where op=relu, run=last
stats.nan where value=conv*, step=0..99
executions.seconds where op=conv2d|matmul
metrics.loss where run=*
loss where run=*
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span
from opstep.trace.workspace.names import find_run
from opstep.trace.workspace.reading import readable
from opstep.trace.workspace.runs import FIGURES, STATS, RecordedRun, read_run

MOST = 2_000_000  # points that are drawn
_KEYS = {
    "stats": ("run", "op", "value", "graph", "step"),
    "executions": ("run", "op", "graph", "stream", "step"),
    "metrics": ("run", "name", "step"),
}


class Query(NamedTuple):
    """``TABLE.COLUMN where KEY=VALUE, …`` taken apart. Values of a key are alternatives. What
    names no table is a metric: ``loss``, ``validation.loss``.
    """

    table: str
    column: str
    where: dict[str, list[str]]


@dataclass(eq=False)
class Line:
    """One tensor's figure, or one metric, of one run. `xs` are steps; several times in one step
    (turns of a loop) they lie between it and the next. `odd`: where it had NaNs or infinities.
    """

    name: str  # of the tensor or the metric
    site: str  # of its op; a metric's is its name
    run: RecordedRun
    xs: list[float] = field(default_factory=list)
    ys: list[float | None] = field(default_factory=list)
    odd: list[float] = field(default_factory=list)


def unit_of(query: Query) -> str:
    """Of what is drawn: seconds, elements, or ""."""
    counts = ("nan", "posinf", "neginf", "zero", "subnormal", "unwritten", "count")
    if query.table == "stats":
        return "elements" if query.column in counts else ""
    return "seconds" if "seconds" in (query.column, *query.where.get("name", ())) else ""


def labels_of(lines: list[Line]) -> list[str]:
    """The shortest words that tell the lines apart: names, else sites; runs where they are many, by
    their names if no other has the same.
    """
    counts = Counter((line.name, line.run.id) for line in lines)
    runs = {line.run.id: line.run for line in lines}
    several = len(runs) > 1
    names = Counter(run.name for run in runs.values())
    found = []
    for line in lines:
        text = line.name if counts[line.name, line.run.id] == 1 and line.name else line.site
        run = line.run.name if line.run.name and names[line.run.name] == 1 else line.run.key
        text = f"{text} @{run}" if several else text
        found.append(text if len(text) <= 30 else f"…{text[-29:]}")
    return found


def parse(text: str) -> Query:
    """Raises `InputError` with the place of what is wrong."""
    found = re.match(r"\s*(?:(\w+)\.)?([\w.]+)\s*", text)
    hint = did_you_mean(found[1], _KEYS) if found and found[1] else ""
    if not found or (found[1] not in _KEYS and hint):
        tables = ", ".join(_KEYS)
        span = Span(*found.span(1)) if found else Span(0, max(1, len(text)))
        raise _wrong(text, span, f"expected TABLE.COLUMN, with a table of {tables}", hint)
    table, column = found[1], found[2]
    if table not in _KEYS:
        table, column = "metrics", f"{table}.{column}" if table else column
    _check_column(text, table, column, Span(*found.span(2)))
    rest, at = text[found.end() :], found.end()
    where: dict[str, list[str]] = {}
    if rest.strip():
        begin = re.match(r"where\s+", rest)
        if not begin:
            raise _wrong(text, Span(at, len(text)), "expected: where KEY=VALUE, …")
        position = at + begin.end()
        for part in re.split(r"(,|\s+and\s+)", text[position:]):
            if not re.fullmatch(r",|\s+and\s+", part):
                key, values = _condition(text, table, part, position)
                where[key] = where.get(key, []) + values
            position += len(part)
    return Query(table, column, where)


def _check_column(text: str, table: str, column: str, span: Span) -> None:
    columns = {"stats": FIGURES, "executions": ("seconds",)}.get(table, ())
    if columns and column not in columns:
        hint = did_you_mean(column, columns) or f"there are: {', '.join(columns)}"
        raise _wrong(text, span, f"{table} has no figure {column}", hint)


def _condition(text: str, table: str, part: str, position: int) -> tuple[str, list[str]]:
    key, equals, value = part.partition("=")
    name, values = key.strip(), [v.strip().strip("'\"") for v in value.split("|")]
    lead = len(part) - len(part.lstrip())
    span = Span(position + lead, position + max(len(part.rstrip()), lead + 1))
    if not equals or not all(values):
        raise _wrong(text, span, "expected KEY=VALUE")
    keys = _KEYS[table]
    if name not in keys:
        hint = did_you_mean(name, keys) or f"it can be: {', '.join(keys)}"
        raise _wrong(text, span, f"{table} has no {name}", hint)
    numbers = name in ("step", "stream")
    if numbers and not all(re.fullmatch(r"-?\d{1,18}(\.\.\d{1,18})?", v) for v in values):
        raise _wrong(text, span, f"{name} is a number, or two: {name}=0..99")
    for low, dots, high in (v.partition("..") for v in values if numbers):
        if dots and int(low) > int(high):
            message = f"{low}..{high} has nothing in it: a range goes from low to high"
            raise _wrong(text, span, message, f"write {name}={high}..{low}")
    return name, values


def _wrong(text: str, span: Span, message: str, hint: str = "") -> InputError:
    example = "such as: stats.absmax where op=relu, run=last"
    return InputError(message, span=span, source=Source(text, "plot"), hint=hint or example)


# --- reading --------------------------------------------------------------------------------------


@readable
def read(connection: sqlite3.Connection, query: Query) -> list[Line]:
    """The lines, in the order in which their ops were planned. Raises `InputError` where there are
    none.
    """
    runs = _runs(connection, query.where.get("run", ["last"]))
    found = [line for run in runs for line in _READERS[query.table](connection, query, run)]
    if not found:
        raise _nothing(connection, query, runs)
    return found


def _runs(connection: sqlite3.Connection, references: list[str]) -> list[RecordedRun]:
    ids: dict[int, None] = {}
    for reference in references:
        if reference == "*":
            ids |= dict.fromkeys(i for (i,) in connection.execute("select id from runs"))
        else:
            ids[find_run(connection, reference)] = None
    return [read_run(connection, i) for i in ids]


def _stats(connection: sqlite3.Connection, query: Query, run: RecordedRun) -> list[Line]:
    where, arguments = _where(query, "stats")
    if "step" not in query.where:
        where += " and +steps.step >= 0"  # before the first there are inputs and params; + keeps
        # SQLite from walking over all later steps, once for each
    rows = connection.execute(
        f"select stats.op, stats.result, results.name, ops.site, stats.step, "
        f'stats."{query.column}", stats.nan + stats.posinf + stats.neginf '
        f"from {STATS} where results.run = ?{where} "
        "order by stats.op, stats.result, stats.step, stats.execution "
        f"limit {MOST + 1}",
        (run.id, *arguments),
    )
    return _lines(run, rows)


def _executions(connection: sqlite3.Connection, query: Query, run: RecordedRun) -> list[Line]:
    where, arguments = _where(query, "executions")
    rows = connection.execute(
        "select executions.op, 0, (select name from results where results.run = ops.run and "
        "results.op = ops.op order by result limit 1), ops.site, executions.step, "
        "(executions.end_ns - executions.start_ns) / 1e9, 0 "
        "from executions join ops using (run, op) "
        f"where executions.run = ? and executions.start_ns is not null{where} "
        f"order by executions.op, executions.execution limit {MOST + 1}",
        (run.id, *arguments),
    )
    return _lines(run, rows)


# A run and those that it went on from, each with the step from which on the next one counts.
_LINEAGE = (
    "with recursive lineage(id, until) as (select ?, 9e18 union select runs.parent, "
    "min(runs.parent_step, until) from lineage join runs using (id) where runs.parent is not null)"
)


def _metrics(connection: sqlite3.Connection, query: Query, run: RecordedRun) -> list[Line]:
    where, arguments = _where(query, "metrics")
    name = "" if query.column == "value" else " and metrics.name = ?"
    rows = connection.execute(
        f"{_LINEAGE} select metrics.name, 0, metrics.name, metrics.name, metrics.step, "
        "metrics.value, metrics.value is null or abs(metrics.value) > 1e308 "
        "from lineage join metrics on metrics.run = lineage.id and metrics.step < lineage.until "
        f"where 1{name}{where} order by metrics.name, metrics.step limit {MOST + 1}",
        (run.id, *([query.column] if name else []), *arguments),
    )
    return _lines(run, rows)


_READERS: dict[str, Callable[..., list[Line]]] = {
    "stats": _stats,
    "executions": _executions,
    "metrics": _metrics,
}


def _lines(run: RecordedRun, rows: Any) -> list[Line]:
    """Rows of (key, key, name, site, step, figure, how much of it is not finite) as lines."""
    lines: dict[tuple, Line] = {}
    steps: list[int] = []  # of the line at hand
    for count, (op, result, name, site, step, y, odd) in enumerate(rows):
        if count == MOST:
            raise InputError(
                f"more than {MOST:,} points", hint="ask for less: where step=0..999, op=relu"
            )
        if (op, result) not in lines:
            _spread(lines, steps)
            lines[op, result] = Line(name or "", site, run)
            steps = []
        line = lines[op, result]
        steps.append(step)
        line.ys.append(y if y is None or abs(y) < 1e308 else None)
        line.odd.append(odd or 0)
    _spread(lines, steps)
    for line in lines.values():
        line.odd = [x for x, odd in zip(line.xs, line.odd, strict=True) if odd]
    return list(lines.values())


def _spread(lines: dict[tuple, Line], steps: list[int]) -> None:
    """Gives the last line its xs: executions of one step lie side by side."""
    if not lines:
        return
    line = list(lines.values())[-1]
    begin = 0
    while begin < len(steps):
        end = begin
        while end < len(steps) and steps[end] == steps[begin]:
            end += 1
        line.xs += [steps[begin] + k / (end - begin) for k in range(end - begin)]
        begin = end


def _where(query: Query, table: str) -> tuple[str, list[Any]]:
    """The rest of a WHERE clause and its parameters."""
    text, arguments = "", []
    for key, values in query.where.items():
        if key == "run":
            continue
        parts = []
        for value in values:
            if key in ("step", "stream"):
                low, _, high = value.partition("..")
                column = "+steps.step" if (table, key) == ("stats", "step") else f"{table}.{key}"
                parts.append(f"{column} between ? and ?")
                arguments += [int(low), int(high or low)]
            else:
                column = {"op": "ops.site" if "/" in value else "ops.name", "graph": "ops.graph",
                          "value": "results.name", "name": "metrics.name"}[key]  # fmt: skip
                parts.append(f"{column} glob ?")
                arguments.append(value)
        text += f" and ({' or '.join(parts)})"
    return text, arguments


def _nothing(connection: sqlite3.Connection, query: Query, runs: list[RecordedRun]) -> InputError:
    """That these runs have nothing to draw, and what there would be."""
    where = ", ".join(f"run {run.key} ({run.graph})" for run in runs[:4])
    where += ", …" if len(runs) > 4 else ""
    others = (r for r in _runs(connection, ["*"]) if r.id not in {one.id for one in runs})
    if fits := next((r for r in others if _READERS[query.table](connection, query, r)), None):
        hint = f"run {fits.key} ({fits.graph}) has some: add run={fits.key}, or run=* for all runs"
    else:
        hint = _hint(connection, query, runs)
    return InputError(f"nothing fits in {where}: no line to draw", hint=hint)


def _hint(connection: sqlite3.Connection, query: Query, runs: list[RecordedRun]) -> str:
    """The names that these runs have."""
    what = "metrics" if query.table == "metrics" else "ops"
    marks = ", ".join("?" * len(runs))
    rows = connection.execute(
        f"select distinct name from {what} where run in ({marks}) order by 1 limit 40",
        [run.id for run in runs],
    )
    names = [name for (name,) in rows]
    requested = query.where.get("op", []) + ([query.column] if what == "metrics" else [])
    near = [hint for name in requested if (hint := did_you_mean(name, names))]
    if not names and what == "ops":  # of training
        return _hint(connection, Query("metrics", "value", {}), runs)
    return near[0] if near else f"there are {what} {', '.join(names[:12])}" if names else ""
