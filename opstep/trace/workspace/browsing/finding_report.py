"""A finding of a run at length."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.reading import parsed
from opstep.trace.workspace.runs import RecordedRun
from opstep.trace.workspace.views import BAD
from opstep.trace.workspace.workspace import Workspace

_FIGURES = ("min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "count")


def finding_report(ws: Workspace, run: RecordedRun, finding: int) -> str:
    """The finding, the statement at fault with its place, the statistics of what went in and
    came out in that step, and how the tensor was in the steps before.
    """
    rows = ws.sql(
        "select step, op, kind, value, file, line, message from findings where run = ? and id = ?",
        (run.id, finding),
    ).dicts()
    if not rows:
        raise InputError("this finding is gone", hint="refresh the view")
    found = rows[0]
    lines = [found["message"], ""]
    if found["file"] or found["line"]:
        lines.append(f"{found['file'] or run.file}:{found['line']}")
    lines += [
        f"run {run.key}: {run.graph}, {run.device}, seed {run.seed}, step {found['step']}",
        "",
    ]
    if found["op"] is not None:
        lines += _op(ws, run, found)
    if found["value"] and found["op"] is not None:
        lines += _before(ws, run, found)
    return "\n".join(lines).rstrip() + "\n"


def finding_tensor(ws: Workspace, run: RecordedRun, finding: int) -> dict[str, Any]:
    """The record of the tensor that was found: its op and type, how many elements are not
    finite, and of these NaN. Empty where no op gives it; without numbers, where none were taken.
    """
    rows = ws.sql(
        "select o.name, r.dtype, r.shape, s.nan, s.nan + s.posinf + s.neginf from findings as f "
        "join ops as o on o.run = f.run and o.op = f.op "
        "join results as r on r.run = f.run and r.op = f.op and r.name = f.value "
        "left join stats as s on s.run = f.run and s.op = f.op and s.result = r.result "
        "and s.step = f.step where f.run = ? and f.id = ? order by s.execution desc limit 1",
        (run.id, finding),
    ).rows
    if not rows:
        return {}
    op, dtype, shape, nan, count = rows[0]
    type_ = f"{dtype}[{', '.join(map(str, parsed(shape)))}]"
    numbers = {"nan": nan, "count": count} if count else {}
    return {"op": op, "type": type_, **numbers}


def _op(ws: Workspace, run: RecordedRun, found: dict[str, Any]) -> list[str]:
    op, at = found["op"], _activation(ws, run, found)
    rows = ws.sql(
        "select name, site, statement, operands, sources, attrs from ops where run = ? and op = ?",
        (run.id, op),
    ).dicts()
    if not rows:
        return []
    row = rows[0]
    lines = [f"  {row['statement'] or row['site']}", "", f"op {row['name']} ({row['site']})"]
    for name, value in parsed(row["attrs"] or "{}").items():
        lines.append(f"  {name} = {value}")
    lines += ["", "what went in"]
    sources = parsed(row["sources"] or "[]")
    for (name, type_), source in zip(parsed(row["operands"] or "[]"), sources, strict=False):
        figures = "a number" if source == 0 else "not known"
        if isinstance(source, list):
            figures = _figures(ws, run.id, source[0], source[1], at)
        lines.append(f"  {name}: {type_}  {figures}")
    lines += ["", "what came out"]
    for result, name, dtype, shape in ws.sql(
        "select result, name, dtype, shape from results where run = ? and op = ? order by result",
        (run.id, op),
    ).rows:
        type_ = f"{dtype}[{', '.join(map(str, parsed(shape)))}]"
        lines.append(f"  {name}: {type_}  {_figures(ws, run.id, op, result, at)}")
    return [*lines, ""]


def _activation(ws: Workspace, run: RecordedRun, found: dict[str, Any]) -> tuple[int, int]:
    """The step of a finding, and the activation of its plan: the first one that gave bad elements,
    where statistics say that; else the last.
    """
    rows = ws.sql(
        "select e.activation from stats as s join results using (run, op, result) "
        "join executions as e on e.run = s.run and e.execution = s.execution "
        "where s.run = ? and s.step = ? and s.op = ? and results.name = ? "
        f"order by ({BAD}) desc, case when {BAD} then 1 else -1 end * s.execution limit 1",
        (run.id, found["step"], found["op"], found["value"]),
    ).rows
    return found["step"], rows[0][0] if rows else -1


def _figures(ws: Workspace, run: int, op: int, result: int, at: tuple[int, int]) -> str:
    """The statistics of a tensor in a step and an activation."""
    columns = ", ".join(f'stats."{name}"' for name in _FIGURES)
    rows = ws.sql(
        f"select {columns} from stats join executions using (run, execution) "
        "where run = ? and stats.op = ? and result = ? and stats.step = ? and activation = ?",
        (run, op, result, *at),
    ).rows
    return figures_text(rows[0]) if rows else "no statistics were taken"


def figures_text(row: tuple) -> str:
    """``mean 0.01  std 1.2  min -3.1  max 4.2  3 NaN``"""
    values: dict[str, Any] = dict(zip(_FIGURES, row, strict=True))
    parts = []
    if values["mean"] is not None:
        parts.append(f"mean {values['mean']:.4g}  std {values['std'] or 0:.4g}")
        parts.append(f"min {values['min']:.4g}  max {values['max']:.4g}")
    for name, word in (("nan", "NaN"), ("posinf", "+inf"), ("neginf", "-inf")):
        if values[name]:
            parts.append(f"{values[name]:,} {word}")
    if values["zero"]:
        parts.append(f"{values['zero']:,} zeros")
    return "  ".join([*parts, f"of {values['count']:,}"])


def _before(ws: Workspace, run: RecordedRun, found: dict[str, Any]) -> list[str]:
    columns = ", ".join(f'stats."{name}"' for name in _FIGURES)
    rows = ws.sql(
        f"select stats.step, {columns} from stats join results using (run, op, result) "
        "where stats.run = ? and stats.step between ? and ? and stats.op = ? and results.name = ? "
        "order by stats.step, stats.execution",
        (run.id, found["step"] - 5, found["step"], found["op"], found["value"]),
    ).rows
    if len(rows) < 2:
        return []
    lines = [f"{found['value']} in the steps before"]
    return lines + [f"  step {step}: {figures_text(tuple(figures))}" for step, *figures in rows]
