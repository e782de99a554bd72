"""Loops over elements on CUDA: one text for single ops and for groups of them (`plan.fusing`).

A thread computes a vector of neighbours, of 16 bytes or so. The text is written out for the ways in
which operands step (`Way`), once for each combination that occurs, and compiled like any other
function:

- *flat*: every operand has the result's elements, or just one.
- *rows*: some operand repeats along axes of the result, or is a view, and rows of the last axis are
  whole vectors: a vector's row and column give the places of the others.
- *crossing*: vectors reach from row to row; the others are walked element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from math import prod
from typing import Any, NamedTuple

from opstep.kernels.pointwise.broadcast import Layout, collapse, merged
from opstep.kernels.pointwise.conversions import as_bits, as_numbers, converted
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.pointwise.loops import indented
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.plan.internal import takes_effect

THREADS = 256  # of a block

# How an operand steps along a vector of the result's elements.
SAME = "same"  # it has the result's elements
ONE = "one"  # it has one element
ROW = "row"  # neighbours, which form a vector too
COLUMN = "column"  # one element for the whole vector
APART = "apart"  # elements that form none
EACH = "each"  # anything, where a row may end within the vector


class Task(NamedTuple):
    """What is computed of each element: `element` of one of each operand in `needed`, and of
    numbers; it gives a number for the one result, or a tuple of as many as there are `results`.
    Those that are `guarded` are stored where operand `status` says so.
    """

    name: str
    element: Callable
    operands: int
    needed: tuple[int, ...]
    numbers: int
    results: int = 0
    guarded: tuple[bool, ...] = (False,)
    status: int = -1


def elementwise(
    f: Callable, name: str, operands: Sequence[Arg], y: Arg, numbers: Sequence[int | float] = ()
) -> Grid | None:
    """A launch of y = f(*operands, *numbers), or None where there are too many elements for it.

    f is a function of scalars in plain Python; operands broadcast to y.
    """
    count = len(operands)
    task = Task(name, f, count, tuple(range(count)), len(numbers))
    return loop(task, operands, (y,), numbers, collapse(y.shape, operands))


def gathered(f: Callable, name: str, x: Arg, y: Arg, sizes, strides, start: int) -> Grid | None:
    """A launch of y = f(x), y taken row by row: its sizes are merged axes, beside x's strides."""
    return loop(Task(name, f, 1, (0,), 0), (x,), (y,), (), merged(sizes, (strides,), (start,)))


def cast_of(x: Arg, y: Arg) -> Grid | None:
    """y = x, converted."""
    if x.dtype is y.dtype:
        return elementwise(itself, "copy", *_one_operand(*as_bits(x, y)))
    f = converted(x.dtype, y.dtype)
    return elementwise(f, "convert", *_one_operand(as_numbers(x), as_numbers(y)))


def _one_operand(x: Arg, y: Arg) -> tuple[tuple[Arg], Arg]:
    return (x,), y


def itself(v):
    return v


def loop(
    task: Task, operands: Sequence[Arg], results: Sequence[Arg], numbers: Sequence, layout: Layout
) -> Grid | None:
    """A launch of the task; None where there are too many elements for it."""
    n = results[0].size
    width = vector_width([*(a for a in operands if a.size == n), *results])
    ways = ways_of(layout, width)
    if n >= LIMIT * (1 if EACH in ways else width) and not _is_flat(ways):
        return None
    walks, steps = walks_of(layout, ways)
    kernel = _kernel(task, ways, walks, width)
    *sizes, inner = layout.shape
    where = (inner, tuple(sizes), len(sizes), *steps) if steps else ()
    grid = -(-n // (width * THREADS))
    return Grid(kernel, *operands, *results, *numbers, n, *where, grid=grid, block=THREADS)


def vector_width(args: Sequence[Arg]) -> int:
    """Elements of a vector: the widest type fills 16 bytes; beside narrow ones it may take 32."""
    sizes = [a.stored.itemsize for a in args]
    return max(16 // max(sizes), min(4, 16 // min(sizes)))


def _is_flat(ways: Sequence[str]) -> bool:
    return all(way in (SAME, ONE) for way in ways)


def ways_of(layout: Layout, width: int) -> tuple[str, ...]:
    """How each operand steps."""
    shape, own = layout.shape, layout.own()
    ways = []
    for strides, start in zip(layout.strides, layout.starts, strict=True):
        *outer, step = strides
        if not any(strides) and not start:
            ways.append(SAME if prod(shape) == 1 else ONE)
        elif strides == own and not start:
            ways.append(SAME)
        elif shape[-1] % width:
            ways.append(EACH)
        elif step == 0:
            ways.append(COLUMN)
        elif step == 1 and not any(s % width for s in (start, *outer)):
            ways.append(ROW)
        else:
            ways.append(APART)
    return tuple(ways)


def walks_of(layout: Layout, ways: Sequence[str]) -> tuple[tuple[int, ...], list[Any]]:
    """Which walk each operand has, or -1, and the strides, step and start of each walk."""
    found: dict[tuple, int] = {}
    walks = []
    for strides, start, way in zip(layout.strides, layout.starts, ways, strict=True):
        walk = strides[:-1], strides[-1] if way in (EACH, APART) else 0, start
        walks.append(-1 if way in (SAME, ONE) else found.setdefault(walk, len(found)))
    return tuple(walks), [part for walk in found for part in walk]


def begun(w: int) -> str:
    """Where a walk enters a row."""
    return f"b{w} + spot(row, sizes, s{w}, count)"


_numbers = count()  # of texts


# --- the text of kernels --------------------------------------------------------------------------


@cache
def _kernel(task: Task, ways: tuple[str, ...], walks: tuple[int, ...], width: int) -> Callable:
    """(*operands, *results, *numbers, n, inner, sizes, count, *(strides, step, start of walks))"""
    scope: dict[str, Any] = {"cuda": cuda, "div32": div32, "mod32": mod32, "spot": spot}
    scope |= {"load": Intrinsic("load", width), "store": Intrinsic("store", width)}
    scope |= {"element": task.element, "takes_effect": takes_effect}
    text = "\n".join(Text(task, ways, walks, width).lines())
    what = task.name if task.name == "fused" else f"elementwise {task.name}"
    made = from_text(text, f"{what} on CUDA {next(_numbers)}", "kernel", scope)
    made.__name__ = task.name
    return made


class Text:
    """Lines of a kernel of a task, for operands that step in these ways."""

    def __init__(self, task: Task, ways: Sequence[str], walks: Sequence[int], width: int):
        self.task, self.ways, self.walks, self.width = task, ways, walks, width
        self.places = sorted({walks[k] for k in task.needed if walks[k] >= 0})

    def lines(self) -> list[str]:
        """All of it; see `_kernel`."""
        lines = [f"at = cuda.grid(1) * {self.width}", "if at >= n:", "    return", *self.begin()]
        vector = [*self.same("at"), *self.others("at"), *self.computed(), *self.stored("at")]
        if EACH in self.ways:
            lines += ["row = div32(at, inner)", "column = at - row * inner"]
            lines += ["rows = sizes[count - 1]", "inside = mod32(row, rows)"]
            lines += [f"q{w} = {begun(w)} + column * t{w}" for w in self.places]
        if self.places and EACH not in self.ways:
            lines += vector
        else:
            single = [*self.single("i"), *(self._advance() if EACH in self.ways else ())]
            lines += [f"if at + {self.width} <= n:", *indented(vector)]
            lines += ["else:", "    for i in range(at, n):", *indented(single, 2)]
        return [f"def kernel({', '.join(self.head(['n']))}):", *indented(lines)]

    def head(self, more: Sequence[str]) -> list[str]:
        """The parameters: some `more` stand behind the numbers."""
        task = self.task
        names = [*(f"x{k}" for k in range(task.operands)), *(f"y{q}" for q in range(self._results))]
        names += [*(f"p{k}" for k in range(task.numbers)), *more]
        parts = ("s{}", "t{}", "b{}")
        walks = [part.format(w) for w in range(max(self.walks, default=-1) + 1) for part in parts]
        return [*names, "inner", "sizes", "count", *walks] if walks else names

    @property
    def _results(self) -> int:
        return len(self.task.guarded)

    def begin(self) -> list[str]:
        """What is read once."""
        status = self.task.status
        lines = [f"one{k} = x{k}[0]" for k in self.task.needed if self.ways[k] == ONE]
        return lines + ([f"takes = takes_effect(x{status}[0])"] if status >= 0 else [])

    def same(self, at: str, mark: str = "") -> list[str]:
        """Loads that need no place: they are under way before others. `mark` ends names."""
        own = (k for k in self.task.needed if self.ways[k] == SAME)
        return [f"a{k}{mark} = {self._loaded(k, at)}" for k in own]

    def _loaded(self, k: int, place: str) -> str:
        return f"load(x{k}, {place})" if self.width > 1 else f"(x{k}[{place}],)"

    def others(self, at: str, mark: str = "") -> list[str]:
        ways, walks, needed, width = self.ways, self.walks, self.task.needed, self.width
        lines: list[str] = []
        each = [k for k in needed if ways[k] == EACH]
        if not each:
            lines += self._spots(f"{at} // {width}", f"inner // {width}", width)
        for e in range(width if each else 0):
            lines += [f"e{k}_{e} = x{k}[q{walks[k]}]" for k in each]
            lines += self._advance() if e < width - 1 else []
        for k in needed:
            place = f"q{walks[k]}"
            if ways[k] == COLUMN:
                lines.append(f"one{k} = x{k}[{place}]")
            elif ways[k] == ROW:
                lines.append(f"a{k}{mark} = {self._loaded(k, f'{place} + column')}")
            elif ways[k] == APART:
                lines.append(f"{place}_{k} = {place} + column * t{walks[k]}")
                steps = (f"x{k}[{place}_{k} + {e} * t{walks[k]}]" for e in range(width))
                lines.append(f"a{k}{mark} = ({', '.join(steps)},)")
        return lines

    def _spots(self, at: str, inner: str, width: int = 1) -> list[str]:
        """Where operands that repeat have the element at a place."""
        if not self.places:
            return []
        lines = [f"row = div32({at}, {inner})", f"column = ({at} - row * ({inner})) * {width}"]
        return lines + [f"q{w} = {begun(w)}" for w in self.places]

    def computed(self, mark: str = "") -> list[str]:
        words = {ONE: "one{0}", COLUMN: "one{0}", EACH: "e{0}_{1}"}
        lines = []
        for e in range(self.width):
            given = [words.get(self.ways[k], f"a{{0}}{mark}[{{1}}]") for k in self.task.needed]
            given = [w.format(k, e) for w, k in zip(given, self.task.needed, strict=True)]
            lines.append(f"o{e} = {self._element(given)}")
        return lines

    def _element(self, given: Sequence[str]) -> str:
        word = f"element({', '.join([*given, *(f'p{k}' for k in range(self.task.numbers))])})"
        return word if self.task.results else f"({word},)"

    def stored(self, at: str) -> list[str]:
        lines = []
        for q in range(self._results):
            values = self.values(q)
            line = f"store(y{q}, {at}, {values})" if self.width > 1 else f"y{q}[{at}] = {values}[0]"
            lines += self._guarded(q, line)
        return lines

    def values(self, q: int) -> str:
        """Neighbours of a result."""
        return f"({', '.join(f'o{e}[{q}]' for e in range(self.width))},)"

    def _guarded(self, q: int, line: str) -> list[str]:
        return ["if takes:", f"    {line}"] if self.task.guarded[q] else [line]

    def single(self, at: str) -> list[str]:
        """The same of one element."""
        words = {
            ONE: "one{0}",
            EACH: "x{0}[q{1}]",
            COLUMN: "x{0}[q{1}]",
            ROW: "x{0}[q{1} + column]",
        }
        ways, walks = self.ways, self.walks
        given = [words.get(ways[k], f"x{{0}}[{at}]").format(k, walks[k]) for k in self.task.needed]
        lines = [] if EACH in ways else self._spots(at, "inner")
        lines.append(f"o = {self._element(given)}")
        for q in range(self._results):
            lines += self._guarded(q, f"y{q}[{at}] = o[{q}]")
        return lines

    def _advance(self) -> list[str]:
        """To the next element of a row, or the first of the next one."""
        lines = ["column += 1", *(f"q{w} += t{w}" for w in self.places)]
        lines += ["if column == inner:", "    column = 0", "    row += 1", "    inside += 1"]
        lines += [f"    q{w} += s{w}[count - 1] - inner * t{w}" for w in self.places]
        lines += ["    if inside == rows:", "        inside = 0"]
        return lines + [f"        q{w} = {begun(w)}" for w in self.places]
