"""Elementwise kernels: a scalar function over vectors of 16 bytes, one a thread.

One launcher, `elementwise`, for any number of operands that broadcast. The text of a kernel is
written out for the ways in which its operands step (`Way`), once for each combination that occurs,
and compiled like any other function. Two kinds of kernel:

- *flat*: every operand has the result's elements, or just one.
- *layered*: some operand repeats along axes of the result. A vector's row and column give the
  places of the others: one vector, one element for all, or an element each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

from opstep.kernels.pointwise.broadcast import collapse
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.runtime.device.cuda.compiling.names import cuda, div32, mod32
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text

THREADS = 256  # of a block

# How an operand steps along a vector of the result's elements.
SAME = "same"  # it has the result's elements
ONE = "one"  # it has one element
ROW = "row"  # neighbours, which form a vector too
COLUMN = "column"  # one element for the whole vector
EACH = "each"  # anything else: element by element


def elementwise(
    f: Callable, name: str, operands: Sequence[Arg], y: Arg, numbers: Sequence[int | float] = ()
) -> Grid | None:
    """A launch of y = f(*operands, *numbers), or None where there are too many elements for it.

    f is a function of scalars in plain Python; operands broadcast to y.
    """
    width = vector_width(operands, y)
    layout = collapse(y.shape, [a.shape for a in operands])
    ways = ways_of(layout.shape, layout.strides, width)
    vectors = -(-y.size // width)
    if all(way in (SAME, ONE) for way in ways):
        kernel = flat_kernel(f, name, ways, len(numbers), width)
        args = (*operands, y, *numbers, y.size)
        return Grid(kernel, *args, grid=-(-vectors // THREADS), block=THREADS)
    if y.size >= LIMIT * (1 if EACH in ways else width):
        return None
    kernel = layered_kernel(f, name, ways, len(numbers), width)
    *sizes, inner = layout.shape
    steps = []
    for way, strides in zip(ways, layout.strides, strict=True):
        if way in (ROW, COLUMN, EACH):
            steps += [strides[:-1], strides[-1], 0]
    args = (*operands, y, *numbers, y.size, inner, tuple(sizes), len(sizes), *steps)
    return Grid(kernel, *args, grid=-(-vectors // THREADS), block=THREADS)


def gathered(f: Callable, name: str, x: Arg, y: Arg, sizes, strides, start: int) -> Grid | None:
    """A launch of y = f(x), y taken row by row: its sizes are merged axes, beside x's strides."""
    width = vector_width((x,), y)
    vectors = -(-y.size // width)
    if y.size >= LIMIT:
        return None
    kernel = layered_kernel(f, name, (EACH,), 0, width)
    *outer, inner = sizes if len(sizes) > 1 else (1, *sizes)
    *around, step = strides if len(strides) > 1 else (0, *strides)
    args = (x, y, y.size, inner, tuple(outer), len(outer), tuple(around), step, start)
    return Grid(kernel, *args, grid=-(-vectors // THREADS), block=THREADS)


def vector_width(operands: Sequence[Arg], y: Arg) -> int:
    """Elements of a vector: the widest type fills 16 bytes; beside narrow ones it may take 32."""
    sizes = [a.stored.itemsize for a in (*operands, y)]
    return max(16 // max(sizes), min(4, 16 // min(sizes)))


def ways_of(shape, strides, width: int) -> tuple[str, ...]:
    own = [0] * len(shape)
    step = 1
    for k in reversed(range(len(shape))):
        own[k], step = (step if shape[k] != 1 else 0), step * shape[k]
    aligned = shape[-1] % width == 0
    ways = []
    for s in strides:
        if not any(s):
            ways.append(ONE)
        elif list(s) == own:
            ways.append(SAME)
        elif aligned and s[-1] == 0:
            ways.append(COLUMN)
        elif aligned and s[-1] == 1 and all(step % width == 0 for step in s[:-1]):
            ways.append(ROW)
        else:
            ways.append(EACH)
    if EACH in ways:  # rows do not end where vectors do: the others that repeat go along
        ways = [EACH if way in (ROW, COLUMN) else way for way in ways]
    if prod(shape) == 1:
        ways = [SAME for _ in ways]
    return tuple(ways)


# --- the text of kernels --------------------------------------------------------------------------


@cache
def flat_kernel(f: Callable, name: str, ways: tuple[str, ...], numbers: int, width: int):
    """(*operands, y, *numbers, n)"""
    xs = [f"x{k}" for k in range(len(ways))]
    ps = [f"p{k}" for k in range(numbers)]
    text = [f"def kernel({', '.join([*xs, 'y', *ps, 'n'])}):", f"    at = cuda.grid(1) * {width}"]
    text += [f"    one{k} = x{k}[0]" for k, way in enumerate(ways) if way == ONE]

    def applied(element: str) -> str:
        parts = [f"one{k}" if way == ONE else element.format(k=k) for k, way in enumerate(ways)]
        return f"f({', '.join([*parts, *ps])})"

    text.append(f"    if at + {width} <= n:")
    text += [f"        a{k} = load(x{k}, at)" for k, way in enumerate(ways) if way == SAME]
    values = ", ".join(applied(f"a{{k}}[{e}]") for e in range(width))
    text += [f"        store(y, at, ({values},))", "    else:", "        for i in range(at, n):"]
    text += [f"            y[i] = {applied('x{k}[i]')}"]
    return _compiled(text, f, name, width)


@cache
def layered_kernel(f: Callable, name: str, ways: tuple[str, ...], numbers: int, width: int):
    """(*operands, y, *numbers, n, inner, sizes, count, *(strides, step, start of each repeating))

    `inner` elements a row, rows of `count` axes of `sizes`.
    """
    repeating = [k for k, way in enumerate(ways) if way in (ROW, COLUMN, EACH)]
    xs = [f"x{k}" for k in range(len(ways))]
    ps = [f"p{k}" for k in range(numbers)]
    steps = [part.format(k) for k in repeating for part in ("strides{}", "step{}", "start{}")]
    head = ", ".join([*xs, "y", *ps, "n", "inner", "sizes", "count", *steps])
    text = [f"def kernel({head}):", "    vector = cuda.grid(1)", f"    at = vector * {width}"]
    text += [f"    one{k} = x{k}[0]" for k, way in enumerate(ways) if way == ONE]
    text += ["    if at >= n:", "        return"]
    if EACH in ways:
        text += _each_by_each(ways, ps, repeating, width)
        return _compiled(text, f, name, width)
    text += [f"    across = inner // {width}", "    row = div32(vector, across)"]
    text += [f"    column = (vector - row * across) * {width}"]
    for k in repeating:
        text.append(f"    q{k} = start{k} + spot(row, sizes, strides{k}, count)")
    values = []
    for k, way in enumerate(ways):
        if way == COLUMN:
            text.append(f"    one{k} = x{k}[q{k}]")
        elif way != ONE:
            place = f"q{k} + column" if way == ROW else "at"
            text.append(f"    a{k} = load(x{k}, {place})")
    for e in range(width):
        parts = [f"one{k}" if way in (ONE, COLUMN) else f"a{k}[{e}]" for k, way in enumerate(ways)]
        values.append(f"f({', '.join([*parts, *ps])})")
    text.append(f"    store(y, at, ({', '.join(values)},))")
    return _compiled(text, f, name, width)


def _each_by_each(ways, ps: list[str], repeating: list[int], width: int) -> list[str]:
    """The rest of a layered kernel whose vectors reach from row to row."""
    text = ["    row = div32(at, inner)", "    column = at - row * inner"]
    text += ["    rows = sizes[count - 1]", "    inside = mod32(row, rows)"]
    for k in repeating:
        place = f"start{k} + spot(row, sizes, strides{k}, count)"
        text.append(f"    q{k} = {place} + column * step{k}")
    advance = ["column += 1", *(f"q{k} += step{k}" for k in repeating)]
    advance += ["if column == inner:", "    column = 0", "    row += 1", "    inside += 1"]
    advance += [f"    q{k} += strides{k}[count - 1] - inner * step{k}" for k in repeating]
    advance += ["    if inside == rows:", "        inside = 0"]
    advance += [f"        q{k} = start{k} + spot(row, sizes, strides{k}, count)" for k in repeating]

    def applied(element: str, flat: str) -> str:
        names = {SAME: flat, ONE: "one{k}", EACH: "x{k}[q{k}]" if not element else "e{k}" + element}
        return f"f({', '.join([*(names[way].format(k=k) for k, way in enumerate(ways)), *ps])})"

    text.append(f"    if at + {width} <= n:")
    text += [f"        a{k} = load(x{k}, at)" for k, way in enumerate(ways) if way == SAME]
    for e in range(width):
        text += [f"        e{k}_{e} = x{k}[q{k}]" for k in repeating]
        if e < width - 1:
            text += [f"        {line}" for line in advance]
    values = [applied(f"_{e}", "a{k}" + f"[{e}]") for e in range(width)]
    text += [f"        store(y, at, ({', '.join(values)},))", "    else:"]
    text += ["        for i in range(at, n):", f"            y[i] = {applied('', 'x{k}[i]')}"]
    return [*text, *(f"            {line}" for line in advance)]


def _compiled(text: list[str], f: Callable, name: str, width: int) -> Callable:
    scope = {"f": f, "cuda": cuda, "div32": div32, "mod32": mod32, "spot": spot}
    scope |= {"load": Intrinsic("load", width), "store": Intrinsic("store", width)}
    made = from_text("\n".join(text), f"elementwise {name}", "kernel", scope)
    made.__name__ = name
    return made
