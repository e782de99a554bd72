"""Finds elements that an op never wrote, in a run whose memory is filled with the NaN payload.

An element that still holds the payload after its op is only a suspect: an integer may well be the
largest one. So the op runs again over memory filled with other bits; what shows the fill both times
was not written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opstep.runtime.device.binding import Execution
from opstep.runtime.device.payload import payload
from opstep.runtime.plan.plan import Step


class Unwritten(NamedTuple):
    """`count` elements of `value` that `step` never wrote; `first` are the first few indices."""

    graph: str
    step: Step
    value: str
    count: int
    size: int
    first: list[tuple[int, ...]]


class WrittenCheck:
    """A listener for runs with ``fill=nan sync=op``; what it finds is in `found`."""

    MOST = 8  # indices kept

    def __init__(self):
        self.found: list[Unwritten] = []

    def before(self, execution: Execution) -> None:
        """Nothing to see before an op has run."""

    def after(self, execution: Execution) -> None:
        step = execution.step
        if step.op.host or not step.launches or not _was_filled(execution):
            return
        if not execution.may_be_unwritten():
            return
        arrays = execution.results()
        suspects = [_bits(a) == payload(_dtype(execution, k)) for k, a in enumerate(arrays)]
        kept = [a.copy() for a in arrays]
        other = [a.copy() for a in arrays]
        for array, suspect in zip(other, suspects, strict=True):
            _bits(array)[suspect] = 0
        execution.write_results(other)
        execution.repeat()
        again = execution.results()
        for k, (array, suspect) in enumerate(zip(again, suspects, strict=True)):
            unwritten = suspect & (_bits(array) == 0)
            if unwritten.any():
                self._report(execution, k, unwritten)
        execution.write_results(kept)

    def _report(self, execution: Execution, k: int, unwritten: np.ndarray) -> None:
        plan, step = execution.binding.plan, execution.step
        places = np.argwhere(unwritten)
        self.found.append(
            Unwritten(
                plan.frames[step.frame].graph.name.text,
                step,
                plan.values[step.results[k]].name,
                len(places),
                unwritten.size,
                [tuple(map(int, p)) for p in places[: self.MOST]],
            )
        )


def _was_filled(execution: Execution) -> bool:
    """Whether the op's results were filled before it ran.

    A result that takes over its operand's memory was not, and to run its op again would be to run
    it on its own result; nor was a named tensor.
    """
    plan, step = execution.binding.plan, execution.step
    read = {plan.values[v].buffer for v in step.operands if v is not None}
    written = [plan.values[v].buffer for v in step.results]
    return all(plan.buffers[b].kind == "temp" and b not in read for b in written)


def _dtype(execution: Execution, k: int):
    return execution.binding.plan.values[execution.step.results[k]].type.dtype


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")
