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
from opstep.runtime.ir.wording import Argument, Blank, Wording
from opstep.trace.workspace.runs import EAGER, RecordedRun

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.trace.recording import Recording
    from opstep.trace.workspace.workspace import Workspace


_LISTED = 8  # steps that a message names
EVERY = Argument("keep_inputs", Blank("every=N", "n"))


@dataclass(frozen=True)
class Repeated:
    """The outcome of a run that was repeated.

    `steps`: those that were repeated; fewer than the run's where the later ones had inputs of their
    own. `same` and `different`: names of what came out of the last of them, beside what was kept.
    `error`: what it failed with; `expected`: what it failed with the first time. `cut`: what is
    said of a run that is not recorded to its end.
    """

    run: RecordedRun
    steps: int
    same: list[str]
    different: list[str]
    error: str | None
    expected: str | None
    cut: str | None = None

    @property
    def identical(self) -> bool:
        return not self.different and self.error == self.expected


def rerun(
    workspace: Workspace,
    run: RecordedRun,
    *,
    recording: Recording | None = None,
    on_step: Callable[[], Any] | None = None,
    step: int = 0,
    fallback: str | None = None,
) -> Repeated:
    """Runs the steps again whose inputs are kept; one more where the run failed in that. With a
    `step` it begins there, where what that needs was kept (`--keep-inputs`): of a run whose steps
    had inputs of their own, this step alone is repeated.

    Of a run with inputs of their own for later steps, or whose later steps are not recorded, the
    first ones are repeated, and only their scalar results can be compared. Raises `InputError`
    where the workspace does not hold all that is needed. `fallback`: as for `opstep.load`.
    """
    _check_begin(run, step)
    program = program_of(workspace, run, step, fallback)
    inputs = inputs_of(workspace, run, program, step)
    cut = run.cut
    alone = step > 0 and (run.repeatable < run.steps or step == run.steps)
    complete = (step + 1 == run.steps if alone else run.repeatable == run.steps) and not cut
    failed = not cut and (step == run.steps if alone else complete and _fails_again(run))
    steps = 1 if alone else run.repeatable - step + failed
    if run.steps + failed == 0:
        message = f"run {run.key} finished no step that could be repeated"
        raise InputError(message, hint=cut or "")
    results: Mapping[str, np.ndarray] = {}
    error = None
    switches = {**run.switches, "seed": None}  # the program has it, maybe past the setting's range
    try:
        results = program.run(
            run.graph, inputs, steps=steps, recording=recording, on_step=on_step, **switches
        )
    except InputError:
        raise
    except OpstepError as caught:
        error = str(caught)
    pairs = compare_final_state(workspace, run, program, results) if complete else {}
    pairs |= scalars(run, step + steps - 1, results)
    same = [name for name, is_same in pairs.items() if is_same]
    different = [name for name, is_same in pairs.items() if not is_same]
    return Repeated(run, steps, same, different, error, run.error if failed else None, cut)


def _kept(run: RecordedRun) -> list[int]:
    """Steps that had what was kept for them."""
    return [c.step + 1 for c in run.checkpoints if c.kind == "kept"]


def _fails_again(run: RecordedRun) -> bool:
    """Whether a run failed in a step after its last, on inputs as those of all before it."""
    return run.status == "failed" and run.repeatable == run.steps and run.steps not in _kept(run)


def _check_begin(run: RecordedRun, step: int) -> None:
    """Complains of a step that no repeat can begin with."""
    last = run.steps - (run.status != "failed")
    possible = [0, *(s for s in _kept(run) if s <= last)]
    if step not in possible:
        listed = ", ".join(map(str, possible[:_LISTED])) + (
            ", …" if len(possible) > _LISTED else ""
        )
        raise InputError(
            f"run {run.key} cannot be repeated from step {step} on: what that needs was not kept",
            hint=Wording(f"it can be from: {listed}; ", EVERY, " keeps more"),
        )


def steps_to(run: RecordedRun, step: int) -> tuple[int, int]:
    """The step to begin with to come to this one, and how many can be repeated from there: the
    first one, where its inputs lead there, or itself. Raises `InputError` where what that needs was
    not kept.
    """
    repeated = run.repeatable + _fails_again(run)
    if step == 0 or step < repeated:
        return 0, max(1, repeated)
    _check_begin(run, step)
    return step, 1


def program_of(
    workspace: Workspace, run: RecordedRun, step: int = 0, fallback: str | None = None
) -> Program:
    """The program as it was before that step of the run, drawn params left to the seed."""
    from opstep.api.program import loads

    if run.device == EAGER:
        hint = f"run the script again: {run.command}"
        raise InputError(f"run {run.key} is of a script that PyTorch ran", hint=hint)
    if not run.program:
        raise InputError(f"run {run.key}: the program's text was not kept")
    program = loads(run.program, run.file or "<workspace>", fallback=fallback)
    program.reseed(run.seed)
    for tensor in run.tensors:
        if tensor.step == step - 1 and tensor.kind in ("param", "state"):
            program.params[tensor.name] = workspace.elements(tensor)
    return program


def inputs_of(
    workspace: Workspace, run: RecordedRun, program: Program, step: int = 0
) -> dict[str, np.ndarray]:
    """Those of that step: of the first one, where it had no others."""
    saved: dict[str, Any] = {}
    for at in (-1, step - 1):
        saved |= {t.name: t for t in run.tensors if t.kind == "input" and t.step == at}
    names = [b.name.text for b in program.graph(run.graph).inputs]
    missing = [name for name in names if name not in saved]
    if missing:
        raise InputError(f"run {run.key}: its inputs were not kept: {', '.join(missing)}")
    return {name: workspace.elements(saved[name]) for name in names}


def compare_final_state(
    workspace: Workspace, run: RecordedRun, program: Program, results: Mapping[str, np.ndarray]
) -> dict[str, bool]:
    """Whether what was kept after the run's last step is the same again, by name."""
    pairs = {}
    for tensor in run.tensors:
        if tensor.kind == "input" or tensor.step != run.steps - 1:
            continue
        now = results.get(tensor.name)
        if tensor.kind in ("param", "state"):
            now = program.params[tensor.name]
        if now is not None:
            pairs[tensor.name] = workspace.is_same(tensor, now)
    return pairs


def scalars(run: RecordedRun, step: int, results: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Whether scalar results of this step are the same again, by name; NaN was kept as None."""
    recorded = {m.name: m.value for m in run.metrics if m.step == step}
    pairs = {}
    for name, array in results.items():
        if name in recorded and array.ndim == 0:
            value = float(array)
            pairs[name] = recorded[name] == (None if value != value else value)
    return pairs
