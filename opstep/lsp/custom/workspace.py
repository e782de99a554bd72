"""Workspaces and their runs, as the tree of an editor shows them. Nothing here changes a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.editors.views import figure
from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given, plots
from opstep.lsp.workspaces.examples import EXAMPLES
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.standing import is_ours, standing
from opstep.lsp.workspaces.told import place_of, run_told
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import query
from opstep.trace.workspace.runs import read_runs
from opstep.trace.workspace.schema import TABLES
from opstep.trace.workspace.store import open_reading
from opstep.trace.workspace.views import VIEWS

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_FILES = 1_000
MOST_RUNS = 500  # in one response
MOST_PROGRAM = 256 << 20  # bytes of a program's file


@feature("opstep/workspace/find", thread=True)
def find(project: Project, params: Params) -> dict[str, Any]:
    """Those of some files that are workspaces, each with its `standing`."""
    paths = params.get("paths", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InputError("paths: expected a list of paths")
    found = [Path(path) for path in paths[:MOST_FILES]]
    return {"files": [standing(path) for path in found if is_ours(path)]}


@feature("opstep/workspace/examine", thread=True)
def examine(project: Project, params: Params) -> dict[str, Any]:
    """What one file is, and another `stamp` whenever it was written to."""
    path = given.path_of(params)
    return standing(path) | {"stamp": str(plots.stamp(path))}


@feature("opstep/workspace/runs", thread=True)
def runs(project: Project, params: Params) -> dict[str, Any]:
    """Runs, the last first: `limit` of them from `offset` on."""
    limit = given.number(params, "limit", 100, low=1, high=MOST_RUNS)
    offset = given.number(params, "offset", 0)
    path = given.path_of(params)
    with given.opened(params) as ws:
        (count,), *_ = ws.sql("select count(*) from runs").rows
        ids = ws.sql("select id from runs order by id desc limit ? offset ?", (limit, offset)).rows
        chosen = [ws.run(id) for (id,) in ids]
        found = ws.sql("select run, count(*) from findings group by run").rows
    findings = dict(found)
    told = [
        run_told(run) | {"findings": findings.get(run.id, 0), "place": place_of(path, run.file)}
        for run in chosen
    ]
    return {"count": count, "runs": told, "stamp": str(plots.stamp(path))}


@feature("opstep/workspace/run", thread=True)
def run(project: Project, params: Params) -> dict[str, Any]:
    """One run: how it ran, how much is known of it, and the last value of each metric."""
    path = given.path_of(params)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
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
        metrics = ws.sql(
            "select name, step, value from metrics where run = ? and step = "
            "(select max(step) from metrics where run = ?) order by name",
            (run.id, run.id),
        ).rows
    return run_told(run) | {
        "place": place_of(path, run.file),
        "ops": ops,
        "executions": executions,
        "totalNs": total,
        "tensorNames": names,
        "tensorBytes": nbytes,
        "findings": counts["findings"],
        "checkpoints": counts["checkpoints"],
        "metrics": [{"name": n, "step": s, "value": figure(v)} for n, s, v in metrics],
    }


@feature("opstep/workspace/program", thread=True)
def program(project: Project, params: Params) -> dict[str, Any]:
    """The program of a run as its text was when it ran, and the file it came from, if it is there:
    `same` says whether that still holds the same text.
    """
    path = given.path_of(params)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
    place = place_of(path, run.file)
    now = None
    if place is not None:
        now = _text(Path(place))
        if now is None:
            place = None
    return {"text": run.program, "file": run.file, "place": place, "same": now == run.program}


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


@feature("opstep/workspace/place", thread=True)
def place(project: Project, params: Params) -> dict[str, Any]:
    """Where an op of a run stands: by its number or its site; or the file of the run alone."""
    path = given.path_of(params)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
        op, site = params.get("op"), params.get("site")
        rows: list[tuple] = []
        if isinstance(op, int) or isinstance(site, str):
            key, value = ("op", op) if isinstance(op, int) else ("site", site)
            rows = ws.sql(
                f"select file, line, statement from ops where run = ? and {key} = ? limit 1",
                (run.id, value),
            ).rows
    file, line, statement = rows[0] if rows else (None, None, None)
    line = given.number(params, "line") if line is None and "line" in params else line
    return {"place": place_of(path, file or run.file), "line": line, "statement": statement}


@feature("opstep/workspace/schema", thread=True)
def schema(project: Project, params: Params) -> dict[str, Any]:
    """Tables and views with their columns and what they mean, ops and metrics by name for plots,
    and questions to begin with.
    """
    tables = {t.name: (t.what, {c.name: (c.type, c.what) for c in t.columns}) for t in TABLES}
    views = {v.name: (v.what, {n: ("", what) for n, what in v.columns}) for v in VIEWS}
    known = tables | views
    connection = open_reading(given.path_of(params), update=False, patience=given.PATIENCE_S)
    try:
        found = []
        for name in query.tables_of(connection):
            what, columns = known.get(name, ("", {}))
            told = [(c, *columns.get(c, ("", ""))) for c in query.columns_of(connection, name)]
            listed = [{"name": c, "type": kind, "what": what} for c, kind, what in told]
            kind = "view" if name in views else "table"
            found.append({"name": name, "kind": kind, "what": what, "columns": listed})
        names = {
            key: [n for (n,) in connection.execute(text)]
            for key, text in _NAMES.items()
        }  # fmt: skip
        keys = [run.key for run in read_runs(connection)[-50:]]
    finally:
        connection.close()
    examples = [{"title": e.title, "sql": e.sql, "what": e.what} for e in EXAMPLES]
    return {"tables": found, "names": names, "runs": keys[::-1], "examples": examples}


_NAMES = {
    "op": "select distinct name from ops where op >= 0 order by 1 limit 300",
    "value": "select distinct name from results order by 1 limit 1000",
    "graph": "select distinct graph from ops order by 1 limit 300",
    "metric": "select distinct name from metrics order by 1 limit 300",
}
