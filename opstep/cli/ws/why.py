"""``why``: which tensors left their usual range first."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import FOUND, OK, amount, console, emit_json, json_option, option, say
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.departures import Reasons
    from opstep.trace.workspace.runs import RecordedRun


@verb(
    "why",
    examples=[
        ("opstep ws runs.db why last", "why the last run diverged"),
        ("opstep ws runs.db why 3f2a --top 50", "more tensors of one run"),
    ],
    codes={OK: "nothing left its usual range", FOUND: "something did"},
)
@click.argument("run", metavar="RUN", default="last")
@option("--top N", "Rows shown.", click.IntRange(1), default=20)
@json_option
def why(file: str, run: str, top: int, as_json: bool) -> int:
    """Report the tensors that left their usual range first.

    What is usual is told by the early steps of the run; figures may grow as the number of steps
    does. A tensor that grows faster, and does not come back, or gets NaNs or infinities, is listed
    with the step since when. The run has to be recorded with statistics (opstep run, hunt); of
    other runs, such as those of opstep train, metrics are looked at.
    """
    with shown.workspace(file) as ws:
        recorded = ws.run(run)
        found = ws.why(recorded)
    if as_json:
        emit_json({"run": recorded.key} | record(found))
    else:
        show(recorded, found, top)
    return FOUND if found.departures else OK


def record(found: Reasons) -> dict[str, Any]:
    """As JSON."""
    listed = [asdict(d) for d in found.departures]
    return found._asdict() | {"departures": listed}


def show(run: RecordedRun, found: Reasons, top: int) -> None:
    from rich.text import Text

    looked = f"{amount(found.steps, 'step')}, {found.figures:,} tensors and metrics"
    if not found.departures:
        say(f"run {run.key}: {looked}: nothing left its usual range")
        return
    out = console()
    out.print(f"run {run.key}: {looked}; usual is what they were in the first {found.early} steps")
    heading = ("step", "tensor", "figure", "usual", "then", "last", "op", "where")
    rows = shown.table(*heading, right=("step", "then", "last"))
    for one in found.departures[:top]:
        usual = "" if math.isnan(one.low) else f"{one.low:.3g} … {one.high:.3g}"
        where = f"{Path(one.file).name}:{one.line}" if one.file and one.line else one.site
        rows.add_row(
            f"{one.step:,}", Text(one.tensor, "bold"), one.figure, usual, f"{one.value:.3g}",
            f"{one.last:.3g}", one.op, Text(where),
        )  # fmt: skip
    out.print(rows)
    if len(found.departures) > top:
        say(f"{len(found.departures) - top:,} more: --top shows them")
