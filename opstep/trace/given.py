"""Inputs and params of the steps of a run: whether a repeat of the first leads to them, and what is
kept for those that it does not lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import RunInfo, StreamRecord
from opstep.runtime.statistics import NAN, NEGINF
from opstep.trace.sink import Checkpoint, Run

if TYPE_CHECKING:
    import numpy as np


class Given:
    """Of one run. `repeatable`: the first call's inputs and tensors give all steps so far."""

    def __init__(self, run: Run):
        self.run = run
        self.repeatable = True
        self._inputs: Mapping[str, np.ndarray] = {}  # of the call under way
        self._sets = 0  # how often others had set a tensor when it began
        self._bad: dict[tuple[int, int], np.ndarray] = {}  # by plan and stream: seen so far
        self._newly_bad = False  # a value is, in the step under way
        self._kept = 0  # the latest step for which all is kept

    def begin_call(self, info: RunInfo, steps: int) -> None:
        """After so many steps."""
        params = info.program.params
        if steps and (params.shared or params.given != self._sets):
            self.repeatable = False
        self._sets = params.given
        self.set_inputs(info.inputs)

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = inputs
        self.repeatable = self.repeatable and _equal(inputs, self.run.info.inputs)

    def checkpoint(self, step: int) -> Checkpoint:
        """All that a repeat from the step under way on needs, as it is now."""
        self._kept = step
        inputs = {} if self.repeatable else {n: a.copy() for n, a in self._inputs.items()}
        params = self.run.info.program.params
        return Checkpoint(step, inputs, {n: params[n] for n in params.known()})

    def note(self, record: StreamRecord, step: int) -> None:
        """Whether a value has NaNs or infinities for the first time, in the step under way."""
        if record.stats is None:
            return
        bad = record.stats[:, NAN : NEGINF + 1] > 0
        place = id(record.activation.plan), record.stream
        before = self._bad.get(place)
        self._bad[place] = bad if before is None else before | bad
        if record.activation.step == step and (bad if before is None else bad & ~before).any():
            self._newly_bad = True  # not of a step whose record comes late

    def missing(self, step: int, failed: bool, plans: Sequence[Plan]) -> bool:
        """Whether the step went bad, or failed, and a repeat needs what is not kept; but not where
        the step has changed that.
        """
        newly, self._newly_bad = self._newly_bad or failed, False
        lost = self.repeatable or self._kept >= step or any(map(_updates, plans))
        return newly and not lost


def _updates(plan: Plan) -> bool:
    """Whether it gives named tensors other values."""
    return any(plan.buffers[b].kind == "param" for step in plan.steps for b in step.writes)


def _equal(some: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    """Whether these inputs are the same to the bit."""
    return some.keys() == others.keys() and all(
        a.dtype == others[n].dtype
        and a.shape == others[n].shape
        and a.reshape(-1).view("u1").data == others[n].reshape(-1).view("u1").data
        for n, a in some.items()
    )
