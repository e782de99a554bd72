"""The page of an op: its statement, and what it gave and took step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from opstep.trace.workspace.pages import cells, details, words
from opstep.trace.workspace.pages.data import POINTS, Row, ask, run_row
from opstep.trace.workspace.pages.histograms import binned, heatmap
from opstep.trace.workspace.pages.metadata import DATABASE
from opstep.trace.workspace.pages.plot import Line, Panel
from opstep.trace.workspace.pages.series import as_float, bad_steps, distribution

if TYPE_CHECKING:
    from datasette.app import Datasette

READ = 50_000  # histograms
OP = "select * from ops where run = :run and op = :op"
RESULTS = "select * from results where run = :run and op = :op order by result"
STATS = """
select min(s.step) as step, s.result, min(s.min) as min, max(s.max) as max, avg(s.mean) as mean,
  avg(s.std) as std, max(s.absmax) as absmax, sum(s.nan) as nan, sum(s.posinf) as posinf,
  sum(s.neginf) as neginf, sum(s.zero) as zero
from steps t cross join stats s on s.run = t.run and s.step = t.step and s.op = :op
where t.run = :run
group by case when t.step < 0 then -1 else t.step / :every / :stride end, s.result order by 1
"""
HISTOGRAMS = """
select s.step, s.result, s.histogram, s.lowest
from steps t cross join stats s on s.run = t.run and s.step = t.step and s.op = :op
where t.run = :run and (t.step / :every % :thinned = 0 or t.step < 0) order by s.step
"""
# By way of the statistics an index leads to the executions of one op.
TIMES = """
select s.step, sum(e.end_ns - e.start_ns) as took_ns
from steps t
cross join stats s on s.run = t.run and s.step = t.step and s.op = :op and s.result = 0
cross join executions e on e.run = s.run and e.execution = s.execution
where t.run = :run and t.step / :every % :stride = 0 and e.start_ns is not null
group by s.step order by s.step
"""
TIMES_WITHOUT_STATS = """
select step, sum(end_ns - start_ns) as took_ns from executions
where run = :run and op = :op and step / :every % :stride = 0 and start_ns is not null
group by step order by step
"""
FACTS = ("operands", "attrs", "site")
FIGURES = ("stream", "bytes", "flops", "live_bytes", "executions", "total_ns")
AROUND = """
select op, name, site from ops where run = :run and op between :op - 1 and :op + 1 order by op
"""


async def page(request: Any, datasette: Datasette) -> Any:
    from datasette.utils.asgi import NotFound, Response

    run = await run_row(datasette, request.url_vars["run"])
    number = int(request.url_vars["op"])
    given = {"run": run["id"], "op": number}
    found = await ask(datasette, OP, given)
    if not found:
        raise NotFound(f"Run {run['key']} has no op {number}")
    op, every = found[0], run["every"] or 1
    steps = run["steps"] or 1
    drawn = {**given, "every": every, "stride": stride(steps // every)}
    stats = await ask(datasette, STATS, drawn)
    thinned = max(1, -(-(steps // every) // READ))
    bins = await ask(datasette, HISTOGRAMS, {**given, "every": every, "thinned": thinned})
    times = await ask(datasette, TIMES if stats else TIMES_WITHOUT_STATS, drawn)
    results = await ask(datasette, RESULTS, given)
    more = await details.plots(datasette, drawn) if run["also"] else {}
    label = cells.RunLabel(run["key"], run["status"], run["file"], run["began_ns"])
    context = {
        "run": run,
        "label": cells.run_link(run["id"], label),
        "op": op,
        "line": cells.show("line", cells.Cell(op["line"], op, {run["id"]: label}, "ops")),
        "facts": facts(op, FACTS),
        "figures": facts(op, FIGURES),
        "results": [
            (r, result_plots(of_result(stats, r), of_result(bins, r)) + more.get(r["result"], []))
            for r in results
        ],
        "time": time_plot(times),
        "neighbours": [o for o in await ask(datasette, AROUND, given) if o["op"] != number],
        "database": DATABASE,
        "words": words,
    }
    return Response.html(await datasette.render_template("op.html", context, request=request))


def stride(steps: int) -> int:
    """So that of this many steps no more than `POINTS` are drawn."""
    return max(1, -(-steps // POINTS))


def facts(op: Row, columns: tuple[str, ...]) -> list[tuple[str, Any]]:
    """What is known of the op, as its table shows it."""
    shown = []
    for column in columns:
        cell = cells.Cell(op[column], op, {}, "ops")
        text = cells.show(column, cell)
        if op[column] not in (None, "", "{}", "[]"):
            name = column.removesuffix("_ns").replace("_", " ")
            shown.append((name, op[column] if text is None else text))
    return shown


def of_result(rows: list[Row], result: Row) -> list[Row]:
    return [row for row in rows if row["result"] == result["result"]]


def by_magnitude(row: Row) -> Mapping[int, int]:
    """Elements by exponent; none where all are 0."""
    bins = cells.read_bins(row["histogram"], row["lowest"])
    return dict(enumerate(bins.counts, bins.lowest)) if bins else {}


def result_plots(rows: list[Row], histograms: list[Row]) -> list[Markup]:
    """How a tensor's elements went: spread, magnitude, where they lie, how many are odd."""
    if not rows:
        return []
    marks = bad_steps(["nan", "posinf", "neginf"], rows)
    plots = [distribution("mean", rows, marks).svg()]
    sizes = [
        Line("absmax", [(r["step"], as_float(r["absmax"])) for r in rows]),
        Line("std", [(r["step"], as_float(r["std"])) for r in rows]),
    ]
    plots.append(Panel("magnitude", sizes, marks=marks, log=True).svg())
    plots.append(heatmap("elements by magnitude", binned(histograms, by_magnitude)))
    odd = [
        Line(name, [(r["step"], float(r[column])) for r in rows])
        for name, column in (("NaN", "nan"), ("+inf", "posinf"), ("-inf", "neginf"))
        if any(r[column] for r in rows)
    ]
    if odd:
        plots.append(Panel("elements that are not finite", odd).svg())
    elif any(r["zero"] for r in rows):
        zeros = Line("zeros", [(r["step"], float(r["zero"])) for r in rows])
        plots.append(Panel("elements that are 0", [zeros]).svg())
    return plots


def time_plot(rows: list[Row]) -> Markup:
    """What the op took, step by step."""
    points = [(r["step"], as_float(r["took_ns"])) for r in rows]
    if len(points) < 2:
        return Markup("")
    return Panel("time", [Line("time", points)], show=words.duration).svg()
