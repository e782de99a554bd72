"""Updates of named tensors that may run beside each other, in a stretch that is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.runtime.plan.plan import Plan


class Updates:
    """Marks launches (`beside`) of the last `count` steps of a plan which touch nothing that those
    before them write, back to the last without a mark, and write nothing that these touch.
    """

    def __init__(self, plan: Plan, count: int):
        self._plan = plan
        self._first = len(plan.steps) - count
        self.found = False  # whether any launch has a mark
        self._touched: dict[int, tuple[set[int], set[int]]] = {}  # by stream: read, written

    def mark(self, number: int, stream: int, bound: Sequence[Any]) -> None:
        """`bound`: the launches of a step. Steps come in the order of issue."""
        if number < self._first:
            return
        step, values = self._plan.steps[number], self._plan.values
        reads = {values[v].buffer for v in (*step.operands, *step.touched) if v is not None}
        writes = set(step.writes)
        read, written = self._touched.get(stream, (set(), set()))
        kinds = {self._plan.buffers[b].kind for b in writes}
        alone = len(bound) == 1 and hasattr(bound[0], "beside")  # else nothing spreads it
        if not alone or kinds != {"param"}:  # other memory may be shared
            self._touched.pop(stream, None)
            return
        if written and not (writes & (read | written) or reads & written):
            bound[0].beside = self.found = True
            self._touched[stream] = read | reads, written | writes
        else:
            self._touched[stream] = reads, writes
