"""Questions in SQL: asked, paged, sorted, copied, exported, drawn.

The client names each of its questions (``query``); what it names again is replaced. No statement
can change anything.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given
from opstep.lsp.workspaces.cells import rows_of
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.per import PerProject
from opstep.lsp.workspaces.problems import problem
from opstep.lsp.workspaces.results import Results, first_page
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
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
    name, path = given.text(params, "query"), given.path_of(params)
    result = results_of(project).ask(name, path, given.text(params, "sql"))
    result.wait(SOON_S, beyond=0)
    result.wait(WHOLE_S)
    return first_page(result)


@feature("opstep/workspace/rows", thread=True)
def rows(project: Project, params: Params) -> dict[str, Any]:
    """A page of an answer, `limit` rows from `offset` on, sorted by a `column` where one is given;
    and how far it is. `beyond`: waits a little for more than so many rows.
    """
    result = results_of(project).get(given.text(params, "query"))
    if "beyond" in params:
        result.wait(LOOK_S, given.number(params, "beyond"))
    limit = given.number(params, "limit", 0, high=MOST_PAGE)
    page = result.page(given.number(params, "offset", 0), limit, *_order(params)) if limit else []
    return result.told() | {"rows": rows_of(page), "offset": params.get("offset", 0)}


@feature("opstep/workspace/field", thread=True)
def field(project: Project, params: Params) -> dict[str, Any]:
    """One field, whole: its text, or of bytes their first in hexadecimal."""
    result = results_of(project).get(given.text(params, "query"))
    row, column = given.number(params, "row"), given.number(params, "of")
    value = result.field(row, column, *_order(params))
    if isinstance(value, bytes):
        return {"text": value[: given.MOST_TEXT // 2].hex(" "), "bytes": len(value)}
    return {"text": "" if value is None else str(value)}


def _order(params: Params) -> tuple[int | None, bool]:
    column = params.get("column")
    if column is None:
        return None, False
    return given.number(params, "column"), bool(params.get("descending"))


@feature("opstep/workspace/stop")
def stop(project: Project, params: Params) -> dict[str, Any]:
    """Ends the reading of an answer, an export or a plot; what was read stays."""
    results_of(project).stop(given.text(params, "query"))
    return {}


@feature("opstep/workspace/close", thread=True)
def close(project: Project, params: Params) -> dict[str, Any]:
    """The client looks at this answer no more."""
    results_of(project).close(given.text(params, "query"))
    return {}


@feature("opstep/workspace/copy", thread=True)
def copy(project: Project, params: Params) -> dict[str, Any]:
    """Rows of an answer as text: ``csv``, ``json`` or ``markdown``, in the order that is shown."""
    result = results_of(project).get(given.text(params, "query"))
    limit = given.number(params, "limit", MOST_COPIED, high=MOST_COPIED)
    found = result.each(given.number(params, "offset", 0), limit, *_order(params))
    columns = result.columns
    if chosen := given.numbers(params, "columns"):
        if not all(0 <= k < len(columns) for k in chosen):
            raise InputError("columns: the answer has no such column")
        columns = [columns[k] for k in chosen]
        found = (tuple(row[k] for k in chosen) for row in found)
    out = io.StringIO()
    WRITERS[_format(params)](columns, found, out)
    return {"text": out.getvalue()}


def _format(params: Params) -> str:
    found = given.text(params, "format")
    if found not in WRITERS:
        raise InputError(f"format: {', '.join(WRITERS)}")
    return found


@feature("opstep/workspace/export", thread=True)
def export(project: Project, params: Params) -> dict[str, Any]:
    """Asks anew, and writes all rows to a `file`, which is there whole or not at all."""
    from opstep.runtime import arrays

    kind, target = _format(params), Path(given.text(params, "file"))
    name, text = given.text(params, "query"), given.text(params, "sql")
    results, began = results_of(project), time.monotonic()
    event = results.begin(name)
    count = 0

    def write(file: Any) -> None:
        nonlocal count

        def counted(rows: Any) -> Any:
            nonlocal count
            for row in rows:
                count += 1
                if event.is_set():
                    return
                yield row

        asked = ws.ask(text, timeout=None, stop=event.is_set)
        with asked as (columns, rows):
            out = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
            WRITERS[kind](columns, counted(rows), out)
            out.detach()
        if event.is_set():
            raise InputError("stopped: nothing was written")

    try:
        with given.opened(params) as ws:
            arrays.replace_file(target, write)
    except OpstepError as error:
        return {"problem": problem(error, text)}
    except OSError as error:
        told = {"kind": "wrong", "message": f"{target}: {error.strerror}", "hint": ""}
        return {"problem": told}
    finally:
        results.end(name, event)
    return {"rows": count, "bytes": target.stat().st_size, "seconds": time.monotonic() - began}
