"""The loops of groups of elementwise ops (`plan.fusing`), in which an op's result is a variable.

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

import numpy as np

from opstep.kernels.math.cuda_fast import faster
from opstep.kernels.pointwise.arithmetic import add, mul, square, sub
from opstep.kernels.pointwise.broadcast import Layout, collapse, locate
from opstep.kernels.pointwise.selection import cast
from opstep.runtime.device.builtin import bits_to_float, float_to_bits, pick
from opstep.runtime.device.convert import (
    limits_of,
    round_to_odd,
    shortened,
)
from opstep.runtime.device.cuda.compiling.names import (
    exact_difference,
    exact_product,
    exact_sum,
    hidden,
    through_bf16,
    through_f16,
)
from opstep.runtime.device.launch import Arg, Held, Launch
from opstep.runtime.device.source import pinned, swaps
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, TensorType, bf16, f32, i32, i64
from opstep.runtime.plan.body import Body, Member
from opstep.runtime.plan.internal import takes_effect

GRAIN = 65536  # ops on elements under which it is not worth waking another lane

# How an operand steps along the last axis of the result's.
SAME = "same"  # it has the result's elements
ONE = "one"  # it has one element
RUN = "run"  # one after the other, from where the row says
FIXED = "fixed"  # one for the whole row


# --- one op ---------------------------------------------------------------------------------------


def computed(dtype: DType) -> DType:
    """What variables of this type are."""
    return f32 if dtype.is_half else dtype


# As `device.convert` has them, without a branch and in 32 bits, so that vectors stay short.


def from_f16(h):
    rest = np.uint32(h & 0x7FFF)
    number = bits_to_float(np.uint32(rest << 13)) * bits_to_float(np.uint32(0x77800000))
    bits = np.uint32(float_to_bits(number))
    bits = pick(rest >= 0x7C00, np.uint32(bits | 0x7F800000), bits)
    return bits_to_float(np.uint32(bits | np.uint32(np.uint32(h & 0x8000) << 16)))


def from_bf16(h):
    return bits_to_float(np.uint32(np.uint32(h) << 16))


@pinned("f32")
def to_f16(v):
    """The bits of a number that an f16 can hold."""
    bits = np.uint32(float_to_bits(np.float32(v)))
    size = np.uint32(bits & 0x7FFFFFFF)
    found = np.uint32((size >> 13) - (112 << 10))
    small = np.uint32(np.uint32(float_to_bits(bits_to_float(size) + 0.5)) - 0x3F000000)
    found = pick(size < 0x38800000, small, found)
    found = pick(size >= 0x7F800000, np.uint32((size >> 13) & 0x7FFF), found)
    return np.uint16(found | np.uint32(np.uint32(bits >> 16) & 0x8000))


def to_bf16(v):
    return np.uint16(np.uint32(float_to_bits(np.float32(v))) >> 16)


@pinned("f32")
def as_f16(v):
    """Rounded to what an f16 can hold."""
    bits = np.uint32(float_to_bits(np.float32(v)))
    size = np.uint32(bits & 0x7FFFFFFF)
    found = np.uint32((size + 0xFFF + ((size >> 13) & 1)) & 0xFFFFE000)
    # below the smallest normal: next to 0.5, the last bit of an f32 is 2**-24
    small = np.uint32(float_to_bits((bits_to_float(size) + 0.5) - 0.5))
    found = pick(size < 0x38800000, small, found)
    found = pick(size >= 0x477FF000, np.uint32(0x7F800000), found)
    found = pick(size > 0x7F800000, np.uint32(size | 0x400000), found)
    return bits_to_float(np.uint32(found | (bits & 0x80000000)))


def as_bf16(v):
    bits = np.uint32(float_to_bits(np.float32(v)))
    found = np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)
    is_nan = np.uint32(bits & 0x7FFFFFFF) > 0x7F800000
    return bits_to_float(pick(is_nan, np.uint32(bits | 0x400000), found))


def odd(v):
    return round_to_odd(v)


def long_odd(v):
    return round_to_odd(shortened(v))


def truth(v):
    return np.uint8(v != 0)


def exact_square(x):
    return exact_product(x, x)


_EXACT: dict[Callable, Callable] = {
    add.scalar: exact_sum,
    sub.scalar: exact_difference,
    mul.scalar: exact_product,
    square.scalar: exact_square,
}


@cache
def saturated(name: str, low: int, high: int) -> Callable:
    """A float as an integer of the type with these limits; those of narrow types are numbers of any
    float type, and what lies between them is one of i32: vectors have twice the elements.
    """
    scope = {"np": np, "whole": getattr(np, name)}
    if high < 1 << 24:
        # where v is NaN, comparisons leave a number: these become a maximum and a minimum
        number = "v" if low == 0 else "(v if v == v else np.float32(0))"
        text = f"""def whole_of(v):
    w = {number}
    w = w if w > np.float32({low}) else np.float32({low})
    return whole(np.int32(w if w < np.float32({high}) else np.float32({high})))
"""
    else:
        text = f"""def whole_of(v):
    w = np.float64(v)
    if w != w:
        return whole(0)
    if w <= np.float64({low}):
        return whole({low})
    return whole({high}) if w >= np.float64({high}) else whole(np.int64(w))
"""
    return from_text(text, f"float to {name}", "whole_of", scope)


def _number_type(dtype: DType) -> Any:
    return np.uint8 if dtype.kind == "b" else computed(dtype).numpy.type


def conversions(a: DType, b: DType, on_gpu: bool) -> list[Any]:
    """What is to be called, first to last, to make a variable of type b of one of type a; see
    `device.convert`.
    """
    if a is b:
        return []
    if b.kind == "b":
        return [truth]
    if b.is_half:
        last = through_bf16 if b is bf16 else through_f16
        if not on_gpu:
            last = as_bf16 if b is bf16 else as_f16
        if a is i64 and b is bf16:
            return [long_odd, last]
        return [odd, last] if a.itemsize == 8 or a is i32 else [last]
    if a.is_float and b.is_integer:
        return [saturated(_number_type(b).__name__, *limits_of(b))]
    return [_number_type(b)]


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
        after = [_number_type(member.result)]
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


class Element:
    """The text that computes one element of each result: lines, and what they refer to."""

    def __init__(self, body: Body, on_gpu: bool):
        self.body = body
        self.on_gpu = on_gpu
        types = list(body.operands)
        self.scope: dict[str, Any] = {}
        for k, member in enumerate(body.members):
            stored = [types[r] for r in member.operands]
            self.scope[f"f{k}"] = applied(_parts(member, stored, on_gpu))
            types.append(member.result)
        self.types = types
        for helper in (from_f16, from_bf16, to_f16, to_bf16, locate, takes_effect):
            self.scope[helper.__name__] = helper

    def needed(self, results: Sequence[int]) -> list[int]:
        """The registers that these results depend on."""
        count = len(self.body.operands)
        found = {self.body.results[q] for q in results}
        for k in reversed(range(len(self.body.members))):
            if count + k in found:
                found.update(self.body.members[k].operands)
        return sorted(found)

    def loaded(self, k: int, place: str) -> str:
        """Operand k's element at a place."""
        stored, word = self.types[k], f"x{k}[{place}]"
        if not stored.is_half or self.on_gpu:
            return word
        return f"from_{stored.name}({word})"

    def stored(self, q: int, place: str) -> str:
        """The line that stores result q."""
        register = self.body.results[q]
        stored, word = self.types[register], f"r{register}"
        if stored.is_half and not self.on_gpu:
            word = f"to_{stored.name}({word})"
        return f"y{q}[{place}] = {word}"

    def computed(self, registers: Sequence[int]) -> list[str]:
        """The lines of these registers that are members'."""
        count = len(self.body.operands)
        lines = []
        for r in registers:
            if r >= count:
                operands = ", ".join(f"r{o}" for o in self.body.members[r - count].operands)
                zero = f"zero >> {r - count}" if self.on_gpu else "0"  # each has its own
                lines.append(f"r{r} = f{r - count}({operands}, {zero})")
        return lines


def ways_of(layout: Layout) -> tuple[str, ...]:
    """How each operand steps."""
    shape, own, step = layout.shape, [], 1
    for n in reversed(shape):
        own.append(step if n != 1 else 0)
        step *= n
    own.reverse()
    ways = []
    for strides in layout.strides:
        if list(strides) == own:
            ways.append(SAME)
        elif not any(strides):
            ways.append(ONE)
        else:
            ways.append(RUN if strides[-1] else FIXED)
    return tuple(ways)


_kernels: dict[tuple, Callable] = {}


def _kernel(body: Body, ways: tuple[str, ...], on_gpu: bool) -> Callable:
    """(*operands, *results, a 0, sizes, rank, *strides of operands that repeat, lo, hi)"""
    key = (repr(body), ways, on_gpu)  # as text: 0.0 and -0.0 are equal
    if key not in _kernels:
        element = Element(body, on_gpu)
        text = "\n".join(_kernel_text(element, ways))
        made = from_text(text, f"fused {len(_kernels)}", "fused", element.scope)
        _kernels[key] = swaps(made)
    return _kernels[key]


def _kernel_text(element: Element, ways: tuple[str, ...]) -> list[str]:
    body = element.body
    operands = [f"x{k}" for k in range(len(ways))]
    results = [f"y{q}" for q in range(len(body.results))]
    repeating = [k for k, way in enumerate(ways) if way in (RUN, FIXED)]
    layout = ["sizes", "rank", *(f"s{k}" for k in repeating)] if repeating else []
    lines = [f"def fused({', '.join([*operands, *results, 'zero', *layout, 'lo', 'hi'])}):"]
    plain = [q for q, guarded in enumerate(body.updates) if not guarded]
    everything = list(range(len(body.results)))
    loop = _rows if repeating else _flat
    if body.status < 0:
        return [*lines, *indented(loop(element, ways, everything))]
    lines.append(f"    if takes_effect(x{body.status}[0]):")
    lines += indented(loop(element, ways, everything), 2)
    if plain:
        lines += ["    else:", *indented(loop(element, ways, plain), 2)]
    return lines


def indented(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in lines]


def _flat(element: Element, ways: Sequence[str], results: list[int]) -> list[str]:
    """A loop where nothing repeats but single elements."""
    needed = element.needed(results)
    count = len(ways)
    lines = [f"r{k} = {element.loaded(k, '0')}" for k in needed if k < count and ways[k] == ONE]
    lines.append("for i in range(lo, hi):")
    inner = [f"r{k} = {element.loaded(k, 'i')}" for k in needed if k < count and ways[k] == SAME]
    inner += element.computed(needed)
    inner += [element.stored(q, "i") for q in results]
    return lines + indented(inner)


def _rows(element: Element, ways: Sequence[str], results: list[int]) -> list[str]:
    """A loop over rows of the last axis, and one along each."""
    needed = element.needed(results)
    count = len(ways)
    own = [k for k in needed if k < count]
    lines = [f"r{k} = {element.loaded(k, '0')}" for k in own if ways[k] == ONE]
    lines += ["n = sizes[rank - 1]", "row = lo // n", "j = lo - row * n", "i = lo"]
    lines.append("while i < hi:")
    inner = ["count = min(n - j, hi - i)"]
    for k in own:
        if ways[k] == RUN:
            inner.append(f"p{k} = locate(row, sizes, s{k}, rank - 1) + j")
        elif ways[k] == FIXED:
            inner.append(f"p{k} = locate(row, sizes, s{k}, rank - 1)")
            inner.append(f"r{k} = {element.loaded(k, f'p{k}')}")
    inner.append("for k in range(count):")
    places = {SAME: "i + k", RUN: "p{} + k"}
    along = [
        f"r{k} = {element.loaded(k, places[ways[k]].format(k))}" for k in own if ways[k] in places
    ]
    along += element.computed(needed)
    along += [element.stored(q, "i + k") for q in results]
    inner += [*indented(along), "i += count", "row += 1", "j = 0"]
    return lines + indented(inner)


def layout_of(args: Sequence[Arg], body: Body) -> Layout:
    """How operands step along the results."""
    count = len(body.operands)
    shape = args[count].shape
    return collapse(shape, seen_shapes(args[:count], len(shape), body))


def seen_shapes(operands: Sequence[Arg | Held], rank: int, body: Body) -> list[tuple[int, ...]]:
    """Shapes of a body's operands as they broadcast to results of that rank."""
    shapes = [a.shape for a in operands]
    for k in body.per_channel:
        shapes[k] += (1,) * (rank - 2)
    return shapes


def launch(args: Sequence[Arg], body: Body, on_gpu: bool) -> Launch:
    """A launch of the loop; on a GPU, whose pointers convert halves, each unit is a thread's."""
    layout, results = layout_of(args, body), args[len(body.operands) :]
    ways = ways_of(layout)
    kernel = _kernel(body, ways, on_gpu)
    strides = [s for s, way in zip(layout.strides, ways, strict=True) if way in (RUN, FIXED)]
    where = (layout.shape, len(layout.shape), *strides) if strides else ()
    grain = max(1024, GRAIN // len(body.members)) if body.members else GRAIN
    return Launch(kernel, *args, 0, *where, units=results[0].size, grain=grain, each=True)
