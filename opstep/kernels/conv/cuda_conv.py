"""Convolutions on CUDA: which kernel, which tiles, and how the terms of long sums are shared.

All is chosen from shapes, dtypes and the architecture, never from what else runs. Sequences, images
and volumes take the same kernels: see `cuda_tiles`. Halves take them too, in f32, where
`cuda_blocks` has nothing for them: with ``--kernels auto`` cuDNN is there for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from opstep.kernels.conv import cuda_depthwise
from opstep.kernels.conv.correlation import Geometry
from opstep.kernels.conv.cuda_blocks import (
    BITS,
    Lines,
    arranged,
    blocks_of,
    correlate_in_blocks,
    correlate_seen,
    in_blocks,
    in_fours,
    turned,
    within_reach,
)
from opstep.kernels.conv.cuda_direct import (
    THREADS,
    cleared,
    convolve_each,
    sum_numbers,
    turn_filters,
)
from opstep.kernels.conv.cuda_edges import mended
from opstep.kernels.conv.cuda_tiles import (
    HALF,
    LOWER,
    NEVER,
    convolve_tiles,
    filter_tiles,
    shares_added,
    targets_of,
)
from opstep.kernels.conv.edges import only_bias
from opstep.kernels.conv.transposed import phases_of
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.cuda_gemm import halves_of, product
from opstep.kernels.matmul.cuda_gemm_tiles import PLAIN, Pace, cheapest
from opstep.kernels.matmul.cuda_tile import LINE, Tile
from opstep.kernels.matmul.products import Side
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch

_MOST_TAPS = 30  # planes, rows and columns of a filter that bits can stand for
_MOST_TERMS = 1 << 18  # of a table
_FEW_TERMS = 16  # of a sum for each weight of a filter by itself
_LOOKUP = 5e-5  # microseconds, at an element of an image


def _with_lookup(pace: Pace) -> Pace:
    """What a step takes where one operand is looked up, too."""
    tile = pace.tile
    return pace._replace(work=pace.work + _LOOKUP * tile.columns * tile.steps)


_PACES = {
    size: [_with_lookup(p) for p in paces if p.tile.threads >= p.tile.columns]
    for size, paces in PLAIN.items()
}
_PACES[4].append(_with_lookup(Pace(Tile(32, 128, 16, 4, 8), 1.0, 0.3, 4)))


class Sight(NamedTuple):
    """Where outputs of a convolution look, as kernels take it: see `cuda_tiles`."""

    table: tuple[int, ...]
    row_starts: tuple[int, ...]
    missing_rows: tuple[int, ...]
    missing_columns: tuple[int, ...]


def _volume(x: Arg) -> tuple[int, int, int]:
    """Planes, rows and columns."""
    return (1, 1, *x.shape[2:])[-3:]  # pyright: ignore[reportReturnType]


def _sight(g: Geometry, x: Arg, channels: int, multiple: int) -> Sight:
    """`multiple`: of which the table's terms are a number. Places are so modulo 2**32, for those
    that lie far outside are never read.
    """
    size, (deep, rows, columns) = _volume(x), g.axes
    inside = _is_inside(g, size)
    below, beside = len(deep.places), len(deep.places) + len(rows.places)
    table = [
        (0 if inside else (1 << t | 1 << below + r | 1 << beside + s) << 32)
        + (((c * size[0] + plane) * size[1] + row) * size[2] + column + HALF & LOWER)
        for c in range(channels)
        for t, plane in enumerate(deep.places)
        for r, row in enumerate(rows.places)
        for s, column in enumerate(columns.places)
    ]
    table += [NEVER << 32 | HALF] * (-len(table) % multiple)

    def missing(axis: int, first: int) -> list[int]:
        a = g.axes[axis]
        return [
            0 if inside else sum(
                1 << first + k
                for k, place in enumerate(a.places)
                if not 0 <= at * a.stride + place < size[axis]
            )
            for at in range(a.out)
        ]  # fmt: skip

    above, across = missing(0, 0), missing(1, below)
    return Sight(
        tuple(table),
        tuple(
            ((z * deep.stride * size[1] + i * rows.stride) * size[2] + HALF & LOWER) - HALF
            for z in range(deep.out)
            for i in range(rows.out)
        ),
        tuple(NEVER | a | b for a in above for b in across),
        tuple(missing(2, beside)),
    )


def _is_inside(g: Geometry, size: Sequence[int]) -> bool:
    """Whether each output sees pixels of the image alone."""
    return all(
        min(a.places, default=0) >= 0 and (a.out - 1) * a.stride + max(a.places, default=0) < n
        for a, n in zip(g.axes, size, strict=True)
    )


def sees_points(g: Geometry, x: Arg) -> bool:
    """Whether each output sees the pixel at its own place alone."""
    same = all(a.places == (0,) and a.stride == 1 for a in g.axes)
    return same and tuple(a.out for a in g.axes) == _volume(x)


def _sees_all(g: Geometry, x: Arg) -> bool:
    """Whether there is one output of an image, which sees all of it."""
    places = tuple(a.places for a in g.axes)
    return _count(g)[0] == 1 and places == tuple(tuple(range(n)) for n in _volume(x))


def _count(g: Geometry) -> tuple[int, int]:
    """(outputs of an image, places under a filter)."""
    return prod(a.out for a in g.axes), prod(len(a.places) for a in g.axes)


def correlate(
    x: Arg,
    w: Arg | Scratch,
    bias: Arg | None,
    y: Arg,
    groups: int,
    g: Geometry,
    w_start: int = 0,
) -> list[Grid]:
    """x [N, groups*C, …] under filters w [groups*K, C, …] into y [N, groups*K, …], of one to three
    axes.
    """
    images, channels, filters = x.shape[0], x.shape[1] // groups, y.shape[1] // groups
    area, taps = _count(g)
    terms, pixels = channels * taps, images * area
    if not pixels or not filters:
        return []
    if isinstance(w, Arg) and cuda_depthwise.is_for(x, y, groups, g):
        return [cuda_depthwise.convolve(x, w, bias, y, g)]
    halves = halves_of(x, w)
    near = isinstance(w, Arg) and within_reach(x, g)
    blocked = near and in_blocks(halves, filters, channels)
    even = not blocked or area % 4 == 0  # what is copied in pieces of four
    matrices = bool(halves) and groups == 1 and isinstance(w, Arg)
    if matrices and _sees_all(g, x):
        rows, columns = Side(x, terms, 1, ()), Side(w, 1, terms, ())
        return product(rows, columns, y, (), images, filters, terms, bias)
    if matrices and bias is None and even and sees_points(g, x):
        return _pointwise(x, Side(w, channels, 1, (0,)), y)
    if not fits(x, g, terms, pixels):
        return [_each(x, w, bias, y, groups, g, w_start)]
    blocked = blocked or (near and in_fours(halves, filters, channels, taps, groups))
    if blocked and isinstance(w, Arg):
        return correlate_in_blocks(x, w, bias, y, groups, g)
    tile, parts = cheapest(_PACES[x.dtype.itemsize], filters, pixels, terms, groups)
    assert isinstance(tile, Tile)
    if g.scattered:  # others write to the same result
        parts = 1
    part_steps = -(-terms // (parts * tile.steps)) * tile.steps
    parts = -(-terms // part_steps)
    plane, run = prod(y.shape[2:]), tile.run
    y_wide = 1 if g.scattered or area % run else run
    x_wide = run if area % run == 0 and sees_points(g, x) else 1
    kernel = convolve_tiles(tile, 1 if terms % run else run, x_wide, y_wide)
    sums = Scratch(y.dtype, parts * y.size) if parts > 1 else y
    tiles = -(-filters // tile.rows), -(-pixels // tile.columns)
    launches = [
        Grid(
            *(kernel, x, w, bias or x, sums, w_start, *_sight(g, x, channels, tile.steps)),
            *(targets_of(g), groups, filters, terms, pixels, area, g.out[1]),
            *(*_steps(x, groups, g), plane, g.step[1], *tiles, parts, part_steps, y.size),
            bias is not None and parts == 1,
            **_cut(tile, prod(tiles) * parts * groups),
        )
    ]
    return launches + shares_added(sums, bias, y, parts)


def _cut(tile: Tile, blocks: int) -> dict[str, int]:
    """A launch of so many blocks of that tile."""
    return {"grid": blocks, "block": tile.threads, "blocks": _blocks(tile)}


def _pointwise(x: Arg, w: Side, y: Arg) -> list[Grid]:
    """y [N, K, pixels] = w [K, C] by x [N, C, pixels], of halves: an image is a matrix."""
    images, channels, plane = x.shape[0], x.shape[1], prod(x.shape[2:])
    seen = Side(x, plane, 1, (channels * plane,))
    return product(w, seen, y, (images,), y.shape[1], plane, channels)


def fits(x: Arg, g: Geometry, terms: int, pixels: int) -> bool:
    """Whether bits and tables of places serve."""
    few = sum(len(a.places) for a in g.axes) <= _MOST_TAPS or _is_inside(g, _volume(x))
    rows = g.axes[0].out * g.axes[1].out
    supported = x.dtype.is_float and x.size and 0 < terms <= _MOST_TERMS and rows <= _MOST_TERMS
    supported = supported and prod(x.shape[1:]) < LIMIT // 4
    return bool(supported and few and pixels + 4096 < LIMIT)


def _blocks(tile: Tile) -> int:
    """That a multiprocessor holds: those for which all numbers stay in registers."""
    numbers = tile.thread_rows * tile.thread_columns
    numbers += (tile.rows + tile.columns) * tile.steps // tile.threads
    registers = numbers * tile.itemsize // 4
    threads = 512 if registers <= 80 else 384 if registers <= 96 else 256
    return threads // tile.threads


def _steps(x: Arg, groups: int, g: Geometry) -> tuple[int, int, int]:
    """Elements of x from image to image, group to group, output column to column."""
    image = prod(x.shape[1:])
    return image, image // groups, g.stride[1]


def _each(x, w, bias, y, groups: int, g: Geometry, w_start: int) -> Grid:
    size = x.shape[0] * y.shape[1] * _count(g)[0]
    places, taps, stride, out = _axes(g)
    whole, step, first = zip(*((a.whole, a.step, a.first) for a in g.axes), strict=True)
    return Grid(
        *(convolve_each, x, w, bias or x, y, w_start, *places, taps, _volume(x), stride, out),
        *(whole, step, first, groups, y.shape[1] // groups, x.shape[1] // groups),
        *(bias is not None, size),
        grid=-(-size // THREADS),
        block=THREADS,
    )


def _axes(g: Geometry) -> tuple:
    """Places of each axis, how many, strides, outputs."""
    places = [a.places for a in g.axes]
    taps, stride, out = zip(*((len(a.places), a.stride, a.out) for a in g.axes), strict=True)
    return places, taps, stride, out


# --- the way back ---------------------------------------------------------------------------------


def gather_back(
    gy: Arg, w: Arg, bias: Arg | None, gx: Arg, views: tuple[Window, ...], groups: int
) -> list[Grid | Launch]:
    """gx [N, C, …]: what each of its pixels receives from gy [N, K, …] through filters w.

    Pixels h with equal h % stride receive through the same filter rows, so each such phase of gx is
    a convolution of gy with stride 1; one that receives through none is the bias alone.
    """
    if not gx.size:
        return []
    filters, channels, taps = w.shape[0] // groups, w.shape[1], prod(w.shape[2:])
    phases = list(phases_of(views, w.shape[2:], gx.shape[2:]))
    edges = mended(gy, w, bias, gx, views)
    if len(phases) == 1 and cuda_depthwise.is_for(gy, gx, groups, phases[0][1]):
        return [cuda_depthwise.convolve(gy, w, bias, gx, phases[0][1]), *edges]
    found = halves_of(gy, w)
    blocked = in_blocks(found, channels, filters) and gy.size > 0
    blocked = blocked and all(within_reach(gy, g) for _, g in phases)
    alone = taps == len(phases) == 1 and sees_points(phases[0][1], gy)
    alone = alone and not phases[0][1].scattered
    even = not blocked or prod(gx.shape[2:]) % 4 == 0
    if bias is None and groups == 1 and alone and gy.size and found and even:
        return [*_pointwise(gy, Side(w, 1, channels, (0,)), gx)]
    line = blocks_of(filters) * LINE if blocked else filters  # terms of one place
    laid = Scratch(BITS, 0) if blocked else Scratch(w.dtype, 0, stored=w.stored)
    starts, counts, places, begins = [0] * taps, [0] * taps, [0] * taps, []
    for picked, _ in phases:
        begins.append(laid.size)
        for at, t in enumerate(picked):
            starts[t], counts[t], places[t] = laid.size, len(picked), at
        laid.size += -(-groups * channels * line * len(picked) // 8) * 8
    launches: list[Grid | Launch] = []
    order, seen = (tuple(starts), tuple(counts), tuple(places)), None
    if blocked:
        seen, last = turned(gy)
        lines = Lines(channels, filters, filters * channels * taps, taps, channels * taps)
        launches += [last, arranged(w, laid, groups, lines, *order)]
    elif laid.size:
        size, grid = (filters, channels, taps, w.size), -(-w.size // THREADS)
        launches.append(Grid(turn_filters, w, laid, *order, *size, grid=grid, block=THREADS))
    if sum(_count(g)[0] for _, g in phases) < prod(gx.shape[2:]):
        launches.append(only_bias(bias, gx) if bias else cleared(gx))
    for (picked, g), start in zip(phases, begins, strict=True):
        if seen is None:
            launches += correlate(gy, laid, bias, gx, groups, g, start)
        else:
            bf16, terms = gy.stored.name == "bf16", line * len(picked)
            launches += correlate_seen(
                seen, laid, bias, gx, groups, filters, g, bf16, terms, start
            )  # fmt: skip
    return [*launches, *edges]


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Grid]:
    """gw [groups*K, C, …] from gy [N, groups*K, …] and x [N, groups*C, …]. Halves, too, take tiles
    of f32: large ones are cuDNN's.
    """
    if not gw.size:
        return []
    if not gy.size or not x.size:
        return [cleared(gw)]
    images, channels, filters = x.shape[0], gw.shape[1], gw.shape[0] // groups
    terms, area = prod(gw.shape[1:]), _count(g)[0]
    pixels = images * area
    alone = filters == 1 and terms <= _FEW_TERMS  # of which a tile would be nearly empty
    if alone or not fits(x, g, terms, pixels) or gw.size * 512 >= LIMIT:
        places, taps, stride, out = _axes(g)
        args = (*places, taps, _volume(x), stride, out, groups, filters, channels)
        return [sum_numbers(gy, x, gw, images, out, *args)]
    tile, parts = cheapest(_PACES[x.dtype.itemsize], filters, terms, pixels, groups)
    assert isinstance(tile, Tile)
    part_steps = -(-pixels // (parts * tile.steps)) * tile.steps
    parts = -(-pixels // part_steps)
    kernel = filter_tiles(tile, 1 if area % tile.run else tile.run)
    tiles = -(-filters // tile.rows), -(-terms // tile.columns)
    shares = gw if parts == 1 else Scratch(gw.dtype, parts * gw.size)
    launches = [
        Grid(
            *(kernel, gy, x, shares, *_sight(g, x, channels, tile.columns), groups, filters),
            *(terms, pixels, area, g.out[1], *_steps(x, groups, g), prod(gy.shape[1:])),
            *(*tiles, parts, part_steps),
            **_cut(tile, prod(tiles) * parts * groups),
        )
    ]
    return launches + shares_added(shares, None, gw, parts)
