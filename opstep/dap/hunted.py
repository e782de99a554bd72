"""Runs that begin with a hunt: behind the op where a NaN or an infinity was born."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.debugging import Debugger, debugged
from opstep.hunting.debugging import FindingDebugger, chosen
from opstep.hunting.records import record
from opstep.hunting.search import hunt
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.api.settings import RunSettings
    from opstep.dap.session import Session
    from opstep.hunting.report import Hunt
    from opstep.trace.workspace.runs import RecordedRun

Loaded = tuple["Program", str, "dict[str, np.ndarray]"]


def hunting_debugger(
    session: Session, loaded: Loaded, settings: RunSettings, place: tuple[str, int],
    options: dict[str, Any],
) -> Debugger:  # fmt: skip
    """Hunts at full speed; then a debugger whose first stop is behind the op of what was found: of
    a value at a line (`place`), where that is among it. Before the first op where nothing was.
    """
    program, graph, inputs = loaded
    with session.progress("Running until a NaN or an infinity", cancellable=True, after=0.0) as bar:
        found = go(session, loaded, settings, bar.update)
    finding = chosen(found, *place)
    if finding is None:
        session.output(f"{found.report()}; the run stands at its begin", "important")
        options |= {"stop_on_entry": True}
        return Debugger(program, graph, inputs, **options, **debugged(settings))
    rest = replace(settings, steps=settings.steps - (found.step or 0))
    return FindingDebugger(finding, program, graph, found.inputs, **options, **debugged(rest))


def go(session: Session, loaded: Loaded, settings: RunSettings, update: Any) -> Hunt:
    """The hunt, until the client has enough of it."""
    program, graph, inputs = loaded
    done = 0

    def step_done() -> None:
        nonlocal done
        done += 1
        session.check_cancelled()
        update(f"step {done:,} of {settings.steps:,}", 100 * done / settings.steps)

    update(f"step 1 of {settings.steps:,}")
    return hunt(program, graph, inputs, on_step=step_done, **vars(settings))


def report_findings(session: Session, loaded: Loaded, settings: RunSettings) -> None:
    """Of a run at full speed that ended with a NaN or an infinity: where it was born."""
    found = go(session, loaded, settings, lambda *_: None)
    if found.found:
        session.output(found.report(), data={"findings": record(found)})


def recorded(
    workspace: Path, key: str, sought: tuple[str, int] | None = None
) -> tuple[Loaded, int]:
    """The inputs and params of a recorded run, and how many steps of it can be repeated; to come to
    the finding of a value at a line (`sought`), those of the finding's step, where the first step's
    do not lead there. Raises `InputError` where the workspace does not hold all of
    it.
    """
    from opstep.trace.workspace.browsing.json_fields import program_path
    from opstep.trace.workspace.rerun import inputs_of, program_of, steps_to
    from opstep.trace.workspace.workspace import Workspace

    if not workspace.is_file():
        raise InputError(f"there is no workspace {workspace}")
    with Workspace(workspace) as ws:
        run = ws.run(key)
        file = program_path(workspace, run.file)
        if file is None or not _holds(file, run.program):  # its lines are others now
            file = f"{Path(run.file).name}, run {run.key}"
        step, steps = steps_to(run, _step_of(run, *sought) if sought else 0)
        program = program_of(ws, replace(run, file=file), step)
        return (program, run.graph, inputs_of(ws, run, program, step)), steps


def _step_of(run: RecordedRun, value: str, line: int) -> int:
    """The step of a finding, of the first one where there is none such; before all, the first."""
    steps = [f for f in run.findings if f.op is not None or f.kind == "origin"]
    meant = [f for f in steps if f.value == value and line in (0, f.line)]
    return max(0, (meant or steps)[0].step) if steps else 0


def _holds(file: str, text: str) -> bool:
    """Whether a file still has the text that was run."""
    try:
        return Path(file).is_file() and Path(file).read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False
