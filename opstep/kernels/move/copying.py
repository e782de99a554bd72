"""Strided block copies: what transpose, slice, concat, pad and their like come down to.

A block is a box of elements with a stride for each axis in the source and in the target. Axes that
lie behind each other in both are merged, then one of two kernels runs:

- `copy_rows`: runs along the last axis, an odometer over the others;
- `copy_tiles`: the source is contiguous along another axis than the target (a transposition): tiles
  go through a small buffer, so that both sides are touched a cache line at a time.

Elements are moved as integers of their width, so types of one width share compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from opstep.kernels.move import cuda_copying as gpu
from opstep.kernels.move.cuda_copying import plane_of
from opstep.kernels.pointwise import broadcast
from opstep.kernels.pointwise.conversions import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import elementwise, itself
from opstep.kernels.rules.axes import strides_of
from opstep.kernels.rules.literals import bits_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import CARRIERS, Arg, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.strided import Places
from opstep.runtime.ir.types import DType, TensorType, i64

TILE = 32
_SHORT = 8  # elements of a row
_NEAR = 1 << 14  # bytes


def copy_segment(source, xs, target, ys, count):
    """`count` elements, with a loop of its own for each stride that vectorises."""
    if ys == 1 and xs == 1:
        for i in range(count):
            target[i] = source[i]
    elif ys == 1 and xs == 0:
        value = source[0]
        for i in range(count):
            target[i] = value
    elif ys == 1 and xs == -1:
        for i in range(count):
            target[i] = source[-i]
    else:
        for i in range(count):
            target[i * ys] = source[i * xs]


def counter_words(rank):
    """Words that a lane's odometer takes: `rank` + 2, and up to the end of its cache lines."""
    return (rank + 17) // 16 * 16


def set_odometer(at, row, rank, table):
    """Coordinates of a row in at[0:rank], its places in source and target in at[rank], at[rank +
    1].

    `table`: extents, source strides, target strides of the axes; then where the block starts in
    both.
    """
    px = table[3 * rank]
    py = table[3 * rank + 1]
    rest = row
    for j in range(rank):
        k = rank - 1 - j
        above = rest // table[k]
        at[k] = rest - above * table[k]
        px += at[k] * table[rank + k]
        py += at[k] * table[2 * rank + k]
        rest = above
    at[rank] = px
    at[rank + 1] = py


def advance_odometer(at, rank, table):
    """To the next row."""
    k = rank - 1
    while k >= 0:
        at[k] += 1
        at[rank] += table[rank + k]
        at[rank + 1] += table[2 * rank + k]
        if at[k] < table[k]:
            break
        at[rank] -= table[rank + k] * table[k]
        at[rank + 1] -= table[2 * rank + k] * table[k]
        at[k] = 0
        k -= 1


def copy_rows(x, y, count, xs, ys, rank, table, counters, lo, hi, lane):
    """Units are elements; a row is `count` of them."""
    at = offset(counters, lane * counter_words(rank))
    row = lo // count
    column = lo - row * count
    set_odometer(at, row, rank, table)
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        source = offset(x, at[rank] + column * xs)
        target = offset(y, at[rank + 1] + column * ys)
        copy_segment(source, xs, target, ys, m)
        left -= m
        column = 0
        advance_odometer(at, rank, table)


def copy_tiles(x, y, p, q, xq, yp, rank, table, counters, buffer, lo, hi, lane):
    """Planes of p x q elements, contiguous along p in the source and along q in the target.

    Units are tiles; a plane's tiles follow each other along q first.
    """
    at = offset(counters, lane * counter_words(rank))
    tile = offset(buffer, lane * (TILE * (TILE + 1)))
    across = (q + TILE - 1) // TILE
    down = (p + TILE - 1) // TILE
    plane = lo // (across * down)
    unit = lo - plane * across * down
    set_odometer(at, plane, rank, table)
    for _ in range(lo, hi):
        i = unit // across
        p0 = i * TILE
        q0 = (unit - i * across) * TILE
        np = min(TILE, p - p0)
        nq = min(TILE, q - q0)
        source = offset(x, at[rank] + p0 + q0 * xq)
        target = offset(y, at[rank + 1] + p0 * yp + q0)
        for b in range(nq):
            for a in range(np):
                tile[b * (TILE + 1) + a] = source[b * xq + a]
        for a in range(np):
            for b in range(nq):
                target[a * yp + b] = tile[b * (TILE + 1) + a]
        unit += 1
        if unit == across * down:
            unit = 0
            advance_odometer(at, rank, table)


# --- from a block to a launch ---------------------------------------------------------------------


def as_carrier(a: Arg) -> Arg:
    """The operand as integers of its width (one that stands in working memory stays as it is)."""
    if type(a) is not Arg or a.dtype in CARRIERS.values():
        return a
    return Arg(TensorType(CARRIERS[a.dtype.itemsize], a.shape), a.slot)


def as_carriers(*args: Arg) -> tuple[Arg, ...]:
    """All as integers of their width, unless one is converted to the type of the others: on a GPU
    as it is read, where halves are f32 meanwhile.
    """
    if any(isinstance(a, Arg) and type(a) is not Arg for a in args):
        return args
    if any(type(a) is Arg and a.stored is not a.dtype for a in args):
        return tuple(map(as_numbers, args))
    return tuple(map(as_carrier, args))


def carrier(dtype: DType) -> DType:
    """The integer type in which elements of `dtype` are moved."""
    return CARRIERS[dtype.itemsize]


def copy_block(
    x: Arg,
    y: Arg,
    shape: Sequence[int],
    x_strides: Sequence[int],
    y_strides: Sequence[int],
    x_start: int = 0,
    y_start: int = 0,
) -> list[Launch]:
    """Copies a box of that shape; strides and starts in elements. No launch for an empty box."""
    total = prod(shape)
    if total == 0:
        return []
    dims = merged(shape, x_strides, y_strides)
    cuda = partial(gpu.copy_block, x, y, dims, x_start, y_start)
    if type(x) is type(y) or x.dtype is not y.dtype:
        x, y = as_carrier(x), as_carrier(y)
        if x.dtype is not y.dtype:  # one of them is working memory, already converted
            x, y = _uncarried(x, y)
    plane = plane_of(dims)
    if plane is not None:
        return [_tiled(x, y, dims, plane, x_start, y_start, cuda)]
    *outer, (count, xs, ys) = _long_rows(dims, x.dtype.itemsize)
    table, counters = odometer(outer, x_start, y_start)
    args = (x, y, count, xs, ys, len(outer), table, counters)
    return [Launch(copy_rows, *args, units=total, cuda=cuda)]


def _long_rows(dims, itemsize: int) -> list[tuple[int, int, int]]:
    """The same box with a longer last axis, where rows are so short that the odometer takes more
    than they do. The axis before takes its place, in pieces that stay in a first-level cache.
    """
    if len(dims) == 1 or dims[-1][0] > _SHORT:
        return dims
    *outer, (n, xs, ys), last = dims
    most = _NEAR // (max(abs(xs), abs(ys), 1) * itemsize)
    piece = next((k for k in range(min(n, most), _SHORT, -1) if n % k == 0), 0)
    if not piece:
        return dims
    return [*outer, (n // piece, piece * xs, piece * ys), last, (piece, xs, ys)]


def filled(y: Arg, value: int | float) -> list[Launch]:
    """Writes one value everywhere: its bits as they are stored, or itself into working memory."""
    if type(y) is Arg:
        value = bits_of(value, y.stored)
        y = Arg(TensorType(carrier(y.stored), y.shape), y.slot)
    elif y.dtype.is_float:
        value = float(value)
    cuda = partial(elementwise, itself, "put", (), y, (value,))
    return [Launch(put, y, value, units=y.size, cuda=cuda)]


def put(y, value, lo, hi):
    for i in range(lo, hi):
        y[i] = value


def copy_places(x: Arg, y: Arg, places: Places) -> list[Launch]:
    """y = the elements of x at these places."""
    dims = [pair for axis in places.axes for pair in axis]
    shape = [n for n, _ in dims]
    return copy_block(x, y, shape, [step for _, step in dims], strides_of(shape), places.start)


def copy_all(x: Arg, y: Arg) -> list[Launch]:
    """All elements, in order."""
    return copy_block(x, y, (y.size,), (1,), (1,))


def _uncarried(x: Arg, y: Arg) -> tuple[Arg, Arg]:
    wanted = x.dtype if type(x) is not Arg else y.dtype
    return tuple(  # pyright: ignore[reportReturnType]
        Arg(TensorType(wanted, a.shape), a.slot) if type(a) is Arg else a for a in (x, y)
    )


def merged(
    shape: Sequence[int], x_strides: Sequence[int], y_strides: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(extent, source stride, target stride) of each axis, with neighbours merged; at least one."""
    layout = broadcast.merged(shape, (x_strides, y_strides), (0, 0))
    dims = zip(layout.shape, *layout.strides, strict=True)
    return [axis for axis in dims if axis[0] != 1] or [(1, 1, 1)]


def _tiled(x: Arg, y: Arg, dims, k: int, x_start: int, y_start: int, cuda) -> Launch:
    p, _, yp = dims[k]
    q, xq, _ = dims[-1]
    outer = [*dims[:k], *dims[k + 1 : -1]]
    table, counters = odometer(outer, x_start, y_start)
    buffer = Scratch(x.dtype, TILE * (TILE + 1), per_lane=True)
    tiles = -(-p // TILE) * -(-q // TILE) * prod(n for n, _, _ in outer)
    return Launch(
        copy_tiles,
        *(x, y, p, q, xq, yp, len(outer), table, counters, buffer),
        units=tiles,
        grain=max(1, 32768 // (TILE * TILE)),
        cuda=cuda,
    )


def odometer(outer, x_start: int = 0, y_start: int = 0) -> tuple[tuple[int, ...], Scratch]:
    """(table, counters) of `set_odometer` over axes of (extent, source stride, target stride)."""
    table = tuple(d[column] for column in range(3) for d in outer)
    return (*table, x_start, y_start), Scratch(i64, counter_words(len(outer)), per_lane=True)


class Showing(Op):
    """Base of ops whose results show elements of x, which `shows` names; run by itself, such an op
    copies them.
    """

    traits = Traits(moves=True)

    @classmethod
    def cpu(cls, x, *ys, **attrs):
        launches: list[Launch] = []
        for y, places in zip(ys, cls.shows(Places.whole(x.shape), **attrs), strict=True):
            if places.shape != y.shape:
                given = f"{list(places.shape)}, not {list(y.shape)}"
                raise Mismatch(f"the bounds reach beyond the extents: {given}", 0)
            launches += copy_places(x, y, places)
        return launches
