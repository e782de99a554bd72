"""``summary``: where the time of recorded runs went."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import OK, amount, console, duration, emit_json, json_option, option, size
from opstep.cli.trace import timeout_option
from opstep.cli.trace.query import opened
from opstep.cli.verbs import verb
from opstep.cli.ws.shown import table

if TYPE_CHECKING:
    from opstep.trace.viewer.critical import Path as CriticalPath
    from opstep.trace.viewer.summary import RankTime, RunSummary

ON_PATH = 12  # ops of the path that are listed


@verb(
    "summary",
    examples=[
        ("opstep trace run.pftrace summary", "all runs in the file, all steps"),
        ("opstep trace run.pftrace summary --run 3f2a --step 0", "one step of one run"),
        ("opstep trace run.pftrace summary --top 30", "list more ops"),
        ("opstep trace run.pftrace summary --json", "as JSON, times in ns"),
    ],
)
@option("--run KEY", "Only this run: its key, or the start of it.")
@option("--step N", "Only this step, from 0.", click.IntRange(0))
@option("--top N", "How many of the longest ops to list.", click.IntRange(1), default=10)
@json_option
@timeout_option
def summary(
    file: str, run: str | None, step: int | None, top: int, as_json: bool, timeout: float
) -> int:
    """Summarise the time: streams, critical path, ops, memory.

    A stream is busy while its ops run, and waiting while it waits for another stream; gaps are the
    rest of the time between its ops in a step. The critical path is the chain of ops that the end
    of the step waited for, back to its start; with several steps, that of the step of median
    length. Ops off the path do not make the step longer.
    """
    from opstep.trace.viewer.summary import stragglers, summarize

    with opened(file, timeout) as engine:
        runs = summarize(engine, run, step, top)
        ranks = stragglers(engine, step) if run is None else []
        if as_json:
            told = {"path": file, "left_out": engine.left_out, "runs": [*map(record, runs)]}
            emit_json(told | ({"ranks": [*map(asdict, ranks)]} if ranks else {}))
            return OK
    out = console()
    for k, found in enumerate(runs):
        if k:
            out.print()
        show_run(out, found, file)
    if ranks:
        show_ranks(out, ranks)
    return OK


def record(run: RunSummary) -> dict[str, Any]:
    """A run's summary as JSON."""
    return {**asdict(run), "busy_ns": run.busy_ns, "overlap_ns": run.overlap_ns}


def show_run(out: Any, run: RunSummary, file: str) -> None:
    """A section each: streams, path, ops; memory and what to ask next."""
    from rich.text import Text

    single = "step" if run.step is None else f"step {run.step}"
    steps = amount(run.steps, "step") if run.step is None else single
    out.print(
        Text.assemble(
            ("run ", ""), (run.run, "bold"), f" of {run.graph or '?'} on {run.device or '?'}: ",
            f"{steps}, {time(run.window_ns)}",
            f", {time(run.window_ns / run.steps)} each" if run.steps > 1 else "",
        )
    )  # fmt: skip
    if run.error:
        out.print(Text.assemble(("failed: ", "bold red"), run.error.splitlines()[0]))
    if run.streams:
        show_streams(out, run)
        if run.critical:
            show_path(out, run, run.critical)
        show_ops(out, run)
    show_host_times(out, run)
    if run.memory:
        at = f" at {run.memory.op}{line(run.memory.file, run.memory.line, ' (', ')')}"
        out.print()
        out.print(
            Text.assemble(
                ("Memory ", "bold"), f"peak {size(run.memory.peak_bytes)} of temporary tensors",
                at if run.memory.op else "",
            )
        )  # fmt: skip
    show_next(out, run, file)


def show_streams(out: Any, run: RunSummary) -> None:
    numbers = ("ops", "busy", "waiting", "stats", "idle", "busy %", "gaps", "in gaps", "longest")
    rows = table("stream", *numbers, right=numbers)
    for s in run.streams:
        rows.add_row(
            s.stream.removeprefix("stream "), f"{s.ops:,}", time(s.busy_ns), time(s.waiting_ns),
            time(s.statistics_ns), time(s.idle_ns),
            f"{s.utilisation:.1%}", f"{s.gaps:,}", time(s.gaps_ns), time(s.longest_gap_ns),
        )  # fmt: skip
    heading(out, "Streams")
    out.print(rows)
    if run.busy_ns:
        busy = sum(s.busy_ns for s in run.streams)
        out.print(
            f"overlap: two streams or more busy for {time(run.overlap_ns)},"
            f" {run.overlap_ns / run.busy_ns:.1%} of the time that any was;"
            f" {busy / run.busy_ns:.2f} busy on average",
            style="dim",
        )


def show_ranks(out: Any, ranks: Sequence[RankTime]) -> None:
    """Who waited for whom."""
    numbers = ("rank", "together", "last", "held up others", "waited")
    rows = table(*numbers, "most at", right=numbers)
    for r in ranks:
        at = f"{r.op} {line(r.file, r.line)}".rstrip()
        rows.add_row(str(r.rank), f"{r.met:,}", f"{r.last:,}", time(r.held_up_ns),
                     time(r.waited_ns), at)  # fmt: skip
    heading(out, "Ranks, at what they do together")
    out.print(rows)


def show_path(out: Any, run: RunSummary, path: CriticalPath) -> None:
    """The longest of its ops: the path may have thousands."""
    between = path.length_ns - path.ops_ns
    heading(out, "Critical path")
    out.print(
        f"of step {path.step}: {time(path.length_ns)}, {amount(len(path.ops), 'op')} with"
        f" {time(path.ops_ns)}, {time(between)} before and between them"
    )
    rows = table(
        "op", "line", "stream", "time", "share", "before", "after",
        right=("time", "share", "before"),
    )  # fmt: skip
    longest = sorted(path.ops, key=lambda op: -op.dur_ns - op.before_ns)[:ON_PATH]
    shown = {id(op) for op in longest}
    for op in path.ops:
        if id(op) in shown:
            rows.add_row(
                op.op, line(op.file, op.line), op.stream.removeprefix("stream "),
                time(op.dur_ns), f"{op.dur_ns / max(path.length_ns, 1):.1%}", time(op.before_ns),
                op.after,
            )  # fmt: skip
    out.print(rows)
    if len(path.ops) > ON_PATH:
        out.print(f"… the {ON_PATH} longest of {len(path.ops):,}: --json has all", style="dim")


def show_ops(out: Any, run: RunSummary) -> None:
    numbers = ("count", "total", "mean", "share")
    rows = table("op", "line", *numbers, right=numbers)
    for op in run.ops:
        rows.add_row(
            op.op, line(op.file, op.line), f"{op.count:,}",
            time(op.total_ns), time(op.mean_ns), f"{op.share:.1%}",
        )  # fmt: skip
    heading(out, "Longest ops")
    out.print(rows)
    if run.distinct_ops > len(run.ops):
        out.print(f"… of {amount(run.distinct_ops, 'op')}: --top lists more", style="dim")


BESIDE = {
    "statistics": "statistics of tensors",
    "record": "handing over to the recorder",
    "disk": "waiting for the files",
    "between": "between the steps, and before the first",
    "plan": "planning",
    "bind": "binding plans to memory",
    "compile": "compiling kernels",
    "write": "writing the files, on the recorder's thread",
}


def show_host_times(out: Any, run: RunSummary) -> None:
    if not run.beside:
        return
    numbers = ("count", "total", "longest")
    rows = table("what", *numbers, right=numbers)
    for one in run.beside:
        rows.add_row(
            BESIDE[one.what], f"{one.count:,}", time(one.own_ns), time(one.longest_ns)
        )  # fmt: skip
    heading(out, "Beside the ops")
    out.print(rows)


def show_next(out: Any, run: RunSummary, file: str) -> None:
    """Where more is known of the run."""
    from rich.text import Text

    trace = f"opstep trace {shlex.quote(file)}"
    lines = [(trace, "the timeline")]
    if run.ops:
        site = shlex.quote(run.ops[0].site)
        lines = [(f"{trace} --at {site}", "the timeline, at the longest op")]
    if run.workspace:
        workspace = f"opstep ws {shlex.quote(run.workspace)}"
        id = f"(select id from runs where key = '{run.run}')"
        ask = (
            f"select name, site, total_ns from slowest_ops where run = {id} order by total_ns desc"
        )
        lines.append((f'{workspace} sql "{ask}"', "its ops in the workspace"))
    out.print()
    for command, what in lines:
        out.print(Text.assemble("  ", (command, "bold"), (f"  # {what}", "dim")), soft_wrap=True)


def heading(out: Any, text: str) -> None:
    out.print()
    out.print(text, style="bold")


def line(file: str, number: int, before: str = "", after: str = "") -> str:
    """``unet.opg:35``"""
    return f"{before}{Path(file).name}:{number}{after}" if file and number else ""


def time(ns: float) -> str:
    return duration(ns / 1e9) if ns else "0"
