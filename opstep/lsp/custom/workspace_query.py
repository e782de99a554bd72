"""Questions in SQL: asked, paged, sorted, copied, exported, drawn.

The client names each of its questions (``query``); what it names again is replaced. No statement
can change anything.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp import arguments
from opstep.lsp.arguments import Params
from opstep.lsp.project import PerProject
from opstep.lsp.registry import feature
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.browsing.json_fields import json_rows, problem_json
from opstep.trace.workspace.browsing.results import Results, export_answer, first_page
from opstep.trace.workspace.row_formats import WRITERS

if TYPE_CHECKING:
    from opstep.lsp.project import Project

SOON_S = 0.25  # a question that takes no longer is answered at once
WHOLE_S = 0.03  # a little more, and a short answer is whole
LOOK_S = 1.0  # and a look at one that does waits so long for news
MOST_PAGE = 2_000  # rows
MOST_COPIED = 100_000  # rows
_results = PerProject(Results)


def results_of(project: Project) -> Results:
    """The answers that a project has open."""
    return _results.of(project)


@feature("opstep/workspace/query", thread=True)
def query(project: Project, params: Params) -> dict[str, Any]:
    """Asks: the first rows, where they are there soon; `rows` tells the others as they come."""
    name, path = arguments.text(params, "query"), arguments.path_of(params)
    result = results_of(project).ask(name, path, arguments.text(params, "sql"))
    result.wait(SOON_S, beyond=0)
    result.wait(WHOLE_S)
    return first_page(result)


@feature("opstep/workspace/rows", thread=True)
def rows(project: Project, params: Params) -> dict[str, Any]:
    """A page of an answer, `limit` rows from `offset` on, sorted by a `column` where one is given;
    and how far it is. `beyond`: waits a little for more than so many rows.
    """
    result = results_of(project).get(arguments.text(params, "query"))
    if "beyond" in params:
        result.wait(LOOK_S, arguments.number(params, "beyond"))
    limit = arguments.number(params, "limit", 0, high=MOST_PAGE)
    page = (
        result.page(arguments.number(params, "offset", 0), limit, *_order(params)) if limit else []
    )
    return result.progress() | {"rows": json_rows(page), "offset": params.get("offset", 0)}


@feature("opstep/workspace/field", thread=True)
def field(project: Project, params: Params) -> dict[str, Any]:
    """One field, whole: its text, or of bytes their first in hexadecimal."""
    result = results_of(project).get(arguments.text(params, "query"))
    row, column = arguments.number(params, "row"), arguments.number(params, "of")
    value = result.field(row, column, *_order(params))
    if isinstance(value, bytes):
        return {"text": value[: arguments.MOST_TEXT // 2].hex(" "), "bytes": len(value)}
    return {"text": "" if value is None else str(value)}


def _order(params: Params) -> tuple[int | None, bool]:
    column = params.get("column")
    if column is None:
        return None, False
    return arguments.number(params, "column"), bool(params.get("descending"))


@feature("opstep/workspace/stop")
def stop(project: Project, params: Params) -> dict[str, Any]:
    """Ends the reading of an answer, an export or a plot; what was read stays."""
    results_of(project).stop(arguments.text(params, "query"))
    return {}


@feature("opstep/workspace/close", thread=True)
def close(project: Project, params: Params) -> dict[str, Any]:
    """The client looks at this answer no more."""
    results_of(project).close(arguments.text(params, "query"))
    return {}


@feature("opstep/workspace/copy", thread=True)
def copy(project: Project, params: Params) -> dict[str, Any]:
    """Rows of an answer as text: ``csv``, ``json`` or ``markdown``, in the order that is shown."""
    result = results_of(project).get(arguments.text(params, "query"))
    limit = arguments.number(params, "limit", MOST_COPIED, high=MOST_COPIED)
    found = result.each(arguments.number(params, "offset", 0), limit, *_order(params))
    columns = result.columns
    if chosen := arguments.numbers(params, "columns"):
        if not all(0 <= k < len(columns) for k in chosen):
            raise InputError("columns: the answer has no such column")
        columns = [columns[k] for k in chosen]
        found = (tuple(row[k] for k in chosen) for row in found)
    out = io.StringIO()
    WRITERS[_format(params)](columns, found, out)
    return {"text": out.getvalue()}


def _format(params: Params) -> str:
    found = arguments.text(params, "format")
    if found not in WRITERS:
        raise InputError(f"format: {', '.join(WRITERS)}")
    return found


@feature("opstep/workspace/export", thread=True)
def export(project: Project, params: Params) -> dict[str, Any]:
    """Asks anew, and writes all rows to a `file`, which is there whole or not at all."""
    kind, target = _format(params), Path(arguments.text(params, "file"))
    name, text = arguments.text(params, "query"), arguments.text(params, "sql")
    results, began = results_of(project), time.monotonic()
    event = results.begin(name)
    try:
        with arguments.workspace(params) as ws:
            count = export_answer(ws, text, kind, target, event)
    except OpstepError as error:
        return {"problem": problem_json(error, text)}
    except OSError as error:
        failure = {"kind": "wrong", "message": f"{target}: {error.strerror}", "hint": ""}
        return {"problem": failure}
    finally:
        results.end(name, event)
    return {"rows": count, "bytes": target.stat().st_size, "seconds": time.monotonic() - began}
