"""Finds elements that an op never wrote, in a run whose memory is filled with the NaN payload.

Where a result shows the payload or any NaN, and the first time that an op which gives integers or
uses working memory runs, it runs again over memory that holds other bits: what differs then depends
on what nobody wrote. What ranks do together is not run again: the others would have to, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opstep.runtime.device.listening import Execution
from opstep.runtime.device.searching import Search
from opstep.runtime.plan.plan import Step


class Unwritten(NamedTuple):
    """`count` elements of `value` that `step` never wrote; `first` are the first few indices."""

    graph: str
    step: Step
    value: str
    count: int
    size: int
    first: list[tuple[int, ...]]


class UninitialisedCheck:
    """A listener for runs with ``fill=nan sync=op``; what it finds is in `found`."""

    MOST = 8  # indices kept

    def __init__(self):
        self.found: list[Unwritten] = []
        self._steps: dict[int, Step] = {}  # by id, that were looked at before
        self._search: Search | None = None  # behind the op under way

    def take(self) -> list[Unwritten]:
        """What was found since it was last taken."""
        found, self.found = self.found, []
        return found

    def before(self, execution: Execution) -> None:
        """Nothing to see before an op has run."""

    def knows(self, step: Step) -> bool:
        return id(step) in self._steps

    def issued(self, execution: Execution, search: Search | None) -> None:
        self._search = search

    def after(self, execution: Execution) -> None:
        search, self._search = self._search, None
        first = not self.knows(execution.step)
        self._steps[id(execution.step)] = execution.step
        if search is None or not self._suspect(execution, search, first):
            return
        kept = [a.copy() for a in execution.results()]
        execution.write_results([np.zeros_like(a) for a in kept])
        execution.clear_workspace()
        execution.repeat()
        again = execution.results()
        for k, (array, before) in enumerate(zip(again, kept, strict=True)):
            differs = np.asarray(_bits(array) != _bits(before))
            if differs.any():
                self._report(execution, k, differs)
        execution.write_results(kept)

    def _suspect(self, execution: Execution, search: Search, first: bool) -> bool:
        step = execution.step
        if search.found:
            return True
        if not first and not execution.binding.device.in_host_memory:
            return False  # to look for NaNs would be to copy each result, in each step
        results = execution.results()
        if any(a.dtype.kind not in "iub" and np.isnan(a).any() for a in results):
            return True
        return first and (step.workspace >= 0 or any(a.dtype.kind in "iub" for a in results))

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


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")
