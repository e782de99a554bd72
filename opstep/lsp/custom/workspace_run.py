"""What belongs to one run: steps, tensors, findings, slowest ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.editors.views import figure
from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.reports import report
from opstep.lsp.workspaces.told import place_of, tensor_told
from opstep.trace.workspace.views import BAD
from opstep.trace.workspace.workspace import Workspace

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST = 1_000  # rows in one response
MOST_NAMES = 5_000


@feature("opstep/workspace/steps", thread=True)
def steps(project: Project, params: Params) -> dict[str, Any]:
    """Steps from `first` on, `limit` of them: what each took, its metrics, and how many tensors had
    NaNs or infinities in it.
    """
    first = given.number(params, "first", 0, low=-1)
    limit = given.number(params, "limit", 100, low=1, high=MOST)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params)).id
        rows = ws.sql(
            "select step, end_ns - start_ns from steps where run = ? and step >= ? "
            "order by step limit ?",
            (run, first, limit),
        ).rows
        last = rows[-1][0] if rows else first
        span = (run, first, last)
        metrics = ws.sql(
            "select step, name, value from metrics where run = ? and step between ? and ?", span
        ).rows
        odd = dict(
            ws.sql(
                "select step, count(*) from stats indexed by stats_by_run_step "
                f"where run = ? and step between ? and ? and ({BAD}) group by step",
                span,
            ).rows
        )
    values: dict[int, dict[str, Any]] = {}
    for step, name, value in metrics:
        values.setdefault(step, {})[name] = figure(value)
    told = [
        {"step": step, "ns": ns, "metrics": values.get(step, {}), "odd": odd.get(step, 0)}
        for step, ns in rows
    ]
    return {"steps": told}


@feature("opstep/workspace/tensors", thread=True)
def tensors(project: Project, params: Params) -> dict[str, Any]:
    """Tensors that are kept, by name, each with its versions: of a run, or (without `run`) those
    that were saved by hand.
    """
    with given.opened(params) as ws:
        if params.get("run") is None:
            found = ws.tensors(kind="saved")
        else:
            found = ws.run(given.run_of(params)).tensors
    named: dict[str, list[dict[str, Any]]] = {}
    for tensor in found:
        named.setdefault(tensor.name, []).append(tensor_told(tensor))
    listed = list(named.items())
    return {
        "count": len(listed),
        "names": [{"name": name, "versions": told} for name, told in listed[:MOST_NAMES]],
    }


@feature("opstep/workspace/findings", thread=True)
def findings(project: Project, params: Params) -> dict[str, Any]:
    """What is wrong with a run, in the order in which it was found."""
    path = given.path_of(params)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
        rows = ws.sql(
            "select id, step, op, kind, value, file, line, message from findings where run = ? "
            "order by id limit ? offset ?",
            (run.id, given.number(params, "limit", 200, low=1, high=MOST),
             given.number(params, "offset", 0)),
        ).dicts()  # fmt: skip
    return {"findings": [row | {"place": place_of(path, row["file"] or run.file)} for row in rows]}


@feature("opstep/workspace/report", thread=True)
def finding_report(project: Project, params: Params) -> dict[str, Any]:
    """A finding told at length: the op at fault, what went in and what came out."""
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
        return {"text": report(ws, run, given.number(params, "finding"))}


@feature("opstep/workspace/slowest", thread=True)
def slowest(project: Project, params: Params) -> dict[str, Any]:
    """The ops that took the most time, with their share of that of all."""
    path = given.path_of(params)
    with given.opened(params) as ws:
        run = ws.run(given.run_of(params))
        rows = _slowest(ws, run.id, given.number(params, "limit", 20, low=1, high=MOST))
        (total,), *_ = ws.sql("select sum(total_ns) from ops where run = ?", (run.id,)).rows
    for row in rows:
        row["place"] = place_of(path, row["file"] or run.file)
    return {"ops": rows, "totalNs": total or 0}


def _slowest(ws: Workspace, run: int, limit: int) -> list[dict[str, Any]]:
    return ws.sql(
        "select op, name, site, file, line, statement, executions, total_ns, mean_ns "
        "from slowest_ops where run = ? and total_ns is not null order by total_ns desc limit ?",
        (run, limit),
    ).dicts()
