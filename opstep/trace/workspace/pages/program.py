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

OPS = """
select * from (
  select op, name, site, file, line, executions, total_ns, sum(total_ns) over () as whole_ns
  from ops where run = :run
) where file = :file or op < 0 order by op
"""
LAST_STEP = "select max(step) as step from stats where run = :run"
STATS = """
select s.op, r.name, r.dtype, r.shape, s.count, s.mean, s.std, s.absmax, s.nan,
  s.posinf + s.neginf as inf, s.histogram, s.lowest, s.step
from ops o
join stats s on s.run = o.run and s.op = o.op and s.step in (:step, -1)
join results r on r.run = s.run and r.op = s.op and r.result = s.result
where o.run = :run order by s.step, s.execution, s.result
"""
FINDINGS = "select line, file, kind, message, step from findings where run = :run limit 200"

DECLARED = re.compile(r"\s*(?:param|state)\s+([\w.]+)\s*:")
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
        "words": words,
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
    ops = by(await ask(datasette, OPS, {**given, "file": run["file"]}), "line")
    named = by(ops.pop(None, []), "site")  # inputs, params and states: in no line of a graph
    stats = by(await ask(datasette, STATS, {**given, "step": step}), "op")
    updates = {op["op"] for rows in ops.values() for op in rows if op["name"] == "update"}
    updated = by([row for op in updates for row in stats.get(op, [])], "name")
    wrong = by(await ask(datasette, FINDINGS, given), "line")
    shown = []
    for number, text in enumerate((run["program"] or "").split("\n"), 1):
        here_ops = ops.get(number, [])
        if declared := DECLARED.match(text):
            here_ops = [
                *named.get(f"param/{declared[1]}", []),
                *named.get(f"state/{declared[1]}", []),
            ]
        gave = [row for op in here_ops for row in stats.get(op["op"], [])]
        if declared:  # as it is behind the step that is shown, where an op updates it
            gave = updated.get(declared[1], gave)
        found = [f for f in wrong.get(number, []) if f["file"] in (None, "", run["file"])]
        shown.append(
            LineShown(
                number,
                coloured(text),
                number == here,
                op_links(run["id"], here_ops),
                time_of(here_ops),
                figures(gave),
                [f"step {f['step']}: {f['message']}" for f in found],
            )
        )
    return shown


def by(rows: list[Row], column: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


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


def time_of(ops: list[Row]) -> Markup:
    """The time of a line's ops in all steps, and its share of the run's."""
    timed = [op for op in ops if op["total_ns"] is not None]
    if not timed:
        return Markup("")
    total = sum(op["total_ns"] for op in timed)
    executions = words.amount(sum(op["executions"] for op in timed), "execution")
    text = cells.figure(words.duration(total), f"{executions}, {total} ns", "took")
    return Markup("{} {}").format(text, cells.share_bar(total / (timed[0]["whole_ns"] or 1)))


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
    if bad:
        most += Markup(' <span class="figure bad">{} NaN or inf</span>').format(f"{bad:,}")
    shape = Markup("<code>{}{}</code>").format(last["dtype"], last["shape"])
    if last["step"] < 0:
        shape += Markup(' <span class="quiet">before the first step</span>')
    parts = [bars(bins, 90, 18), spread, most, shape]
    return Markup("</td><td>").join(parts)
