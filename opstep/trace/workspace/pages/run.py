"""The page of a run: how it went, what is wrong with it, where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.trace.workspace.pages import cells, words
from opstep.trace.workspace.pages.data import ask, metrics, run_row
from opstep.trace.workspace.pages.metadata import DATABASE
from opstep.trace.workspace.pages.plot import Line, Panel, sound
from opstep.trace.workspace.pages.questions import QUESTIONS
from opstep.trace.workspace.pages.series import unit

if TYPE_CHECKING:
    from datasette.app import Datasette

MOST_METRICS = 8
SLOW = 12

FINDINGS = "select * from findings where run = :run order by id limit 20"
SLOWEST = """
select run, op, name, line, file, statement, executions, total_ns,
  1.0 * total_ns / sum(total_ns) over () as share
from ops where run = :run and total_ns is not null order by total_ns desc limit :most
"""
OTHERS = "select id, key, status, file, graph from runs where id <> :run order by id desc limit 8"


async def page(request: Any, datasette: Datasette) -> Any:
    from datasette.utils.asgi import Response

    run = await run_row(datasette, request.url_vars["run"])
    number = run["id"]
    labels = {number: cells.RunLabel(run["key"], run["status"], run["file"], run["began_ns"])}
    context = {
        "run": run,
        "label": cells.run_link(number, labels[number]),
        "facts": facts(run),
        "plots": [
            Panel(name, [Line(name, points)], marks=not_finite(points), show=unit(name)).svg()
            for name, points in ordered(await metrics(datasette, number, run["steps"]))
        ],
        "findings": [
            {**row, "badge": cells.badge(row["kind"]), "place": place(row, labels)}
            for row in await ask(datasette, FINDINGS, {"run": number})
        ],
        "slowest": [
            {**row, "place": place(row, labels), "bar": cells.share_bar(row["share"] or 0.0)}
            for row in await ask(datasette, SLOWEST, {"run": number, "most": SLOW})
        ],
        "others": await ask(datasette, OTHERS, {"run": number}),
        "questions": [q for q in QUESTIONS if list(q.params) == ["run"]],
        "database": DATABASE,
        "words": words,
    }
    return Response.html(await datasette.render_template("run.html", context, request=request))


def place(row: Any, labels: Any) -> Any:
    """The line, with a link where it is one of the program's."""
    shown = cells.show("line", cells.Cell(row["line"], row, labels, None))
    return shown if shown is not None else row["line"]


def ordered(points: dict[str, Any]) -> list[tuple[str, Any]]:
    """Results of the graph first, then what the steps took."""
    return sorted(points.items(), key=lambda item: item[0] == "seconds")[:MOST_METRICS]


def not_finite(points: list[tuple[float, float | None]]) -> list[tuple[float, str]]:
    """Marks of the steps whose value is NaN (null in the table) or infinite."""
    return [
        (step, f"step {step}: {'NaN' if value is None else words.number(value)}")
        for step, value in points
        if not sound(value)
    ]


def facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    """What is to be known of a run, and in which words."""
    took = "" if run["seconds"] is None else words.duration(run["seconds"] * 1e9)
    threads = run["threads"] or "all cores"
    whose = f"kernels: {run['kernels']}" if run["kernels"] else f"threads: {threads}"
    found = [
        ("graph", f"{run['graph']} of {run['file']}"),
        ("began", (run["began"] or "")[:19].replace("T", " ") + " UTC"),
        ("took", f"{took}, {words.amount(run['steps'] or 0, 'step')}".lstrip(", ")),
        ("policy", f"{run['device']}, {words.amount(run['streams'] or 0, 'stream')}, "
         f"alloc={run['alloc']}, fill={run['fill']}, sync={run['sync']}, {whose}"),
        ("seed", str(run["seed"])),
        ("statistics", f"{run['selection']}, every {run['every']} steps"
         if (run["every"] or 1) > 1 else str(run["selection"])),
        ("beyond them", run["also"] or ""),
        ("memory", f"{words.size(run['arena_bytes'] or 0)} of temporary tensors, "
         f"{words.size(run['param_bytes'] or 0)} of params and states"),
        ("timeline", run["trace"] or ""),
        ("opstep", f"{run['version']} on {run['host']}, process {run['pid']}"),
    ]  # fmt: skip
    return [(what, text) for what, text in found if text]
