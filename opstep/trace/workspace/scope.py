"""Recorded runs as scopes of the debugger's expressions: ``diff(y, y@"last")``, ``loss@"last:3"``.

A run has the elements of tensors that were kept (inputs, outputs, params, states), and of all
others their figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.runtime.expressions.protocols import OfOneRank
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES, TensorType

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.statistics import Statistics
    from opstep.trace.workspace.records import StatRecord, TensorRecord
    from opstep.trace.workspace.runs import RecordedRun
    from opstep.trace.workspace.workspace import Workspace


def recorded_runs(path: str | Path) -> Callable[[str, int | None], RunScope | None]:
    """Finds the scope of a run by its key (or id, or ``last``) and a step, the last if None; None
    where there is no such run. Raises `InputError` where the file is not a workspace.
    """
    from opstep.trace.workspace.workspace import Workspace

    workspace = Workspace(path)

    def find(key: str, step: int | None) -> RunScope | None:
        try:
            return RunScope(workspace, workspace.run(key), step)
        except InputError:
            return None

    return find


class RunScope(OfOneRank):
    """The tensors of one step of a run."""

    def __init__(self, workspace: Workspace, run: RecordedRun, step: int | None):
        self.workspace = workspace
        self._run = run
        self.step = step

    @property
    def _last(self) -> int:
        return self._run.steps - 1 if self.step is None else self.step

    def lookup(self, name: str) -> RecordedTensor | None:
        tensors = [t for t in self._run.tensors if t.name == name and self._is_current(t)]
        figures = self._run.stats(value=_literally(name), step=self.step)
        if not tensors and not figures:
            return None
        return RecordedTensor(
            self.workspace, name, tensors[-1] if tensors else None, figures[-1] if figures else None
        )

    def names(self) -> list[str]:
        found = [t.name for t in self._run.tensors if self._is_current(t)]
        found += [name for op in self._run.ops for name in op.results]
        return list(dict.fromkeys(found))

    def relative(self, steps: int) -> RunScope | None:
        """The same run, so many steps away."""
        step = self._last + steps
        return RunScope(self.workspace, self._run, step) if step >= 0 else None

    def changed(self, changes: int) -> RunScope:
        raise InputError("a run in a workspace has no versions within a step", hint='w@"last:3"')

    def run(self, key: str, step: int | None) -> RunScope | None:
        return RunScope(self.workspace, self.workspace.run(key), step)

    def load(self, path: str) -> np.ndarray:
        raise InputError("a run in a workspace has no files")

    def _is_current(self, tensor: TensorRecord) -> bool:
        """Whether this is what the tensor was in the step: its output, or what it began with. An
        input may have been another one in each step.
        """
        if tensor.kind == "input" and self._last >= self._run.repeatable:
            return tensor.step == self._last - 1
        if self.step is None or tensor.step is None:
            return True
        return tensor.step == self.step if tensor.kind == "output" else tensor.step <= self.step


class RecordedTensor:
    """A tensor of a workspace: its elements, its figures, or both."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        tensor: TensorRecord | None,
        figures: StatRecord | None,
    ):
        self.name = name
        self._workspace = workspace
        self._tensor = tensor
        self._figures = figures

    @property
    def type(self) -> TensorType:
        if self._tensor is None:
            raise InputError(self._only_figures())
        return TensorType(DTYPES[self._tensor.dtype], self._tensor.shape)

    def array(self) -> np.ndarray:
        """All elements. Raises `InputError` where the run has kept figures alone."""
        if self._tensor is None:
            raise InputError(self._only_figures())
        return self._workspace.elements(self._tensor)

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        found: Any = self.array()[index]
        return found

    def statistics(self) -> Statistics:
        """As they were recorded; else those of the elements."""
        if self._figures is not None:
            return self._figures.statistics
        raise InputError(f"the run recorded no figures of {self.name}")

    def _only_figures(self) -> str:
        return f"the run kept figures of {self.name}, not its elements"


def _literally(name: str) -> str:
    """A name where ``*``, ``?`` and ``[…]`` stand for others."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
