"""Keeps what ops gave, as it was right behind them.

A copy is handed to the op's own stream before anything else is, so it is part of the order that the
plan keeps: what the plan orders behind the op comes after the copy, too, and a race shows in it as
it is. Memory that is used again later cannot change what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opstep.runtime.device.binding import Binding
from opstep.runtime.device.listening import Execution
from opstep.runtime.device.protocols import Device, Memory
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Step

ALIGNMENT = 256  # bytes
SMALLEST, LARGEST = 1 << 20, 256 << 20  # bytes of a piece of memory
LAST = 1 << 60  # in an order: behind all turns of a loop

Key = tuple[str | int, ...]
"""Which result of which run of which op: sites and turns of the calls around it, its own site."""


@dataclass(slots=True)
class Tapped:
    """One result of one run of an op. `order`: its place in the program's order; `memory` is None
    where there was no room for it.
    """

    key: Key
    order: tuple[int, ...]
    plan: Plan
    number: int
    value: int
    memory: Memory | None = None
    offset: int = 0

    @property
    def step(self) -> Step:
        return self.plan.steps[self.number]

    @property
    def type(self) -> TensorType:
        return self.plan.values[self.value].type

    @property
    def turns(self) -> list[int]:
        """Of the loops around it, the outermost first."""
        return [k for k in self.key if isinstance(k, int)]


class Taps:
    """A listener of one run. What `selects` holds for is kept, within a budget of bytes."""

    def __init__(
        self, device: Device, budget: int, selects: Callable[[Key], bool] = lambda key: True
    ):
        self.device = device
        self.selects = selects
        self.left = budget
        self.found: dict[Key, Tapped] = {}
        self._memory: Memory | None = None
        self._used = 0

    def before(self, execution: Execution) -> None:
        """Ops are looked at behind them."""

    def after(self, execution: Execution) -> None:
        step = execution.step
        if step.op.traits.reinterprets or (
            step.op.family == "internal" and step.op.name != "update"
        ):
            return
        binding = execution.binding
        path, order = _calls(binding)
        for k, value in enumerate(step.results):
            key = (*path, site_of(binding.plan, execution.number, k))
            position = (*order, execution.number, LAST, k)
            self.found[key] = tapped = Tapped(key, position, binding.plan, execution.number, value)
            if self.selects(key):
                self._keep(execution, tapped)

    def array(self, tapped: Tapped) -> np.ndarray:
        """What was kept; the run must be done."""
        return self.device.read(tapped.memory, tapped.offset, tapped.type)

    def _keep(self, execution: Execution, tapped: Tapped) -> None:
        nbytes: Any = tapped.type.nbytes  # concrete here
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if size > self.left:
            return
        self.left -= size
        if self._memory is None or self._used + size > self._memory.nbytes:
            piece = min(max(2 * (self._memory.nbytes if self._memory else 0), SMALLEST), LARGEST)
            self._memory, self._used = self.device.alloc(max(piece, size), "results compared"), 0
        tapped.memory, tapped.offset = self._memory, self._used
        self._used += size
        source = execution.binding.address_of(tapped.value).address
        copy = self.device.copy(source, tapped.memory.address + tapped.offset, nbytes)
        stream = execution.binding.streams[execution.stream]
        stream.submit(copy)
        if execution.binding.plan.policy.sync == "op":  # such a run waits for its ops alone
            stream.synchronize()


def site_of(plan: Plan, number: int, result: int = 0) -> str:
    """``main/features:p/c``: the calls down to the op, by the first of their results, and which
    value it gives.
    """
    step = plan.steps[number]
    names, frame = [], step.frame
    while frame >= 0:
        graph, statement = plan.frames[frame].graph.name.text, plan.frames[frame].statement
        called = statement.results if isinstance(statement, Apply) else ()
        names.append(f"{graph}:{called[0].name.text}" if called else graph)
        frame = plan.frames[frame].parent
    own = plan.values[step.results[result]].name if step.results else step.op.name
    if step.op.name == "update":
        own += " <-"
    return "/".join([*reversed(names), own])


def _calls(binding: Binding) -> tuple[Key, tuple[int, ...]]:
    """The calls of graphs around a plan: sites and turns, and their places in the order."""
    parent = binding.parent
    if parent is None:
        return (), ()
    key, order = _calls(parent.binding)
    site = site_of(parent.binding.plan, parent.number)
    test = parent.step.attrs.get("test")
    role = 0 if test is not None and test.name == binding.plan.graph else 1
    turn = binding.iteration
    return (*key, site, binding.plan.graph, turn), (*order, parent.number, turn, role)
