"""Borders, on CUDA, in one launch; see `kernels.move.padding`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from opstep.kernels.move.cuda_copying import reinterpreted
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.rules.axes import strides_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import CARRIERS, Arg, Grid
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text

THREADS = 256  # of a block


def pad(x: Arg, y: Arg, before: Sequence[int], mode: str, value: int) -> Grid | None:
    """y = x with `before` elements before each axis, and what y has room for after it: of the bits
    `value`, or as the mode takes them from x.
    """
    if y.size >= LIMIT or x.rank == 0 or x.stored is not x.dtype:
        return None
    carrier = CARRIERS[x.stored.itemsize]
    width = 16 // carrier.itemsize
    axes = _merged(x.shape, y.shape, before)
    table = tuple(axis[k] for k in range(4) for axis in axes[:-1])
    n, inner, first, _ = axes[-1]
    return Grid(
        pad_kernel(width, mode),
        *(reinterpreted(x, carrier), reinterpreted(y, carrier), value),
        *(y.size, n, inner, first, len(axes) - 1, table),
        grid=-(-y.size // (width * THREADS)),
        block=THREADS,
    )


def _merged(shape, padded, before) -> list[tuple[int, int, int, int]]:
    """(extent of y, of x, elements before, stride in x) of each axis; those without a border are
    merged with the next one's."""
    axes: list[tuple[int, int, int, int]] = []
    strides = strides_of(shape)
    for n, m, b, step in zip(shape, padded, before, strides, strict=True):
        if axes and axes[-1][2] == 0 and axes[-1][0] == axes[-1][1] and b == 0 and n == m:
            rows = axes.pop()[0]
            axes.append((rows * m, rows * n, 0, step))
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
def row_source(mode: str) -> Callable:
    inside = source_of(mode)

    def row_source(row, rank, table):
        """The beginning in x of a row of y; below 0 for one in a border that has none."""
        p = 0
        for back in range(rank):
            axis = rank - 1 - back
            above = div32(row, table[axis])
            at = inside(row - above * table[axis] - table[2 * rank + axis], table[rank + axis])
            if at < 0:
                return -1
            p += at * table[3 * rank + axis]
            row = above
        return p

    return row_source


@cache
def pad_kernel(width: int, mode: str) -> Callable:
    """A vector of y a thread, element by element: (x, y, value, size, n, inner, first, rank,
    table); rows of n elements, of which `inner` from `first` on are of x.
    """
    element = [
        "at_x = inside(column - first, inner)",
        "v{} = x[p + at_x] if p >= 0 and at_x >= 0 else value",
        "column += 1",
        "if column == n:",
        "    column = 0",
        "    row += 1",
        "    p = row_place(row, rank, table)",
    ]
    text = [
        "def pad(x, y, value, size, n, inner, first, rank, table):",
        f"    at = cuda.grid(1) * {width}",
        "    if at >= size:",
        "        return",
        "    row = div32(at, n)",
        "    column = at - row * n",
        "    p = row_place(row, rank, table)",
        f"    if at + {width} <= size:",
        *(f"        {line.format(k)}" for k in range(width) for line in element),
        f"        store(y, at, ({', '.join(f'v{k}' for k in range(width))},))",
        "    else:",
        "        for i in range(at, size):",
        *(f"            {line.format('')}" for line in element),
        "            y[i] = v",
    ]
    scope = {"cuda": cuda, "div32": div32, "row_place": row_source(mode)}
    scope["inside"] = source_of(mode)
    scope["store"] = Intrinsic("store", width)
    return from_text("\n".join(text), f"pad {mode}", "pad", scope)
