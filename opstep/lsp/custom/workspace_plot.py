"""Plots: figures by step (``stats.absmax where op=relu``), and columns of an answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp import arguments
from opstep.lsp.arguments import Params
from opstep.lsp.custom.workspace_query import results_of
from opstep.lsp.project import PerProject
from opstep.lsp.registry import feature
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.browsing import plots
from opstep.trace.workspace.browsing.json_fields import problem_json

if TYPE_CHECKING:
    from opstep.lsp.project import Project

WAIT_S = 10.0  # for the last rows of an answer
POINTS = 2_000  # of a line, where the client does not say
_drawings = PerProject(plots.PlotCache)


@feature("opstep/workspace/plot", thread=True)
def plot(project: Project, params: Params) -> dict[str, Any]:
    """The lines that a text means, as `opstep ws FILE plot` takes it: at most `points` points each,
    from `low` to `high` where both are given. `query` names it for `stop`.
    """
    text, began = arguments.text(params, "what"), time.monotonic()
    results = results_of(project)
    name = arguments.text(params, "query")
    event = results.begin(name)
    try:
        drawing = _drawings.of(project).of_figures(arguments.path_of(params), text, event)
    except OpstepError as error:
        return {"problem": problem_json(error, text)}
    finally:
        results.end(name, event)
    return _sent(drawing, params) | {"seconds": time.monotonic() - began}


@feature("opstep/workspace/plotRows", thread=True)
def plot_rows(project: Project, params: Params) -> dict[str, Any]:
    """Columns `ys` of an answer over its column `x`; `by`: a line for each value of that column."""
    began = time.monotonic()
    result = results_of(project).get(arguments.text(params, "query"))
    result.wait(WAIT_S)
    by = None if params.get("by") is None else arguments.number(params, "by")
    try:
        drawing = plots.of_answer(
            result, arguments.number(params, "x"), arguments.numbers(params, "ys"), by
        )
    except OpstepError as error:
        return {"problem": problem_json(error)}
    return _sent(drawing, params) | {"seconds": time.monotonic() - began}


@feature("opstep/workspace/exportPlot", thread=True)
def export_plot(project: Project, params: Params) -> dict[str, Any]:
    """All points of the lines that a text means, as a CSV `file`: a row a point."""
    text, target = arguments.text(params, "what"), Path(arguments.text(params, "file"))
    results, began = results_of(project), time.monotonic()
    name = arguments.text(params, "query")
    event = results.begin(name)
    try:
        drawing = _drawings.of(project).of_figures(arguments.path_of(params), text, event)
        count = plots.write_csv(drawing, target)
    except OpstepError as error:
        return {"problem": problem_json(error, text)}
    except OSError as error:
        return {"problem": problem_json(InputError(f"{target}: {error.strerror}"))}
    finally:
        results.end(name, event)
    seconds = time.monotonic() - began
    return {"rows": count, "bytes": target.stat().st_size, "seconds": seconds}


def _sent(drawing: plots.Plot, params: Params) -> dict[str, Any]:
    points = arguments.number(params, "points", POINTS, low=10, high=10_000)
    return plots.plot_json(
        drawing, points, arguments.real(params, "low"), arguments.real(params, "high")
    )
