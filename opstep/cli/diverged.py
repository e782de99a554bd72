"""What ``opstep train`` tells of a run that a hunt or a condition ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import emit_json
from opstep.cli.wording import in_switches

if TYPE_CHECKING:
    from collections.abc import Callable

    from opstep.hunting.stepwise import Diverged
    from opstep.training.loop import Trainer
    from opstep.training.watching import Tripped


def stop_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ends a run that goes wrong."""
    hunt = click.option(
        "--hunt",
        is_flag=True,
        help="End at the first NaN or infinity that comes out of a step, and report where it was "
        "born: in the forward, the backward or the update, and from which rows of the batch.",
    )
    watch = click.option(
        "--watch",
        multiple=True,
        metavar="CONDITION",
        help='End after the first step for which an expression holds, such as "absmax(d_*) > 1e3", '
        "and show how its figures came there. A name with * or ? stands for all values of the "
        "step that it matches. Can be given several times.",
    )
    return hunt(watch(function))


def show_diverged(
    error: Diverged | Tripped, trainer: Trainer, told: dict[str, Any], as_json: bool
) -> None:
    """The report on standard output, and among the findings of the run in a workspace. `told`: the
    run as JSON.
    """
    from opstep.hunting.records import record
    from opstep.hunting.report import report
    from opstep.hunting.stepwise import Diverged
    from opstep.runtime.ir.diagnostics import visible

    _add_findings(error, trainer)
    if isinstance(error, Diverged):
        more, text = {"hunt": record(error.hunt)}, report(error.hunt, in_switches)
    else:
        more, text = {"watch": error.record()}, error.report()
    if as_json:
        emit_json(told | more)
        return
    for line in text.split("\n"):
        click.echo(visible(line))


def _add_findings(error: Diverged | Tripped, trainer: Trainer) -> None:
    from opstep.hunting.stepwise import Diverged
    from opstep.trace.workspace.hunted import add_findings, add_message
    from opstep.training.recorded import RunRecord

    for one in trainer.observers:
        if not isinstance(one, RunRecord) or one.report is None or one.report.problem:
            continue
        if isinstance(error, Diverged):
            add_findings(one.path, one.key, error.hunt)
        else:
            for trip in error.trips:
                message = f"{trip.condition} holds: {trip.figures}"
                add_message(one.path, one.key, error.step, "condition", trip.target, message)
