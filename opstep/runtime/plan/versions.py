"""Versions of named tensors: which value is there now, and copies of old ones in use.

A name means the value that it had when its line was reached, however long it is kept. So where a
value is used after its tensor was updated, it is copied just before that update. Few programs need
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from opstep.runtime.ir.graph import Declaration, Statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.cost import estimate
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import STATUS, snapshot, update
from opstep.runtime.plan.plan import Step
from opstep.runtime.plan.resolve import nbytes

_STATUS = ""  # where a tensor's name is wanted: the run's status


class Versions:
    """The values of named tensors, and of the run's status, at the step that is added next."""

    def __init__(self, flat: Flat, tensors: Mapping[str, Declaration]):
        self._flat = flat
        self._tensors = tensors
        self._now: dict[str, int] = {}  # name -> value
        self._aliases: dict[int, list[int]] = {}  # buffer -> values of its present version
        self._copies: dict[int, int] = {}  # stale value -> its copy
        self._before: dict[int, list[Step]] = {}  # step -> snapshots to take before it
        self.stale: dict[int, int] = {}  # value whose bytes are overwritten -> the step that does

    def current(self, name: str) -> int:
        """The value of a named tensor now."""
        value = self._now.get(name)
        return self._first(name, "param", self._tensors[name].type) if value is None else value

    def status(self) -> int:
        """The value of the run's status now."""
        value = self._now.get(_STATUS)
        return self._first(_STATUS, "status", STATUS) if value is None else value

    def _first(self, name: str, kind: str, t: TensorType) -> int:
        buffer = self._flat.add_buffer(kind, nbytes(t))
        self._flat.labels[buffer] = name
        value = self._now[name] = self._flat.add_value(name or "status", t, buffer, 0)
        self._aliases[buffer] = [value]
        return value

    def next(self, name: str) -> int:
        """The tensor's value from the step on that is added next; what was there becomes stale."""
        flat = self._flat
        old = self.status() if name == _STATUS else self.current(name)
        buffer = flat.homes[old]
        self.stale.update(dict.fromkeys(self._aliases[buffer], len(flat.steps)))
        value = self._now[name] = flat.add_value(flat.names[old], flat.types[old], buffer, 0)
        self._aliases[buffer] = [value]
        return value

    def aliased(self, value: int, operand: int | None) -> int:
        """The buffer that a reinterpretation shares with its operand; `value` is its result."""
        assert operand is not None
        home = self._flat.homes[operand]
        if home in self._aliases:
            self._aliases[home].append(value)
        return home

    def fresh(self, value: int) -> int:
        """The value, or, where its bytes were overwritten, a copy that was taken before."""
        before = self.stale.get(value)
        if before is None:
            return value
        if value not in self._copies:
            flat = self._flat
            step = flat.steps[before]
            copy = self._snapshot(value, flat.frame_of[value], step.frame, step.statement)
            self._before.setdefault(before, []).append(copy)
            self._copies[value] = copy.results[0]
        return self._copies[value]

    def copy_now(self, value: int, frame: int, statement: Statement) -> int:
        """A copy of a value, taken at the step that is added next."""
        step = self._snapshot(value, frame, frame, statement)
        self._flat.steps.append(step)
        self._flat.costs.append(self._cost(step))
        return step.results[0]

    def _snapshot(self, value: int, scope: int, frame: int, statement: Statement) -> Step:
        flat, t = self._flat, self._flat.types[value]
        copy = flat.add_value(flat.names[value], t, flat.add_buffer("temp", nbytes(t)), scope)
        return Step(snapshot, (value,), (copy,), (t,), {}, frame, statement)

    def _cost(self, step: Step) -> int:
        return estimate(step.op, step.operand_types, (self._flat.types[step.results[0]],), {})

    def insert_copies(self) -> None:
        """Puts the snapshots where they belong, once all steps are there."""
        if not self._before:
            return
        flat = self._flat
        steps, costs = [], []
        for k, (step, cost) in enumerate(zip(flat.steps, flat.costs, strict=True)):
            copies = self._before.get(k, ())
            steps += [*copies, step]
            costs += [*map(self._cost, copies), cost]
        flat.steps, flat.costs = steps, costs


def gather_commits(flat: Flat) -> None:
    """Moves the updates at the end that nothing needs behind the snapshots there: no step but
    another of them comes after them, so a run can be given up until the first one begins.
    """
    steps, homes, begin = flat.steps, flat.homes, len(flat.steps)
    while begin and steps[begin - 1].op in (update, snapshot):
        begin -= 1
    staying: list[int] = []
    moving: list[int] = []
    used: set[int] = set()  # buffers that steps read or write which stay behind this one
    written: set[int] = set()
    for i in range(len(steps) - 1, begin - 1, -1):
        target = homes[steps[i].results[0]]
        operands = {homes[v] for v in steps[i].operands if v is not None}
        if steps[i].op is update and target not in used and not operands & written:
            moving.append(i)
        else:
            staying.append(i)
            used |= {target, *operands}
            written.add(target)
    flat.commits = len(moving)
    order = [*reversed(staying), *reversed(moving)]
    steps[begin:] = [steps[i] for i in order]
    flat.costs[begin:] = [flat.costs[i] for i in order]
