"""Runs of a workspace, and what belongs to each: steps, kept tensors, findings, ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opstep.editors.views import figure, figures_json
from opstep.runtime.statistics import LOWEST
from opstep.trace.workspace.browsing.json_fields import program_path, run_json, tensor_json
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.runs import FIGURES
from opstep.trace.workspace.views import BAD
from opstep.trace.workspace.workspace import Workspace

CURVE = 8  # values of a curve, as a line of text shows it
RECENT = 5_000  # steps in which the last value of a metric is looked for
MOST_NAMES = 5_000
MOST_PROGRAM = 256 << 20  # bytes of a program's file


def runs_page(ws: Workspace, path: Path, limit: int, offset: int) -> dict[str, Any]:
    """Runs, the last first: `limit` of them from `offset` on, and how many there are."""
    (count,), *_ = ws.sql("select count(*) from runs").rows
    ids = ws.sql("select id from runs order by id desc limit ? offset ?", (limit, offset)).rows
    chosen = [ws.run(id) for (id,) in ids]
    findings = dict(ws.sql("select run, count(*) from findings group by run").rows)
    runs = [
        run_json(run) | {"findings": findings.get(run.id, 0), "place": program_path(path, run.file)}
        for run in chosen
    ]
    return {"count": count, "runs": runs}


def run_summary(ws: Workspace, path: Path, key: str) -> dict[str, Any]:
    """A run, how much is known of it, and each metric: its last value and its curve."""
    run = ws.run(key)
    (ops, executions, total), *_ = ws.sql(
        "select count(*), sum(executions), sum(total_ns) from ops where run = ? and op >= 0",
        (run.id,),
    ).rows
    (names, nbytes), *_ = ws.sql(
        "select count(distinct name), sum(nbytes) from tensors where run = ?", (run.id,)
    ).rows
    counts = {
        table: ws.sql(f"select count(*) from {table} where run = ?", (run.id,)).rows[0][0]
        for table in ("findings", "checkpoints")
    }
    # With max, SQLite takes the other columns from the row that has it.
    metrics = ws.sql(
        "select name, max(step), value from metrics where run = ? and step > "
        "(select max(step) from metrics where run = ?) - ? group by name order by name",
        (run.id, run.id, RECENT),
    ).rows
    return run_json(run) | {
        "place": program_path(path, run.file),
        "ops": ops,
        "executions": executions,
        "totalNs": total,
        "tensorNames": names,
        "tensorBytes": nbytes,
        "findings": counts["findings"],
        "checkpoints": counts["checkpoints"],
        "metrics": _metrics(ws, run.id, metrics),
    }


def _metrics(ws: Workspace, run: int, last: list[tuple]) -> list[dict[str, Any]]:
    """``curve``: values from the first step to the last, so few that no run is read whole."""
    if not last:
        return []
    (first,), *_ = ws.sql("select min(step) from metrics where run = ?", (run,)).rows
    span = max(step for _, step, _ in last) - first
    places = min(CURVE, span + 1)
    at = [first + span * k // max(1, places - 1) for k in range(places)]
    after = "select min(step) from metrics where run = ? and step >= column1"
    rows = ws.sql(
        f"select m.name, m.step, m.value from (values {', '.join(['(?)'] * places)}) "
        f"join metrics m on m.run = ? and m.step = ({after})",
        (*at, run, run),
    ).rows
    curves: dict[str, dict[int, Any]] = {}
    for name, step, value in rows:
        curves.setdefault(name, {})[step] = figure(value)
    return [
        {"name": n, "step": s, "value": figure(v), "curve": list(curves.get(n, {}).values())}
        for n, s, v in last
    ]


def recorded_program(ws: Workspace, path: Path, key: str) -> dict[str, Any]:
    """The program of a run as its text was when it ran, and the file it came from, if it is there:
    `same` says whether that still holds the same text.
    """
    run = ws.run(key)
    location = program_path(path, run.file)
    text = _text(Path(location)) if location is not None else None
    return {
        "text": run.program,
        "file": run.file,
        "place": location if text is not None else None,
        "same": text == run.program,
    }


def _text(path: Path) -> str | None:
    """A program as it is now; None where it cannot be read. A run may name any file, such as a
    pipe, which would make us wait.
    """
    try:
        if not path.is_file() or path.stat().st_size > MOST_PROGRAM:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def op_location(
    ws: Workspace, path: Path, key: str, op: int | None, site: str | None
) -> dict[str, Any]:
    """The place of an op of a run, by its number or its site; or the file of the run alone."""
    run = ws.run(key)
    rows: list[tuple] = []
    if op is not None or site is not None:
        column, value = ("op", op) if op is not None else ("site", site)
        rows = ws.sql(
            f"select file, line, statement from ops where run = ? and {column} = ? limit 1",
            (run.id, value),
        ).rows
    file, line, statement = rows[0] if rows else (None, None, None)
    return {"place": program_path(path, file or run.file), "line": line, "statement": statement}


def steps_page(ws: Workspace, key: str, first: int, limit: int) -> list[dict[str, Any]]:
    """Steps from `first` on: what each took, its metrics, and how many tensors had NaNs or
    infinities in it.
    """
    run = ws.run(key).id
    rows = ws.sql(
        "select step, end_ns - start_ns from steps where run = ? and step >= ? "
        "order by step limit ?",
        (run, first, limit),
    ).rows
    span = (run, first, rows[-1][0] if rows else first)
    odd = dict(
        ws.sql(
            "select step, count(*) from stats indexed by stats_by_run_step "
            f"where run = ? and step between ? and ? and ({BAD}) group by step",
            span,
        ).rows
    )
    metrics: dict[int, dict[str, Any]] = {}
    for step, name, value in ws.sql(
        "select step, name, value from metrics where run = ? and step between ? and ?", span
    ).rows:
        metrics.setdefault(step, {})[name] = figure(value)
    return [
        {"step": step, "ns": ns, "metrics": metrics.get(step, {}), "odd": odd.get(step, 0)}
        for step, ns in rows
    ]


def tensors_by_name(ws: Workspace, key: str | None) -> dict[str, Any]:
    """Tensors that are kept, by name, each with its versions: of a run, or (where `key` is None)
    those that were saved by hand.
    """
    found = ws.tensors(kind="saved") if key is None else ws.run(key).tensors
    named: dict[str, list[dict[str, Any]]] = {}
    for tensor in found:
        named.setdefault(tensor.name, []).append(tensor_json(tensor))
    listed = list(named.items())[:MOST_NAMES]
    return {
        "count": len(named),
        "names": [{"name": name, "versions": versions} for name, versions in listed],
    }


def findings_page(
    ws: Workspace, path: Path, key: str, limit: int, offset: int
) -> list[dict[str, Any]]:
    """Problems of a run, in the order in which they were found."""
    run = ws.run(key)
    rows = ws.sql(
        "select id, step, op, kind, value, file, line, message from findings where run = ? "
        "order by id limit ? offset ?",
        (run.id, limit, offset),
    ).dicts()
    return [row | {"place": program_path(path, row["file"] or run.file)} for row in rows]


def slowest_ops(ws: Workspace, path: Path, key: str, limit: int) -> dict[str, Any]:
    """The ops that took the most time, and what all took."""
    run = ws.run(key)
    rows = ws.sql(
        "select op, name, site, file, line, statement, executions, total_ns, mean_ns "
        "from slowest_ops where run = ? and total_ns is not null order by total_ns desc limit ?",
        (run.id, limit),
    ).dicts()
    (total,), *_ = ws.sql("select sum(total_ns) from ops where run = ?", (run.id,)).rows
    ops = [row | {"place": program_path(path, row["file"] or run.file)} for row in rows]
    return {"ops": ops, "totalNs": total or 0}


def statistics_history(
    ws: Workspace, record: TensorRecord, name: str | None, count: int
) -> list[dict[str, Any]]:
    """The figures of a tensor over the steps of the run of `record`: the last `count`, oldest
    first. Of a step that updates it what it was updated with, not what the step found.
    """
    if record.key is None:
        return []
    run = ws.run(record.key)
    columns = ", ".join(f'"{column}"' for column in FIGURES)
    rows = ws.sql(
        f"select step, op, {columns} from stat_history where run = ? and value = ? and step >= ? "
        "order by step, execution",
        (run.id, record.name if name is None else name, max(-1, run.steps - count)),
    ).rows
    no_histogram = {"histogram": [], "lowestExponent": LOWEST}  # none is recorded
    computed = {step for step, op, *_ in rows if op >= 0}
    entries = [
        {
            "step": step,
            "type": record.type,
            "statistics": figures_json(dict(zip(FIGURES, row, strict=True))) | no_histogram,
        }
        for step, op, *row in rows
        if op >= 0 or step not in computed
    ]
    return entries[-count:]
