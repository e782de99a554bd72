"""Workspaces and their runs, as the tree of an editor shows them. Nothing here changes a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp import arguments
from opstep.lsp.arguments import Params
from opstep.lsp.registry import feature
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.browsing import catalog, finding_report
from opstep.trace.workspace.browsing import runs as recorded
from opstep.trace.workspace.browsing.catalog import file_stamp, file_status, is_workspace

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_FILES = 1_000
MOST_RUNS = 500  # in one response
MOST = 1_000  # rows in one response


@feature("opstep/workspace/find", thread=True)
def find(project: Project, params: Params) -> dict[str, Any]:
    """Those of some files that are workspaces, each with its status and `stamp`."""
    paths = params.get("paths", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InputError("paths: expected a list of paths")
    found = [Path(path) for path in paths[:MOST_FILES]]
    return {"files": [_examined(path) for path in found if is_workspace(path)]}


@feature("opstep/workspace/examine", thread=True)
def examine(project: Project, params: Params) -> dict[str, Any]:
    """What one file is, and another `stamp` whenever it was written to."""
    return _examined(arguments.path_of(params))


def _examined(path: Path) -> dict[str, Any]:
    return file_status(path) | {"stamp": str(file_stamp(path))}


@feature("opstep/workspace/runs", thread=True)
def runs(project: Project, params: Params) -> dict[str, Any]:
    """Runs, the last first: `limit` of them from `offset` on."""
    limit = arguments.number(params, "limit", 100, low=1, high=MOST_RUNS)
    offset = arguments.number(params, "offset", 0)
    path = arguments.path_of(params)
    with arguments.workspace(params) as ws:
        page = recorded.runs_page(ws, path, limit, offset)
    return page | {"stamp": str(file_stamp(path))}


@feature("opstep/workspace/run", thread=True)
def run(project: Project, params: Params) -> dict[str, Any]:
    """One run: how it ran, how much is known of it, and the last value of each metric."""
    with arguments.workspace(params) as ws:
        return recorded.run_summary(ws, arguments.path_of(params), arguments.run_of(params))


@feature("opstep/workspace/program", thread=True)
def program(project: Project, params: Params) -> dict[str, Any]:
    """The program of a run, and the file it came from."""
    with arguments.workspace(params) as ws:
        return recorded.recorded_program(ws, arguments.path_of(params), arguments.run_of(params))


@feature("opstep/workspace/place", thread=True)
def locate(project: Project, params: Params) -> dict[str, Any]:
    """Where an op of a run stands: by its number or its site; or the file of the run alone."""
    op, site = params.get("op"), params.get("site")
    op, site = op if isinstance(op, int) else None, site if isinstance(site, str) else None
    with arguments.workspace(params) as ws:
        path, key = arguments.path_of(params), arguments.run_of(params)
        found = recorded.op_location(ws, path, key, op, site)
    if found["line"] is None and "line" in params:
        found["line"] = arguments.number(params, "line")
    return found


@feature("opstep/workspace/steps", thread=True)
def steps(project: Project, params: Params) -> dict[str, Any]:
    """Steps from `first` on, `limit` of them."""
    first = arguments.number(params, "first", 0, low=-1)
    limit = arguments.number(params, "limit", 100, low=1, high=MOST)
    with arguments.workspace(params) as ws:
        return {"steps": recorded.steps_page(ws, arguments.run_of(params), first, limit)}


@feature("opstep/workspace/tensors", thread=True)
def tensors(project: Project, params: Params) -> dict[str, Any]:
    """Tensors that are kept: of a run, or (without `run`) those that were saved by hand."""
    with arguments.workspace(params) as ws:
        key = None if params.get("run") is None else arguments.run_of(params)
        return recorded.tensors_by_name(ws, key)


@feature("opstep/workspace/findings", thread=True)
def findings(project: Project, params: Params) -> dict[str, Any]:
    """What is wrong with a run, in the order in which it was found."""
    limit = arguments.number(params, "limit", 200, low=1, high=MOST)
    offset = arguments.number(params, "offset", 0)
    with arguments.workspace(params) as ws:
        path, key = arguments.path_of(params), arguments.run_of(params)
        return {"findings": recorded.findings_page(ws, path, key, limit, offset)}


@feature("opstep/workspace/report", thread=True)
def report(project: Project, params: Params) -> dict[str, Any]:
    """A finding told at length: the op at fault, what went in and what came out."""
    with arguments.workspace(params) as ws:
        run, number = ws.run(arguments.run_of(params)), arguments.number(params, "finding")
        text = finding_report.finding_report(ws, run, number)
        return {"text": text, "tensor": finding_report.finding_tensor(ws, run, number)}


@feature("opstep/workspace/slowest", thread=True)
def slowest(project: Project, params: Params) -> dict[str, Any]:
    """The ops that took the most time, with that of all."""
    limit = arguments.number(params, "limit", 20, low=1, high=MOST)
    with arguments.workspace(params) as ws:
        path, key = arguments.path_of(params), arguments.run_of(params)
        return recorded.slowest_ops(ws, path, key, limit)


@feature("opstep/workspace/schema", thread=True)
def schema(project: Project, params: Params) -> dict[str, Any]:
    """Tables and views, names for plots, and questions to begin with."""
    return catalog.catalog(arguments.path_of(params))
