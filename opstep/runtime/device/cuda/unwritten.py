"""Whether any element of a tensor still has the bits of memory never written."""

from __future__ import annotations

from functools import cache

from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import CARRIERS, Arg, Grid
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.op import AttrSpec, OperandSpec, Traits
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.plan.plan import Step

THREADS = 256
EACH = 8  # elements a thread
WORDS = TensorType(i64, (2,))


def find(x, words, pattern, n):
    first = cuda.blockIdx.x * (THREADS * EACH) + cuda.threadIdx.x
    if first == 0:
        words[0] = 1
    for k in range(EACH):
        i = first + k * THREADS
        if i < n and x[i] == pattern:
            words[1] = 1  # whoever is last, it is the same


class search(PlanOp):
    """Sets the first of `words` to 1, and the second if an element of `x`, seen as integers, is
    `pattern`.
    """

    name = "search"
    operands = (OperandSpec("x", "I", "I", False, False),)
    attrs = (AttrSpec("pattern", "int", True, None),)
    results = ("words",)
    traits = Traits(moves=True)

    def cuda(x: Arg, words: Arg, *, pattern: int) -> Grid:  # pyright: ignore
        grid = max(1, -(-x.size // (THREADS * EACH)))
        return Grid(find, x, words, pattern, x.size, grid=grid, block=THREADS)


@cache
def search_for(dtype: DType, size: int) -> tuple[Step, tuple[TensorType, TensorType]]:
    """A step, of no plan, that looks for the payload in `size` elements; and the types that a
    device needs to prepare it.
    """
    pattern = payload(dtype)
    seen = CARRIERS[pattern.itemsize]
    x = TensorType(seen, (size,))
    statement = Apply((), Name(search.name, NOWHERE), ())
    attrs = {"pattern": int(pattern.view(f"i{pattern.itemsize}"))}
    return Step(search, (), (), (x,), attrs, 0, statement), (x, WORDS)
