"""Tensors with a border, and rolled ones: of each axis a place of the result is one of x, which a
mode gives, or has a value of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from opstep.kernels.move.copying import as_carrier, copy_all, copy_segment
from opstep.kernels.pointwise.cuda_offsets import LIMIT, floor_quotient
from opstep.kernels.rules.axes import strides_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text

THREADS = 256  # of a block


def padded(x: Arg, y: Arg, before: Sequence[int], mode: str, value: int = 0) -> list[Launch]:
    """y = x with `before` elements before each axis, and what y has room for after it: of the bits
    `value`, or as the mode takes them from x.
    """
    if x.rank == 0:
        return copy_all(x, y)
    axes = _merged(x.shape, y.shape, before, mode in ("constant", "wrap"))

    def about(outer: list) -> tuple:
        table = tuple(axis[k] for k in range(4) for axis in outer)
        return (*axes[-1][:3], len(outer), table)

    def on_gpu() -> Grid | None:
        if y.size >= LIMIT or x.stored is not x.dtype:
            return None
        width = 16 // x.stored.itemsize
        words = (as_carrier(x), as_carrier(y), value, y.size)
        grid = -(-y.size // (width * THREADS))
        return Grid(
            border_of_vectors(width, mode), *words, *about(axes[1:-1]), grid=grid, block=THREADS
        )

    kernel = border_of_rows(mode)
    args = (as_carrier(x), as_carrier(y), value, *about(axes[:-1]))
    return [Launch(kernel, *args, units=y.size, cuda=on_gpu)]


def _merged(shape, padded, before, joins: bool) -> list[tuple[int, int, int, int]]:
    """(extent of y, of x, elements before, stride in x) of each axis. Those without a border are
    merged with the one before, if that has none either, or `joins` says that it may have one.
    """
    axes: list[tuple[int, int, int, int]] = [(1, 1, 0, 0)]  # there is always a row
    for n, m, b, step in zip(shape, padded, before, strides_of(shape), strict=True):
        if len(axes) > 1 and b == 0 and n == m and (joins or axes[-1][:1] == axes[-1][1:2]):
            rows, inner, first, _ = axes.pop()
            axes.append((rows * m, inner * n, first * n, step))
        else:
            axes.append((m, n, b, step))
    return axes


@cache
def source_of(mode: str) -> Callable:
    """(place, n): the place of a border among the n of x; below 0 where the value stands."""

    def constant(at, n):
        return at if at < n else -1

    def edge(at, n):
        return min(max(at, 0), n - 1)

    def reflect(at, n):
        at = abs(at)
        return at if at < n else 2 * (n - 1) - at

    def wrap(at, n):
        at = at + n if at < 0 else at
        return at if at < n else at - n

    return {"constant": constant, "edge": edge, "reflect": reflect, "wrap": wrap}[mode]


@cache
def row_source(mode: str, quotient: Callable) -> Callable:
    inside = source_of(mode)

    def row_source(row, count, rank, table):
        """The beginning in x of a row of y, over the first `count` axes of `rank`; below 0 for one
        in a border that has none.
        """
        p = 0
        for back in range(count):
            axis = count - 1 - back
            above = quotient(row, table[axis])
            at = inside(row - above * table[axis] - table[2 * rank + axis], table[rank + axis])
            if at < 0:
                return -1
            p += at * table[3 * rank + axis]
            row = above
        return p

    return row_source


@cache
def border_of_rows(mode: str) -> Callable:
    """On the CPU: (x, y, value, n, inner, first, rank, table, lo, hi); rows of n elements, of which
    `inner` from `first` on are of x. Units are elements.
    """
    inside, row_place = source_of(mode), row_source(mode, floor_quotient)
    onward = {"constant": 0, "edge": 0, "reflect": -1, "wrap": 1}[mode]  # in a border

    def pad(x, y, value, n, inner, first, rank, table, lo, hi):
        k = rank - 1
        i = lo
        while i < hi:
            row = i // n
            column = i - row * n
            plane = row // table[k]
            row -= plane * table[k]
            corner = row_place(plane, k, rank, table)
            stop = min(hi, (plane + 1) * table[k] * n)
            while i < stop:
                p = -1
                if corner >= 0:
                    at = inside(row - table[2 * rank + k], table[rank + k])
                    p = corner + at * table[3 * rank + k] if at >= 0 else -1
                end = min(stop, i - column + n)
                while i < end:
                    at = column - first
                    step = onward
                    count = end - i
                    if at < 0:
                        count = min(-at, count)
                    elif at < inner:
                        count = min(inner - at, count)
                        step = 1
                    place = inside(at, inner) if p >= 0 else -1
                    if place >= 0:
                        copy_segment(offset(x, p + place), step, offset(y, i), 1, count)
                    else:
                        for j in range(i, i + count):
                            y[j] = value
                    i += count
                    column += count
                row += 1
                column = 0

    return pad


@cache
def border_of_vectors(width: int, mode: str) -> Callable:
    """On CUDA, a vector of y a thread, element by element: (x, y, value, size, n, inner, first,
    rank, table); rows as above.
    """
    element = [
        "at_x = inside(column - first, inner)",
        "v{} = x[p + at_x] if p >= 0 and at_x >= 0 else value",
        "column += 1",
        "if column == n:",
        "    column = 0",
        "    row += 1",
        "    p = row_place(row, rank, rank, table)",
    ]
    text = [
        "def pad(x, y, value, size, n, inner, first, rank, table):",
        f"    at = cuda.grid(1) * {width}",
        "    if at >= size:",
        "        return",
        "    row = div32(at, n)",
        "    column = at - row * n",
        "    p = row_place(row, rank, rank, table)",
        f"    if at + {width} <= size:",
        *(f"        {line.format(k)}" for k in range(width) for line in element),
        f"        store(y, at, ({', '.join(f'v{k}' for k in range(width))},))",
        "    else:",
        "        for i in range(at, size):",
        *(f"            {line.format('')}" for line in element),
        "            y[i] = v",
    ]
    scope = {"cuda": cuda, "div32": div32, "row_place": row_source(mode, div32)}
    scope["inside"] = source_of(mode)
    scope["store"] = Intrinsic("store", width)
    return from_text("\n".join(text), f"pad {mode}", "pad", scope)
