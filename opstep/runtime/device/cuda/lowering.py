"""From an op's launches to kernels and argument words: what is left to fill in are addresses.

An op that says nothing of CUDA (`Op.cuda`) is run by its CPU kernels, a unit a thread: they must
not care how their range is cut, and so not how many threads share it.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

from opstep.runtime.device import foreign
from opstep.runtime.device.cuda import internal
from opstep.runtime.device.cuda.compiling.compiler import Kernel
from opstep.runtime.device.launch import Arg, Call, Grid, Launch, Scratch, Variants
from opstep.runtime.device.routine import PreparedCall, Shared
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import DType, TensorType, i64, u8
from opstep.runtime.plan.plan import Step

ALIGNMENT = 256  # bytes, of every buffer and every scratch: wide loads never straddle a line
THREADS = 128  # of a block that runs a CPU kernel
LANES = 8192  # threads that run one with working memory of its own for each


class Prepared(NamedTuple):
    """A launch without addresses: argument words, and which of them are which operand's pointer."""

    kernel: Kernel
    words: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]  # (word, operand or result)
    workspace: tuple[tuple[int, int], ...]  # (word, offset)
    tuples: tuple[tuple[int, tuple[int, ...]], ...]  # (word, the numbers that it points to)
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int


class Lowering:
    """Turns an op's launches into argument words."""

    def __init__(self, step: Step, types: tuple[TensorType | None, ...]):
        self.step = step
        self.types = types
        self.size = 0  # of the workspace, in bytes
        self.places: dict[int, int] = {}  # id of a Scratch -> offset
        self.keep: list[Scratch] = []  # ids stay unique while their objects live

    def prepared(self) -> tuple[list[Prepared | PreparedCall], int]:
        """The launches of our own kernels, and the bytes of working memory that they share."""
        return self.lowered(next(iter(self.variants().values())))

    def variants(self) -> dict[str, Any]:
        """What the op may launch of our own kernels, by name; first what it does by itself."""
        op = self.step.op
        if self.step.is_joined:
            joined: Any = op
            return {"": joined.joined_on_gpus(*self.args(), **self.step.attrs)}
        if op.traits.foreign:
            return {"": foreign.prepared(self.step, self.types, on_gpu=True)}
        cuda = internal.CUDA.get(op.name) or op.cuda or op.cpu
        result = cuda(*self.args(), **self.step.attrs)
        return result.launches if isinstance(result, Variants) else {"": result}

    def lowered(self, launches: Any) -> tuple[list[Prepared | PreparedCall], int]:
        """Launches that an op asks for, and the bytes of working memory that they share."""
        if isinstance(launches, PreparedCall):
            return [launches], 0
        self.size, self.places = 0, {}
        launches = [launches] if isinstance(launches, (Grid, Launch, Call)) else list(launches)
        launches = [_for_cuda(launch) for launch in launches]
        return [self._lower(launch) for launch in launches if _has_work(launch)], self.size

    def args(self) -> list[Arg | None]:
        """Operands and results, as the op's functions take them."""
        step = self.step
        count = len(step.operand_types)
        args: list[Arg | None] = [
            self._arg(k, stored, computed)
            for k, (stored, computed) in enumerate(
                zip(self.types[:count], step.operand_types, strict=True)
            )
        ]
        results = [t for t in self.types[count:] if t is not None]  # results are never absent
        return args + [self._arg(count + k, t, t) for k, t in enumerate(results)]

    def _arg(self, slot: int, stored: TensorType | None, computed: TensorType | None) -> Arg | None:
        if stored is None or computed is None:
            return None
        return Arg(stored.with_dtype(self.step.op.computed(computed.dtype)), slot, stored.dtype)

    def _lower(self, launch: Grid | Launch | Call) -> Prepared | PreparedCall:
        if isinstance(launch, Call):
            return self._lower_call(launch)
        signature: list[str] = []
        words: list[int] = []
        slots: list[tuple[int, int]] = []
        workspace: list[tuple[int, int]] = []
        tuples: list[tuple[int, tuple[int, ...]]] = []
        lanes = min(LANES, launch.units) if isinstance(launch, Launch) else 1
        dtype = _kernel_dtype(launch)
        for k, a in enumerate(launch.args):
            value = 0
            if isinstance(a, Arg):
                slots.append((k, a.slot))
                signature.append(_pointer(a))
            elif isinstance(a, Scratch):
                workspace.append((k, self._workspace_offset(a, lanes)))
                signature.append(_pointer(a))
            elif isinstance(a, tuple):
                tuples.append((k, _int64s(a) or (0,)))
                signature.append("*i64")
            elif isinstance(a, float):
                value = _float_bits(a, dtype)
                signature.append("f")
            else:
                value = _int64(a)
                signature.append("i")
            words.append(value)
        parts = (tuple(slots), tuple(workspace), tuple(tuples))
        if isinstance(launch, Grid):
            threads = prod(launch.block)
            kernel = Kernel(launch.kernel, tuple(signature), dtype, False, threads, launch.blocks)
            sizes = (launch.grid, launch.block, launch.shared)
            return Prepared(kernel, tuple(words), *parts, *sizes)
        per_lane = any(isinstance(a, Scratch) and a.per_lane for a in launch.args)
        threads = lanes if per_lane or _has_lane(launch.kernel) else launch.units
        grid = min(-(-threads // THREADS), 0x7FFFFFFF)
        if per_lane or _has_lane(launch.kernel):
            block, grid = (min(THREADS, lanes), 1, 1), max(1, lanes // THREADS)
        else:
            block = (THREADS, 1, 1)
        kernel = Kernel(launch.kernel, tuple(signature), dtype, True, THREADS)
        return Prepared(kernel, (*words, launch.units), *parts, (grid, 1, 1), block, 0)

    def _lower_call(self, call: Call) -> PreparedCall:
        offset = self._workspace_offset(Scratch(u8, call.routine.workspace), 1)
        slots = (
            Shared(self._workspace_offset(a, 1)) if isinstance(a, Scratch) else a.slot
            for a in call.args
        )
        return PreparedCall(call.routine, tuple(slots), offset)

    def _workspace_offset(self, scratch: Scratch, lanes: int) -> int:
        """The scratch's offset in the workspace."""
        if id(scratch) not in self.places:
            self.places[id(scratch)] = self.size
            self.keep.append(scratch)
            nbytes = scratch.size * scratch.stored.itemsize * (lanes if scratch.per_lane else 1)
            self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self.places[id(scratch)]


def _pointer(a: Arg | Scratch) -> str:
    """How it travels: see `compiling.compiler.Signature`."""
    return f"*{a.dtype.name}" if a.stored is a.dtype else f"*{a.stored.name}:{a.dtype.name}"


def _for_cuda(launch: Grid | Launch | Call) -> Grid | Launch | Call:
    """A launch of the CPU's, as what it names for CUDA."""
    if isinstance(launch, Launch) and launch.units > 0 and launch.cuda is not None:
        return launch.cuda() or launch
    return launch


def _has_work(launch: Grid | Launch | Call) -> bool:
    if isinstance(launch, Call):
        return True
    return launch.units > 0 if isinstance(launch, Launch) else prod(launch.grid) > 0


def _has_lane(function) -> bool:
    code = function.__code__
    return code.co_varnames[code.co_argcount - 1] == "lane"


def _int64(number) -> int:
    number = int(number)
    if not -(1 << 63) <= number < 1 << 63:
        raise Mismatch("a size or an attribute does not fit 64 bits")
    return number


def _int64s(numbers: tuple) -> tuple[int, ...]:
    """Tables can have millions of numbers: only the least and the largest are looked at."""
    made = tuple(map(int, numbers))
    for extreme in (min(made), max(made)) if made else ():
        _int64(extreme)
    return made


def _float_bits(number: float, dtype: DType) -> int:
    """The first bytes of its word, as the kernel reads them."""
    if dtype.name == "f64":
        return struct.unpack("<q", struct.pack("<d", number))[0]
    import numpy as np

    with np.errstate(over="ignore"):
        return struct.unpack("<q", struct.pack("<f", np.float32(number)) + bytes(4))[0]


def _kernel_dtype(launch: Grid | Launch) -> DType:
    """That of the kernel's float literals; half types are computed in f32."""
    pointers = [a.dtype for a in launch.args if isinstance(a, (Arg, Scratch))]
    floating = [t for t in pointers if t.is_float]
    return (floating or pointers or [i64])[0]
