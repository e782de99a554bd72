"""The kernels of the op at a stop, with its operands as they are there."""

from __future__ import annotations

import numpy as np

from opstep.runtime.debugger.activation import Activation, Node
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.kernel.job import Job
from opstep.runtime.debugger.kernel.launches import ARCH, KernelLaunch, Three, kernel_launches
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step


class KernelsAtStop:
    """Of the op that a frame stands at, or right behind. `launches` is empty where there are none:
    in a frame that called another one, at a call of a graph, at an op without kernels.

    First come those that the device really runs; on the CPU the op's CUDA kernels follow, which the
    simulator runs anywhere.
    """

    def __init__(self, frame: Frame):
        self.frame = frame
        self.launches: list[KernelLaunch] = []
        self.step = frame.step
        device = frame.machine.executor.device
        self.arch = device.arch or ARCH
        if self.step is None:
            return
        self.types = _types(frame.activation, self.step)
        for target in dict.fromkeys([device.kernels, "cuda"]):
            try:
                self.launches += kernel_launches(self.step, self.types, target, self.arch)
            except (Mismatch, NotImplementedError):
                continue  # not for these shapes

    def job(
        self, launch: KernelLaunch, block: Three = (0, 0, 0), thread: Three = (0, 0, 0),
        unit: int = 0, every: bool = False, element: tuple[int, int] | None = None,
    ) -> Job:  # fmt: skip
        """One thread of one launch, or one unit of one of the CPU's; see `Job`."""
        assert self.step is not None
        array = self.frame.machine.executor.array
        operands = [None if v is None else self._operand(v) for v in self.step.operands]
        operands += [None] * (len(self.step.operand_types) - len(operands))
        arrays = [None if node is None else array(node) for node in operands]
        chosen = (block, thread, unit, every, element)
        return Job(self.step, self.types, arrays, launch, self.arch, *chosen)

    @property
    def results(self) -> list[TensorType]:
        """Types of the op's results."""
        count = len(self.step.operand_types) if self.step else 0
        return [t for t in self.types[count:] if t is not None] if self.step else []

    def label(self, launch: KernelLaunch, element: tuple[int, int] | None = None) -> str:
        """What the first thread of a launch is called, or the one that writes an element."""
        assert self.step is not None
        return Job(self.step, self.types, (), launch, self.arch, element=element).label

    def first_odd(self, node: Node, kind: str) -> int | None:
        """The number of the first element that is NaN, or infinite."""
        array = self.frame.machine.executor.array(node).reshape(-1)
        found = np.flatnonzero(np.isnan(array) if kind == "nan" else np.isinf(array))
        return int(found[0]) if found.size else None

    def _operand(self, value: int) -> Node:
        activation = self.frame.activation
        found = activation.at(value, self.frame.position, self.frame.frame)
        if found is not None:
            return found
        plan = activation.plan
        literal = plan.buffers[plan.values[value].buffer].literal
        assert literal is not None, "what stands before an op has its operands"
        return self.frame.machine.executor.constant(plan.values[value].type, literal)


def _types(activation: Activation, step: Step) -> tuple[TensorType | None, ...]:
    values = activation.plan.values
    operands = [None if v is None else values[v].type for v in step.operands]
    operands += [None] * (len(step.operand_types) - len(operands))
    return (*operands, *(values[v].type for v in step.results))
