"""What ``opstep train`` tells of a run that a hunt or a condition ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.cli.common import FOUND, OK, emit_json, grouped, in_switches, option, say_report
from opstep.cli.hunt_ranks import found_by_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opstep.distributed.gloo import GlooTransport
    from opstep.hunting.stepwise import Diverged
    from opstep.training.loop import Trainer
    from opstep.training.recorded import RunRecord
    from opstep.training.watching import Tripped


# What ends a run that goes wrong.
stop_options = grouped(
    option(
        "--hunt",
        "End at the first NaN or infinity that comes out of a step, and report where it was born: "
        "in the forward, the backward or the update, and from which rows of the batch.",
    ),
    option(
        "--watch CONDITION…",
        'End after the first step for which an expression holds, such as "absmax(d_*) > 1e3", and '
        "show how its figures came there. A name with * or ? stands for all values of the step "
        "that it matches. Can be given several times.",
    ),
)


def show_diverged(
    error: Diverged | Tripped, trainer: Trainer, told: dict[str, Any], as_json: bool,
    transport: GlooTransport | None,
) -> int:  # fmt: skip
    """The report on standard output, and among the findings of the run in a workspace; of several
    ranks, which all call this, rank 0 writes what all have. `told`: the run as JSON. The exit code.
    """
    from opstep.hunting.records import record
    from opstep.hunting.report import report
    from opstep.hunting.stepwise import Diverged

    _add_findings(error, trainer)
    if transport is not None:
        text, more, others = _of_all(error, transport)
        if transport.rank:
            return OK
        _add_messages(trainer, error, others)
    elif isinstance(error, Diverged):
        more, text = {"hunt": record(error.hunt)}, report(error.hunt, in_switches)
    else:
        more, text = {"watch": error.record()}, error.report()
    if as_json:
        emit_json(told | more)
        return FOUND
    say_report(text)
    return FOUND


Message = tuple[str, str, str]  # kind, value, text


def _of_all(
    error: Diverged | Tripped, transport: GlooTransport
) -> tuple[str, dict[str, Any], list[Message]]:
    """What all ranks have: in words, as JSON can hold it, and what only others have."""
    from opstep.distributed.agreement import told
    from opstep.hunting.stepwise import Diverged
    from opstep.runtime.debugger.ranks.comparing import listed

    if isinstance(error, Diverged):
        every = found_by_all(error.hunt, transport)
        others = [
            (f["kind"], f["value"], f"rank {one.rank}: {f['message']}")
            for one in every
            for f in (one.record["findings"] if one.born and one.rank else ())
        ]
        ranks = [{"rank": one.rank} | one.record for one in every]
        text = "\n".join(line for one in every for line in one.lines)
        return text, {"hunt": {"ranks": ranks}}, others
    alike: dict[str, list[int]] = {}
    found = told(transport.world, [error.report() if error.trips else "", error.record()])
    for rank, (report, _) in enumerate(found):
        alike.setdefault(report, []).append(rank)
    alike.pop("", None)
    conditions = [
        {"ranks": ranks} | condition
        for ranks in alike.values()
        for condition in found[ranks[0]][1]["conditions"]
    ]
    on_all = [*alike.values()] == [[*range(len(found))]]
    texts = [report if on_all else f"{listed(r)}: {report}" for report, r in alike.items()]
    others = [
        ("condition", c["target"], f"{listed(c['ranks'])}: {c['condition']} holds")
        for c in conditions
        if 0 not in c["ranks"]
    ]
    more = {"watch": {"step": error.step, "conditions": conditions}}
    return "\n".join(texts), more, others


def _add_messages(trainer: Trainer, error: Diverged | Tripped, messages: Sequence[Message]) -> None:
    from opstep.hunting.stepwise import Diverged
    from opstep.trace.workspace.hunted import add_message

    step = (error.hunt.step if isinstance(error, Diverged) else error.step) or 0
    for run in _recorded(trainer):
        for message in messages:
            add_message(run.path, run.key, step, *message)


def _add_findings(error: Diverged | Tripped, trainer: Trainer) -> None:
    from opstep.hunting.stepwise import Diverged
    from opstep.trace.workspace.hunted import add_findings, add_message

    for one in _recorded(trainer):
        if isinstance(error, Diverged):
            add_findings(one.path, one.key, error.hunt, trainer.program)
        else:
            for trip in error.trips:
                message = f"{trip.condition} holds: {trip.figures}"
                add_message(one.path, one.key, error.step, "condition", trip.target, message)


def _recorded(trainer: Trainer) -> list[RunRecord]:
    """What records the run, where that went well."""
    from opstep.training.recorded import RunRecord

    records = (one for one in trainer.observers if isinstance(one, RunRecord))
    return [one for one in records if one.report is not None and not one.report.problem]
