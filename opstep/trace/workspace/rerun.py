"""Repeats a run from what a workspace holds of it, and compares what comes out.

Kept are the program's text, the inputs, the params and states that no seed draws, the seed and the
switches. The program's file and the files of its inputs are not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.runs import RecordedRun

if TYPE_CHECKING:
    import numpy as np

    from opstep.program import Program
    from opstep.trace.recording import Recording
    from opstep.trace.workspace.workspace import Workspace


@dataclass(frozen=True)
class Repeated:
    """How a run went the second time. `same` and `different`: what it left behind, beside what was
    kept. `error`: what it failed with, as the first time (`expected`) or not.
    """

    run: RecordedRun
    steps: int
    same: list[TensorRecord]
    different: list[TensorRecord]
    error: str | None
    expected: str | None

    @property
    def identical(self) -> bool:
        return not self.different and self.error == self.expected


def rerun(
    workspace: Workspace,
    run: RecordedRun,
    *,
    recording: Recording | None = None,
    on_step: Callable[[], Any] | None = None,
) -> Repeated:
    """Runs as many steps as the run had; one more where it failed in one.

    Raises `InputError` where the workspace does not hold all that is needed.
    """
    program = program_of(workspace, run)
    inputs = inputs_of(workspace, run, program)
    failed = run.status == "failed"
    steps = run.steps + failed
    if steps == 0:
        raise InputError(f"run {run.key} finished no step that could be repeated")
    results: Mapping[str, np.ndarray] = {}
    error = None
    try:
        results = program.run(
            run.graph, inputs, steps=steps, recording=recording, on_step=on_step, **run.switches
        )
    except InputError:
        raise
    except OpstepError as caught:
        error = str(caught)
    same, different = [], []
    for tensor in left_behind(run):
        now = program.params[tensor.name] if tensor.kind in ("param", "state") else None
        now = results.get(tensor.name) if now is None else now
        if now is not None:
            (same if workspace.is_same(tensor, now) else different).append(tensor)
    return Repeated(run, steps, same, different, error, run.error if failed else None)


def program_of(workspace: Workspace, run: RecordedRun) -> Program:
    """The program as it was before the run's first step, drawn params left to the seed."""
    import opstep

    if not run.program:
        raise InputError(f"run {run.key}: the program's text was not kept")
    program = opstep.loads(run.program, run.file or "<workspace>")
    program.reseed(run.seed)
    for tensor in run.tensors:
        if tensor.step == -1 and tensor.kind in ("param", "state"):
            program.params[tensor.name] = workspace.elements(tensor)
    return program


def inputs_of(workspace: Workspace, run: RecordedRun, program: Program) -> dict[str, np.ndarray]:
    kept = {t.name: t for t in run.tensors if t.kind == "input" and t.step == -1}
    wanted = [b.name.text for b in program.graph(run.graph).inputs]
    missing = [name for name in wanted if name not in kept]
    if missing:
        raise InputError(f"run {run.key}: its inputs were not kept: {', '.join(missing)}")
    return {name: workspace.elements(kept[name]) for name in wanted}


def left_behind(run: RecordedRun) -> list[TensorRecord]:
    """What was kept after its last step."""
    return [t for t in run.tensors if t.kind != "input" and t.step == run.steps - 1]
