"""Loops over elements on the CPU: one text for single ops and for groups, by how operands step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from opstep.kernels.pointwise.broadcast import Layout, collapse, locate
from opstep.kernels.pointwise.conversions import conversions
from opstep.runtime.device.convert import from_bf16, from_f16, to_bf16, to_f16
from opstep.runtime.device.launch import Arg, Clamp, Launch, Seen
from opstep.runtime.device.source import pinned, swaps
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType, f32, i16
from opstep.runtime.plan.internal import takes_effect

# How an operand steps along the last axis of the result's.
SAME = "same"  # it has the result's elements
ONE = "one"  # it has one element
RUN = "run"  # one after the other, from where the row says
FIXED = "fixed"  # one for the whole row
BACK = "back"  # one before the other
APART = "apart"  # so many elements apart


class Elements:
    """What computes one element of each result, as lines of text. Values are registers, of these
    `types`: those of operands come first. `results` are those that are stored; `updates` say which
    of them only where operand `status` says so. Lines name what is in `scope`, and `numbers`, which
    are parameters of the kernel.
    """

    numbers: tuple[str, ...]
    updates: tuple[bool, ...] = (False,)
    status = -1

    def __init__(self, types: Sequence[DType], results: Sequence[int], on_gpu: bool):
        self.types = types
        self.results = tuple(results)
        self.on_gpu = on_gpu  # where pointers convert halves
        helpers = (from_f16, from_bf16, to_f16, to_bf16, locate, takes_effect)
        self.scope: dict[str, Any] = {helper.__name__: helper for helper in helpers}

    def needed(self, results: Sequence[int]) -> list[int]:
        """The registers that these results depend on."""
        raise NotImplementedError

    def computed(self, registers: Sequence[int]) -> list[str]:
        """The lines of these registers that are computed."""
        raise NotImplementedError

    def loaded(self, k: int, place: str) -> str:
        """Operand k's element at a place."""
        stored, word = self.types[k], f"x{k}[{place}]"
        return f"from_{stored.name}({word})" if stored.is_half and not self.on_gpu else word

    def stored(self, q: int, place: str) -> str:
        """The line that stores result q."""
        register = self.results[q]
        stored, word = self.types[register], f"r{register}"
        if stored.is_half and not self.on_gpu:
            word = f"to_{stored.name}({word})"
        return f"y{q}[{place}] = {word}"


class Single(Elements):
    """One function of scalars: `f` of an element of each operand, and of numbers."""

    def __init__(self, f: Callable, types: Sequence[DType], numbers: int):
        super().__init__(types, (len(types) - 1,), on_gpu=False)
        self.numbers = tuple(f"p{k}" for k in range(numbers))
        self.scope["f"] = f
        self._rounded = conversions(f32, types[-1], False)[0] if types[-1].is_half else None
        self.scope["rounded"] = self._rounded

    def needed(self, results: Sequence[int]) -> list[int]:
        return list(range(len(self.types)))

    def computed(self, registers: Sequence[int]) -> list[str]:
        count = self.results[0]
        word = f"f({', '.join([*(f'r{k}' for k in range(count)), *self.numbers])})"
        return [f"r{count} = " + (f"rounded({word})" if self._rounded else word)]


def looped(
    f: Callable,
    name: str,
    operands: Sequence[Arg],
    y: Arg,
    numbers: Sequence[int | float] = (),
    clamp: Clamp | None = None,
    bits: bool = False,
) -> Launch:
    """A launch of y = f(*operands, *numbers); operands broadcast to y. `bits`: f moves elements,
    and is given halves as they are stored.
    """
    layout = collapse(y.shape, operands)
    types = tuple(i16 if bits and a.dtype.is_half else a.dtype for a in (*operands, y))
    kernel = _single(f, name, types, len(numbers), ways_of(layout))
    return launched(kernel, (*operands, y, *numbers), layout, y.size, clamp=clamp)


@cache
def _single(f: Callable, name: str, types: tuple[DType, ...], numbers: int, ways) -> Callable:
    return kernel_of(Single(f, types, numbers), ways, name, name)


def launched(
    kernel: Callable,
    args: Sequence[Any],
    layout: Layout,
    units: int,
    grain: int = 32768,
    clamp: Clamp | None = None,
) -> Launch:
    """A launch of a kernel of `kernel_of`; `args`: operands, results, numbers."""
    where: list[Any] = []
    for way, strides, start in zip(ways_of(layout), layout.strides, layout.starts, strict=True):
        where += [strides, start] if way not in (SAME, ONE) else []
    where = [layout.shape, len(layout.shape), *where] if where else []
    each = not any(isinstance(a, Seen) for a in args)
    return Launch(kernel, *args, *where, units=units, grain=grain, each=each, clamp=clamp)


def ways_of(layout: Layout) -> tuple[str, ...]:
    """How each operand steps."""
    own, ways = layout.own(), []
    for strides, start in zip(layout.strides, layout.starts, strict=True):
        if strides == own and not start:
            ways.append(SAME)
        elif not any(strides) and not start:
            ways.append(ONE)
        else:
            ways.append({0: FIXED, 1: RUN, -1: BACK}.get(strides[-1], APART))
    return tuple(ways)


# --- the text of kernels --------------------------------------------------------------------------


def kernel_of(elements: Elements, ways: tuple[str, ...], name: str, what: str) -> Callable:
    """(*operands, *results, *numbers, sizes, rank, *(strides, start of operands that repeat), lo,
    hi); `what` it is among the texts of kernels.
    """
    made = from_text("\n".join(_text(elements, ways)), what, "kernel", elements.scope)
    made.__name__ = name
    if any(t.is_half for t in elements.types):
        pinned("f32")(made)  # what halves are computed in
    return swaps(made)


def indented(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in lines]


def _text(elements: Elements, ways: tuple[str, ...]) -> list[str]:
    repeating = [k for k, way in enumerate(ways) if way not in (SAME, ONE)]
    head = [f"x{k}" for k in range(len(ways))] + [f"y{q}" for q in range(len(elements.results))]
    head += elements.numbers
    if repeating:
        head += ["sizes", "rank", *(part for k in repeating for part in (f"s{k}", f"b{k}"))]
    lines = [f"def kernel({', '.join([*head, 'lo', 'hi'])}):"]
    everything = list(range(len(elements.results)))
    plain = [q for q, guarded in enumerate(elements.updates) if not guarded]
    loop = _rows if repeating else _flat
    if elements.status < 0:
        return [*lines, *indented(loop(elements, ways, everything))]
    lines.append(f"    if takes_effect(x{elements.status}[0]):")
    lines += indented(loop(elements, ways, everything), 2)
    if plain:
        lines += ["    else:", *indented(loop(elements, ways, plain), 2)]
    return lines


def _flat(elements: Elements, ways: Sequence[str], results: list[int]) -> list[str]:
    """A loop where nothing repeats but single elements."""
    needed = elements.needed(results)
    own = [k for k in needed if k < len(ways)]
    lines = [f"r{k} = {elements.loaded(k, '0')}" for k in own if ways[k] == ONE]
    lines.append("for i in range(lo, hi):")
    inner = [f"r{k} = {elements.loaded(k, 'i')}" for k in own if ways[k] == SAME]
    inner += elements.computed(needed)
    inner += [elements.stored(q, "i") for q in results]
    return lines + indented(inner)


def _rows(elements: Elements, ways: Sequence[str], results: list[int]) -> list[str]:
    """A loop over rows of the last axis, and one along each; places are found anew only where an
    axis further out begins.
    """
    needed = elements.needed(results)
    own = [k for k in needed if k < len(ways)]
    repeating = [k for k in own if ways[k] not in (SAME, ONE)]
    lines = [f"r{k} = {elements.loaded(k, '0')}" for k in own if ways[k] == ONE]
    lines += ["n, rows = sizes[rank - 1], sizes[rank - 2]", "i = lo", "while i < hi:"]
    plane = ["row = i // n", "j = i - row * n", "plane = row // rows", "row -= plane * rows"]
    for k in repeating:
        place = f"locate(plane, sizes, s{k}, rank - 2) + row * s{k}[rank - 2]"
        plane.append(f"q{k} = b{k} + {place}")
    plane += ["stop = min(hi, (plane + 1) * rows * n)", "while i < stop:"]
    inner = ["count = min(n - j, stop - i)"]
    for k in repeating:
        if ways[k] == FIXED:
            inner.append(f"r{k} = {elements.loaded(k, f'q{k}')}")
        else:
            inner.append(f"t{k} = s{k}[rank - 1]")
            inner.append(f"at{k} = q{k} + j * t{k}")
    inner.append("for k in range(count):")
    places = {SAME: "i + k", RUN: "at{0} + k", BACK: "at{0} - k", APART: "at{0} + k * t{0}"}
    along = [
        f"r{k} = {elements.loaded(k, places[ways[k]].format(k))}" for k in own if ways[k] in places
    ]
    along += elements.computed(needed)
    along += [elements.stored(q, "i + k") for q in results]
    inner += [*indented(along), "i += count", "j = 0"]
    inner += [f"q{k} += s{k}[rank - 2]" for k in repeating]
    return lines + indented(plane + indented(inner))
