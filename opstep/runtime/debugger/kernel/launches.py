"""What an op launches, and which of it can be run a Python line at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from opstep.runtime.device import source
from opstep.runtime.device.cpu import internal
from opstep.runtime.device.cuda.compiling.compiler import CUDA
from opstep.runtime.device.cuda.compiling.names import Deferred
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator.simulated_thread import Three, written
from opstep.runtime.device.cuda.simulator.simulator import value_of
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Step

ARCH = "sm_80"  # kernels are taken as they are for it where no GPU says otherwise
MOST_WORK = 1 << 23  # elements and FLOPs of an op whose first launches are simulated before others


class KernelLaunch(NamedTuple):
    """One launch of an op: number `number` of `count`, of a `target` (cuda or cpu).

    A CUDA launch has `grid` blocks of `block` threads; one of the CPU's has `units`. `obstacle`
    says why it cannot be run a line at a time, if it cannot.
    """

    op: str
    target: str
    number: int
    count: int
    function: Callable
    grid: Three
    block: Three
    units: int
    obstacle: str = ""

    @property
    def definition(self) -> tuple[str, int]:
        """File and line of the kernel's source."""
        code = self.function.__code__  # pyright: ignore[reportFunctionMemberAccess]
        return code.co_filename, code.co_firstlineno

    def label(self, block: Three = (0, 0, 0), thread: Three = (0, 0, 0), unit: int = 0) -> str:
        """``kernel relu, block (0,0,0), thread (0,0,0)``; ``kernel relu on the CPU, …``"""
        which = f", launch {self.number + 1} of {self.count} ({self.function.__name__})"
        name = f"kernel {self.op}{which if self.count > 1 else ''}"
        if self.target == "cpu":
            return f"{name} on the CPU, work item {unit}"
        return f"{name}, block {written(block)}, thread {written(thread)}"

    def complaint(self, block: Three, thread: Three, unit: int) -> str:
        """What is wrong with wanting these, if anything is."""
        if self.obstacle:
            return self.obstacle
        if self.target == "cpu":
            fits = 0 <= unit < self.units
            return "" if fits else f"work item {unit} is none of the {self.units} of the launch"
        for what, index, sizes in (("block", block, self.grid), ("thread", thread, self.block)):
            if not all(0 <= k < n for k, n in zip(index, sizes, strict=True)):
                return f"{what} {written(index)} is not within {written(sizes)}"
        return ""


def kernel_launches(
    step: Step, types: tuple[TensorType | None, ...], target: str, arch: str = ARCH
) -> list[KernelLaunch]:
    """The launches of a step. `types`: the operands as they are stored, then the results."""
    op = step.op
    if op.traits.host or op.traits.reinterprets or op.traits.foreign or op.family == "internal":
        return []
    prepared, _ = lowered(step, types, target, arch)
    work, found, obstacle = _work(step, types), [], ""
    for number, launch in enumerate(prepared):
        kernel, units = launch.kernel, launch.words[-1] if launch.kernel.per_unit else 0
        if number and work > MOST_WORK and not obstacle:
            obstacle = f"what runs before it on {work:,} elements and FLOPs is too much to simulate"
        obstacle = obstacle or _obstacle(launch)
        function: Any = inspect.unwrap(kernel.function)
        found.append(
            KernelLaunch(
                step.op.name, target, number, len(prepared), function,
                launch.grid, launch.block, units, obstacle,
            )
        )  # fmt: skip
    return found


def lowered(
    step: Step, types: tuple[TensorType | None, ...], target: str, arch: str = ARCH
) -> tuple[list[Prepared], int]:
    """The launches of a step without addresses, and the bytes of working memory they share."""
    lowering = Lowering(step, types)
    with targeting(arch):
        if target == "cuda":
            launches, size = lowering.prepared()
        else:
            cpu = internal.CPU.get(step.op.name) or step.op.cpu
            requested = cpu(*lowering.args(), **step.attrs)
            requested = [requested] if isinstance(requested, Launch) else list(requested)
            for launch in requested:
                launch.cuda = None  # what the CPU runs, not what stands for it on a GPU
            launches, size = lowering.lowered(requested)
    return [launch for launch in launches if isinstance(launch, Prepared)], size


def _work(step: Step, types: tuple[TensorType | None, ...]) -> int:
    """Elements that the op reads and writes, and its arithmetic."""
    elements: Any = sum(t.size for t in types if t is not None)  # concrete here
    flops: Any = step.op.flops(*step.operand_types, **step.attrs)
    return int(elements + flops)


def _obstacle(launch: Prepared) -> str:
    """Why a launch cannot be run in the simulator; those behind it cannot, either."""
    kernel = launch.kernel
    name = kernel.function.__name__
    try:
        source.specialise(kernel.function, kernel.dtype, _NameCheck())  # pyright: ignore[reportArgumentType]
    except (AttributeError, NotImplementedError) as error:
        lacks = str(error).rpartition("attribute ")[2].strip("'")
        return f"{name} needs {lacks}, which exists only compiled"
    return ""


class _NameCheck:
    """A target that makes nothing: it looks whether the simulator has all that a kernel names."""

    body = CUDA.body

    def __init__(self) -> None:
        self._checked: set[tuple[FunctionType, DType]] = set()

    def callee(self, function: FunctionType, dtype: DType) -> Any:
        dtype = source.dtype_within(function, dtype)
        if (function, dtype) not in self._checked:
            self._checked.add((function, dtype))
            source.specialise(function, dtype, self)
        return function

    def value(self, value: Any, dtype: DType) -> Any:
        return value if isinstance(value, Deferred) else value_of(value, dtype)
