"""``opstep train --trace``: the ops of its steps in a timeline, of all ranks in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.cli.common import grouped, option

if TYPE_CHECKING:
    from opstep.training.loop import Trainer
    from opstep.training.timeline import Timeline


# The timeline of a run, and of which steps.
timeline_options = grouped(
    option(
        "--trace FILE.pftrace",
        "Write a timeline: when each op of a step ran, on which stream (Perfetto).",
    ),
    option(
        "--trace-steps LO:HI",
        "Only these steps in the timeline, from LO to HI - 1, counted from the first of this run. "
        "Behind them training goes on at full speed.",
    ),
)


def check_timeline(options: dict[str, Any]) -> None:
    """Raises `InputError` for what does not go with a timeline."""
    from opstep.cli.recording import window
    from opstep.runtime.ir.errors import InputError

    window(options)
    if options["trace"] and options["hunt"]:
        raise InputError(
            "--trace and --hunt do not go together: a hunt runs a bad step again, op by op",
            hint="choose one",
        )


def add_timeline(trainer: Trainer, options: dict[str, Any]) -> Timeline | None:
    """The timeline that was asked for, among the observers."""
    from opstep.cli.recording import window

    if options["trace"] is None:
        return None
    from opstep.training.timeline import Timeline

    timeline = Timeline(options["trace"], window(options))
    trainer.observers.append(timeline)
    return timeline


def join_timelines(timeline: Timeline | None, trainer: Trainer, options: dict[str, Any]) -> None:
    """Makes one of those of all ranks, which all call this."""
    if timeline is not None and (timelines := options.get("timelines")):
        path = timeline.recording.files["trace"]
        timelines.join(path, timeline.reports, trainer.program.mesh)


def show_timeline(timeline: Timeline | None) -> bool:
    """Says what was written; whether it is incomplete."""
    from opstep.cli.recording import show_recording

    if timeline is None:
        return False
    show_recording(timeline.recording)
    return any(report.problem for report in timeline.reports)
