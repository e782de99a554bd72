"""The page of a run's program: its text, and beside each line what its ops did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from opstep.trace.workspace.pages import cells, words
from opstep.trace.workspace.pages.data import Row, ask, run_row
from opstep.trace.workspace.pages.histograms import Bins, bars

if TYPE_CHECKING:
    from datasette.app import Datasette

OPS = "select op, name, site, line, file, stream from ops where run = :run order by op"
TIMES = """
select op, count(*) as executions, sum(end_ns - start_ns) as total_ns from executions
where run = :run and start_ns is not null group by op
"""
LAST_STEP = """
select max(last) as step from (
  select (select max(step) from stats s where s.run = o.run and s.op = o.op) as last
  from ops o where o.run = :run
)
"""
STATS = """
select s.op, r.name, r.dtype, r.shape, s.count, s.mean, s.std, s.absmax, s.nan,
  s.posinf + s.neginf as inf, s.histogram, s.lowest, s.step
from ops o
join stats s on s.run = o.run and s.op = o.op and s.step in (:step, -1)
join results r on r.run = s.run and r.op = s.op and r.result = s.result
where o.run = :run order by s.step, s.execution, s.result
"""
FINDINGS = "select line, file, kind, message, step from findings where run = :run limit 200"

TOKEN = re.compile(
    r'(?P<comment>#.*)|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<word>\b(?:param|state|graph|return|assert|at)\b)"
    r"|(?P<type>\b(?:f64|f32|f16|bf16|i64|i32|i16|i8|u8|bool)\b)"
    r"|(?P<op>\b[A-Za-z_]\w*(?=\())"
    r"|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?\b)"
)


class LineShown(NamedTuple):
    number: int
    text: Markup
    here: bool
    ops: Markup
    time: Markup
    figures: Markup
    findings: list[str]


async def page(request: Any, datasette: Datasette) -> Any:
    from datasette.utils.asgi import Response

    run = await run_row(datasette, request.url_vars["run"])
    given = {"run": run["id"]}
    last = (await ask(datasette, LAST_STEP, given) or [{"step": None}])[0]["step"]
    step = whole(request.args.get("step"), last)
    lines = await shown_lines(datasette, run, step, whole(request.args.get("line"), None))
    label = cells.RunLabel(run["key"], run["status"], run["file"], run["began_ns"])
    context = {
        "run": run,
        "label": cells.run_link(run["id"], label),
        "lines": lines,
        "step": step,
        "last": last,
    }
    return Response.html(await datasette.render_template("program.html", context, request=request))


def whole(text: str | None, otherwise: int | None) -> int | None:
    """A number from an address, or what stands for it where it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else otherwise


async def shown_lines(
    datasette: Datasette, run: Row, step: int | None, here: int | None
) -> list[LineShown]:
    """Every line of the program with what is known of it."""
    given = {"run": run["id"]}
    ops = [o for o in await ask(datasette, OPS, given) if o["file"] == run["file"]]
    times = {row["op"]: row for row in await ask(datasette, TIMES, given)}
    stats: dict[int, list[Row]] = {}
    for row in await ask(datasette, STATS, {**given, "step": step}):
        stats.setdefault(row["op"], []).append(row)
    whole_time = sum(row["total_ns"] or 0 for row in times.values())
    of_line: dict[int, list[Row]] = {}
    for op in ops:
        of_line.setdefault(op["line"], []).append(op)
    wrong: dict[int, list[str]] = {}
    for row in await ask(datasette, FINDINGS, given):
        if row["file"] in (None, "", run["file"]) and row["line"]:
            wrong.setdefault(row["line"], []).append(f"step {row['step']}: {row['message']}")
    return [
        LineShown(
            number,
            coloured(text),
            number == here,
            op_links(run["id"], of_line.get(number, [])),
            time_of([times[o["op"]] for o in of_line.get(number, []) if o["op"] in times],
                    whole_time),
            figures([s for o in of_line.get(number, []) for s in stats.get(o["op"], [])]),
            wrong.get(number, []),
        )
        for number, text in enumerate((run["program"] or "").split("\n"), 1)
    ]  # fmt: skip


def coloured(text: str) -> Markup:
    """A line of a program with its comments, keywords, types and ops in their colours."""
    parts, end = [], 0
    for found in TOKEN.finditer(text):
        parts.append(Markup("{}").format(text[end : found.start()]))
        parts.append(Markup('<i class="{}">{}</i>').format(found.lastgroup, found[0]))
        end = found.end()
    return Markup("").join([*parts, Markup("{}").format(text[end:])])


def op_links(run: int, ops: list[Row], most: int = 3) -> Markup:
    """The ops of a line: several where a graph is called more than once."""
    links = [
        Markup('<a href="/-/op/{}/{}" title="{}">{}</a>').format(run, o["op"], o["site"], o["name"])
        for o in ops[:most]
    ]
    more = [Markup("+{}").format(len(ops) - most)] if len(ops) > most else []
    return Markup(" ").join(links + more)


def time_of(times: list[Row], whole_time: int) -> Markup:
    total = sum(row["total_ns"] or 0 for row in times)
    if not times:
        return Markup("")
    executions = words.amount(sum(row["executions"] for row in times), "execution")
    text = cells.figure(words.duration(total), f"{executions}, {total} ns")
    return Markup("{} {}").format(text, cells.share_bar(total / whole_time if whole_time else 0.0))


def figures(stats: list[Row]) -> Markup:
    """What a line's tensors looked like: of several executions the last."""
    if not stats:
        return Markup("")
    last = stats[-1]
    bad = sum(s["nan"] + s["inf"] for s in stats if s["step"] == last["step"])
    spread = Markup("{} ± {}").format(words.number(last["mean"]), words.number(last["std"]))
    most = Markup('<span title="greatest magnitude">≤ {}</span>').format(
        words.number(last["absmax"])
    )
    bins = cells.read_bins(last["histogram"], last["lowest"]) or Bins([], 0)
    mark = Markup(' <span class="figure bad">{} NaN or inf</span>').format(f"{bad:,}")
    shape = Markup("<code>{}{}</code>").format(last["dtype"], last["shape"])
    parts = [bars(bins, 90, 18), spread, most, shape]
    return Markup("</td><td>").join(parts) + (mark if bad else Markup(""))
