"""Plots: figures by step (``stats.absmax where op=relu``), and columns of an answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp.custom.workspace_query import results_of
from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given, plots
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.per import PerProject
from opstep.lsp.workspaces.problems import problem
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.lsp.project import Project

WAIT_S = 10.0  # for the last rows of an answer
POINTS = 2_000  # of a line, where the client does not say
_drawings = PerProject(plots.Drawings)


@feature("opstep/workspace/plot", thread=True)
def plot(project: Project, params: Params) -> dict[str, Any]:
    """The lines that a text means, as `opstep ws FILE plot` takes it: at most `points` points each,
    from `low` to `high` where both are given. `query` names it for `stop`.
    """
    text, began = given.text(params, "what"), time.monotonic()
    results = results_of(project)
    name = given.text(params, "query")
    event = results.begin(name)
    try:
        drawing = _drawings.of(project).of_figures(given.path_of(params), text, event)
    except OpstepError as error:
        return {"problem": problem(error, text)}
    finally:
        results.end(name, event)
    return _sent(drawing, params) | {"seconds": time.monotonic() - began}


@feature("opstep/workspace/plotRows", thread=True)
def plot_rows(project: Project, params: Params) -> dict[str, Any]:
    """Columns `ys` of an answer over its column `x`; `by`: a line for each value of that column."""
    began = time.monotonic()
    result = results_of(project).get(given.text(params, "query"))
    result.wait(WAIT_S)
    by = None if params.get("by") is None else given.number(params, "by")
    try:
        drawing = plots.of_answer(
            result, given.number(params, "x"), given.numbers(params, "ys"), by
        )
    except OpstepError as error:
        return {"problem": problem(error)}
    return _sent(drawing, params) | {"seconds": time.monotonic() - began}


@feature("opstep/workspace/exportPlot", thread=True)
def export_plot(project: Project, params: Params) -> dict[str, Any]:
    """All points of the lines that a text means, as a CSV `file`: a row a point."""
    text, target = given.text(params, "what"), Path(given.text(params, "file"))
    results, began = results_of(project), time.monotonic()
    name = given.text(params, "query")
    event = results.begin(name)
    try:
        drawing = _drawings.of(project).of_figures(given.path_of(params), text, event)
        count = plots.write_csv(drawing, target)
    except OpstepError as error:
        return {"problem": problem(error, text)}
    except OSError as error:
        return {"problem": problem(InputError(f"{target}: {error.strerror}"))}
    finally:
        results.end(name, event)
    seconds = time.monotonic() - began
    return {"rows": count, "bytes": target.stat().st_size, "seconds": seconds}


def _sent(drawing: plots.Drawing, params: Params) -> dict[str, Any]:
    points = given.number(params, "points", POINTS, low=10, high=10_000)
    return plots.sent(drawing, points, given.real(params, "low"), given.real(params, "high"))
