"""Listeners: called before and after each op of a run, with what they may read and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from opstep.runtime.ir.types import TensorType, u8
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding


class Execution(NamedTuple):
    """One op that is about to run, or has just run. `number`: of the step in its plan.

    Values are read through `binding`; on a device with streams they mean something only when the op
    is done (`sync=op`).
    """

    binding: Binding
    step: Step
    stream: int
    number: int

    def operands(self) -> list[np.ndarray | None]:
        """Its operands as stored; on the CPU views of memory, not copies. None: absent."""
        return [None if v is None else self.binding.array(v) for v in self.step.operands]

    def results(self) -> list[np.ndarray]:
        return [self.binding.array(v) for v in self.step.results]

    def write_results(self, arrays: Sequence[np.ndarray]) -> None:
        """Sets its results to arrays of their types."""
        binding = self.binding
        for value, array in zip(self.step.results, arrays, strict=True):
            binding.device.write(*binding.address_of(value), binding.plan.values[value].type, array)

    def clear_workspace(self) -> None:
        """Sets its working memory, which `fill=nan` filled with NaNs of any float, to 0."""
        binding, buffer = self.binding, self.step.workspace
        if buffer >= 0:
            nbytes = binding.plan.buffers[buffer].nbytes
            binding.device.write(*binding.places[buffer], TensorType(u8, (nbytes,)), 0)

    def repeat(self) -> None:
        """Runs the op's kernels once more, at once; as ops are pure, the results are the same."""
        bound = self.binding.launch(self.step)
        if bound:
            self.binding.device.run_now(bound)


class Listener(Protocol):
    """Called around every op; see `Execution`."""

    def before(self, execution: Execution) -> None: ...
    def after(self, execution: Execution) -> None: ...
