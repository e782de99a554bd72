"""Groups of elementwise ops (`plan.fusing`) as functions, in which an op's result is a variable.

Each op is a function of scalars, `applied`, with all that its own launch would do around it: it
converts operands to the type that it computes in, and the result to its own. Halves are variables
of f32 that a half can hold. A kernel's text calls one after the other.

A compiler for GPUs makes one instruction of a product and a sum that follows it, which rounds once.
Within an op it may; from one op to the next that would change bits. So products and sums that are
ops are instructions that it leaves alone, and other ops get numbers that it cannot trace: `hidden`
adds bits of a 0 that is only known at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from opstep.kernels.math.cuda_fast import faster
from opstep.kernels.pointwise.arithmetic import add, mul, square, sub
from opstep.kernels.pointwise.broadcast import Layout, collapse
from opstep.kernels.pointwise.conversions import computed, conversions, number_type
from opstep.kernels.pointwise.loops import Elements, indented, kernel_of, launched, ways_of
from opstep.kernels.pointwise.selection import cast
from opstep.runtime.device.cuda.compiling.names import (
    exact_difference,
    exact_product,
    exact_sum,
    hidden,
)
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.device.source import pinned
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType, f32
from opstep.runtime.plan.fusing import Body, Member

__all__ = ["Element", "computed", "indented"]

GRAIN = 65536  # ops on elements under which it is not worth waking another lane


# --- one op ---------------------------------------------------------------------------------------


def exact_square(x):
    return exact_product(x, x)


_EXACT: dict[Callable, Callable] = {
    add.scalar: exact_sum,
    sub.scalar: exact_difference,
    mul.scalar: exact_product,
    square.scalar: exact_square,
}


class _Parts(NamedTuple):
    """What an op's function is made of, and what stands for it in a cache."""

    function: Callable
    before: tuple[tuple, ...]  # conversions of each operand
    numbers: tuple[str, ...]
    after: tuple
    dtype: DType
    hides: bool  # see above


def _parts(member: Member, stored: Sequence[DType], on_gpu: bool) -> _Parts:
    op, attrs = member.op, dict(member.attrs)
    seen = [op.computed(t) for t in member.seen]
    types = [TensorType(t, ()) for t in seen]
    f, numbers = op.element(*types, **attrs)
    result = computed(member.result)
    if on_gpu and len(types) == 1 and not op.traits.moves:
        y = Arg(TensorType(result, ()), 1, member.result)
        f = faster(f, Arg(types[0], 0), y)
    before = tuple(tuple(conversions(a, b, on_gpu)) for a, b in zip(stored, seen, strict=True))
    if op is cast:
        after = conversions(seen[0], member.result, on_gpu)
    elif op.computed(member.result) is not member.result:
        after = conversions(f32, member.result, on_gpu)
    else:
        after = [number_type(member.result)]
    floating = [computed(t) for t in (*seen, result) if t.is_float]
    dtype = floating[0] if floating else seen[0]
    hides = on_gpu and not op.traits.moves and seen[0].is_float
    if hides and f in _EXACT:
        f, hides = _EXACT[f], False
    return _Parts(f, before, tuple(map(repr, numbers)), tuple(after), dtype, hides)


@cache
def applied(parts: _Parts) -> Callable:
    """The op as a function of variables of the operands' types, and of a 0."""
    scope: dict[str, Any] = {"f": parts.function, "hidden": hidden}
    words = []
    for k, calls in enumerate(parts.before):
        word = f"x{k}"
        for j, call in enumerate(calls):
            scope[f"c{k}_{j}"] = call
            word = f"c{k}_{j}({word})"
        words.append(f"hidden({word}, zero)" if parts.hides else word)
    for k, number in enumerate(parts.numbers):
        value = float(number) if any(c in number for c in ".en") else int(number)
        scope[f"p{k}"] = parts.dtype.numpy.type(value) if type(value) is float else value
        words.append(f"p{k}")
    result = f"f({', '.join(words)})"
    for j, call in enumerate(parts.after):
        scope[f"d{j}"] = call
        result = f"d{j}({result})"
    operands = ", ".join(f"x{k}" for k in range(len(parts.before)))
    text = f"def applied({operands}, zero):\n    return {result}\n"
    made = from_text(text, "fused op", "applied", scope)
    return pinned(parts.dtype.name)(made)


# --- a group --------------------------------------------------------------------------------------


class Element(Elements):
    """The text that computes one element of each result: lines, and what they refer to."""

    numbers = ("zero",)

    def __init__(self, body: Body, on_gpu: bool):
        super().__init__(body.types, body.results, on_gpu)
        self.body = body
        self.updates, self.status = body.updates, body.status
        for k, member in enumerate(body.members):
            if member.op.element is not None:
                stored = [self.types[r] for r in member.operands]
                self.scope[f"f{k}"] = applied(_parts(member, stored, on_gpu))

    def needed(self, results: Sequence[int]) -> list[int]:
        """The registers that these results depend on."""
        count = len(self.body.operands)
        found = {self.body.results[q] for q in results}
        for k in reversed(range(len(self.body.members))):
            if count + k in found:
                found.update(self.body.members[k].operands)
        return sorted(found)

    def computed(self, registers: Sequence[int]) -> list[str]:
        """The lines of these registers that are members'."""
        count = len(self.body.operands)
        return [f"r{r} = {self.value(r - count)}" for r in registers if r >= count]

    def value(self, k: int) -> str:
        """The expression that member k computes."""
        operands = ", ".join(f"r{o}" for o in self.body.members[k].operands)
        zero = f"zero >> {k}" if self.on_gpu else "0"  # each has its own
        return f"f{k}({operands}, {zero})"


_kernels: dict[tuple, Callable] = {}


def layout_of(args: Sequence[Arg], body: Body) -> Layout:
    """How operands step along the results."""
    count = len(body.operands)
    return collapse(args[count].shape, args[:count], body.per_channel)


def launch(*args: Arg, body: Body, on_gpu: bool = False) -> Launch:
    """A launch of the loop; on a GPU, whose pointers convert halves, each unit is a thread's."""
    layout = layout_of(args, body)
    key = (body.text, ways_of(layout), on_gpu)  # as text: 0.0 and -0.0 are equal
    if key not in _kernels:
        _kernels[key] = kernel_of(Element(body, on_gpu), key[1], "fused", f"fused {len(_kernels)}")
    grain = max(1024, GRAIN // max(1, len(body.members)))
    return launched(_kernels[key], (*args, 0), layout, args[len(body.operands)].size, grain)
