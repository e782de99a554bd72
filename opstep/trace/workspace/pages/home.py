"""The first page: what the file holds, its runs, and what can be asked."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from opstep.trace.workspace.pages import cells, words
from opstep.trace.workspace.pages.data import Row, ask, labels, metrics
from opstep.trace.workspace.pages.metadata import DATABASE
from opstep.trace.workspace.pages.plot import sparkline
from opstep.trace.workspace.pages.questions import QUESTIONS

if TYPE_CHECKING:
    from datasette.app import Datasette

SHOWN = 30  # runs on the page; the table has all
CURVES = 12  # of them with a curve of their first metric

RUNS = """
select r.id, r.key, r.status, r.error, r.began, r.seconds, r.steps, r.file, r.graph, r.streams,
  r.alloc, r.fill, r.sync, r.selection,
  (select count(*) from findings f where f.run = r.id) as findings,
  (select json_group_array(name) from metrics m
    where m.run = r.id and m.step = 0 and m.name <> 'seconds') as metrics,
  r.program
from runs r order by r.id desc limit :most
"""
TOTALS = """
select (select count(*) from runs) as runs, (select count(distinct run) from findings) as wrong,
  (select count(*) from tensors) as tensors, (select sum(nbytes) from tensors) as bytes
"""


async def page(request: Any, datasette: Datasette) -> Any:
    from datasette.utils.asgi import Response

    database = datasette.get_database(DATABASE)
    runs = await ask(datasette, RUNS, {"most": SHOWN})
    totals = (await ask(datasette, TOTALS) or [{}])[0]
    names = await labels(datasette)
    for k, run in enumerate(runs):
        run["link"] = cells.run_link(run["id"], names.get(run["id"]))
        scalars = json.loads(run["metrics"])
        run["metric"] = first_of(scalars, run["program"], run["graph"]) if k < CURVES else None
        run["curve"] = await curve(datasette, run) if k < CURVES else Markup("")
    known = datasette.metadata("tables", database=DATABASE) or {}
    tables = [(t, known.get(t, {})) for t in await database.table_names()]
    context = {
        "path": Path(str(database.path)),
        "size": words.size(file_size(Path(str(database.path)))),
        "runs": runs,
        "more": max(0, totals.get("runs", 0) - len(runs)),
        "totals": totals,
        "questions": QUESTIONS,
        "tables": [(t, m.get("description", "")) for t, m in tables if not m.get("hidden")],
        "views": [
            (v, known.get(v, {}).get("description", ""), of_last(v, runs))
            for v in await database.view_names()
        ],
        "database": DATABASE,
        "words": words,
    }
    return Response.html(await datasette.render_template("home.html", context, request=request))


def of_last(view: str, runs: list[Row]) -> str:
    """What selects the last run from a view, uncounted: its rows may be millions."""
    if not runs:
        return ""
    if view == "run_compare" and len(runs) > 1:
        return f"?run={runs[1]['id']}&other={runs[0]['id']}&_nocount=1"
    return f"?run={runs[0]['id']}&_nocount=1"


def first_of(scalars: list[str], program: str | None, graph: str) -> str | None:
    """The one that the graph returns first."""
    if len(scalars) < 2:
        return scalars[0] if scalars else None
    order = {name: k for k, name in enumerate(returned(program or "", graph))}
    return min(scalars, key=lambda name: (order.get(name, len(order)), name))


@lru_cache(64)
def returned(program: str, graph: str) -> tuple[str, ...]:
    """The names of a graph's results, in their order; none where the text cannot be read."""
    from opstep.runtime.ir.diagnostics import OpstepError
    from opstep.runtime.ir.graph import Return
    from opstep.runtime.ir.parser import parse

    try:
        body = parse(program).graphs[graph].body
    except (OpstepError, LookupError):
        return ()
    return tuple(v.text for s in body if isinstance(s, Return) for v in s.values)


async def curve(datasette: Datasette, run: Row) -> Markup:
    """How the run's first scalar result went."""
    if run["metric"] is None:
        return Markup("")
    points = (await metrics(datasette, run["id"], run["steps"], 120)).get(run["metric"], [])
    drawn = sparkline(points)
    return Markup('<span title="{}">{}</span>').format(run["metric"], drawn) if drawn else drawn


def file_size(path: Path) -> int:
    """Of the file and of what is written but not yet in it."""
    parts = (path, path.with_name(path.name + "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
