"""Convolutions on CUDA: which kernel, which tiles, and how the terms of long sums are shared.

All is chosen from shapes and dtypes, never from the GPU or what else runs.
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
    correlate_in_fours,
    correlate_seen,
    halves_of,
    in_blocks,
    in_fours,
    points,
    shares_added,
    spread_in_blocks,
    tile_and_parts,
    turned,
    within_reach,
)
from opstep.kernels.conv.cuda_direct import (
    CHUNK,
    THREADS,
    cleared,
    convolve_each,
    convolve_few,
    sum_each,
    sum_over_pixels,
    turn_filters,
    turn_halves,
)
from opstep.kernels.conv.cuda_edges import mended
from opstep.kernels.conv.cuda_tensor_cores import convolve_halves, filter_halves
from opstep.kernels.conv.cuda_tiles import HALF, NEVER, convolve_tiles, filter_tiles
from opstep.kernels.conv.edges import only_bias
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.cuda_gemm import product
from opstep.kernels.matmul.cuda_gemm_tiles import PLAIN, Pace, cheapest
from opstep.kernels.matmul.cuda_tile import LINE, Tile, WarpTile
from opstep.kernels.matmul.products import Side
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch

_MULTIPROCESSORS = 128  # that work is cut for
_PARTS = 128  # of a sum that blocks make, at most
_MOST_TAPS = 30  # rows and columns of a filter that bits can stand for
_MOST_TERMS = 1 << 18  # of a table
_LOOKUP = 5e-5  # microseconds, at an element of an image
_FEW = 16  # filters at most that a thread has all at once


def _with_lookup(pace: Pace) -> Pace:
    """What a step takes where one operand is looked up, too."""
    tile = pace.tile
    return pace._replace(work=pace.work + _LOOKUP * tile.columns * tile.steps)


_PACES = {
    size: [_with_lookup(p) for p in paces if p.tile.threads >= p.tile.columns]
    for size, paces in PLAIN.items()
}
_PACES[4].append(_with_lookup(Pace(Tile(32, 128, 16, 4, 8), 1.0, 0.3, 4)))
_HALVES = (
    Pace(WarpTile(128, 64, 32, 32, 2), 0.6, 0.6, 3),
    Pace(WarpTile(64, 64, 32, 32, 2), 0.6, 0.4, 4),
)
_FILTER_HALVES = (
    Pace(WarpTile(128, 128, 64, 32, 2), 0.6, 1.1, 2),
    *_HALVES,
)


class Sight(NamedTuple):
    """Where outputs of a convolution look, as kernels take it: see `conv_tiles`."""

    table: tuple[int, ...]
    missing_rows: tuple[int, ...]
    missing_columns: tuple[int, ...]


def _sight(g: Geometry, channels: int, height: int, width: int, multiple: int) -> Sight:
    """`multiple`: of which the table's terms are a number."""
    across = len(g.rows)  # bits of rows, then those of columns
    inside = _is_inside(g, height, width)
    table = [
        (0 if inside else (1 << r | 1 << across + s) << 32)
        + (c * height + row) * width
        + column
        + HALF
        for c in range(channels)
        for r, row in enumerate(g.rows)
        for s, column in enumerate(g.columns)
    ]
    table += [NEVER << 32 | HALF] * (-len(table) % multiple)
    if inside:
        return Sight(tuple(table), (NEVER,) * g.out[0], (0,) * g.out[1])
    rows = [
        NEVER
        | sum(1 << r for r, row in enumerate(g.rows) if not 0 <= i * g.stride[0] + row < height)
        for i in range(g.out[0])
    ]
    columns = [
        sum(
            1 << across + s
            for s, column in enumerate(g.columns)
            if not 0 <= j * g.stride[1] + column < width
        )
        for j in range(g.out[1])
    ]
    return Sight(tuple(table), tuple(rows), tuple(columns))


def _is_inside(g: Geometry, height: int, width: int) -> bool:
    """Whether each output sees pixels of the image alone."""
    return all(
        min(places, default=0) >= 0 and (out - 1) * stride + max(places, default=0) < size
        for places, out, stride, size in zip(
            (g.rows, g.columns), g.out, g.stride, (height, width), strict=True
        )
    )


def correlate(
    x: Arg,
    w: Arg | Scratch,
    bias: Arg | None,
    y: Arg,
    groups: int,
    g: Geometry,
    w_start: int = 0,
    shares: Scratch | None = None,
) -> list[Grid]:
    """x [N, groups*C, H, W] under filters w [groups*K, C, R*S] into y [N, groups*K, *g.plane].
    `shares`: parts of the sums, as many as have room there, go into it, and no bias.
    """
    images, channels, filters = x.shape[0], x.shape[1] // groups, y.shape[1] // groups
    terms, pixels = channels * len(g.rows) * len(g.columns), images * prod(g.out)
    if not pixels or not filters:
        return []
    if isinstance(w, Arg) and cuda_depthwise.is_for(x, y, groups, g):
        return [cuda_depthwise.convolve(x, w, bias, y, g)]
    halves = halves_of(x, w)
    near = isinstance(w, Arg) and within_reach(x, g)
    blocked = near and in_blocks(halves, filters, channels)
    even = not blocked or prod(g.out) % 4 == 0  # what is copied in pieces of four
    matrices = bias is None and groups == 1 and isinstance(w, Arg) and isinstance(x, Arg)
    if matrices and points(g, x) and halves and even:
        return _pointwise(x, Side(w, channels, 1, (0,)), y)
    if not fits(x, g, terms, pixels):
        return [_each(x, w, bias, y, groups, g, w_start)]
    if blocked and isinstance(w, Arg):
        return correlate_in_blocks(x, w, bias, y, groups, g)
    taps = len(g.rows) * len(g.columns)
    if near and isinstance(w, Arg) and in_fours(halves, filters, channels, taps, groups):
        return correlate_in_fours(x, w, bias, y, g)
    sizes = (groups, filters, terms, pixels, *_steps(x, groups, g), *g.out)
    target = (prod(g.plane), g.plane[1], *g.step, g.first[0] * g.plane[1] + g.first[1])
    if filters <= _FEW:
        some = next(f for f in (1, 2, 4, 8, _FEW) if filters <= f)
        own = 4 if pixels * groups >= 4 * THREADS * _MULTIPROCESSORS else 1
        sight = _sight(g, channels, *x.shape[2:], CHUNK)
        blocks = -(-filters // some)
        return [
            Grid(
                *(convolve_few(some, own), x, w, bias or x, y, w_start, *sight, *sizes, *target),
                *(blocks, bias is not None),
                grid=-(-pixels // (THREADS * own)) * groups * blocks,
                block=THREADS,
                blocks=3,
            )
        ]
    paces = _HALVES if halves else _PACES[x.dtype.itemsize]
    tile, parts = cheapest(paces, filters, pixels, terms, groups)
    if g.scattered:
        parts = 1 if shares is None else shares.size // y.size
    part_steps = -(-terms // (parts * tile.steps)) * tile.steps
    if shares is None:
        parts = -(-terms // part_steps)
    run = 4 if isinstance(tile, WarpTile) else tile.run
    y_wide = 1 if g.scattered or prod(g.out) % run else run
    if isinstance(tile, WarpTile):
        kernel = convolve_halves(tile, terms % 8 == 0, y_wide, halves == "bf16")
    else:
        x_wide = run if prod(x.shape[2:]) % run == 0 and points(g, x) else 1
        kernel = convolve_tiles(tile, 1 if terms % run else run, x_wide, y_wide)
    down, across = -(-filters // tile.rows), -(-pixels // tile.columns)
    sums = shares or (Scratch(y.dtype, parts * y.size) if parts > 1 else y)
    biased = bias is not None
    launches = [
        Grid(
            *(kernel, x, w, bias or x, sums, w_start),
            *_sight(g, channels, *x.shape[2:], tile.steps),
            *(*sizes, *target, down, across, parts, part_steps, y.size, biased and parts == 1),
            grid=down * across * parts * groups,
            block=tile.threads,
            shared=tile.shared if isinstance(tile, WarpTile) else 0,
            blocks=0 if isinstance(tile, WarpTile) else _blocks(tile),
        )
    ]
    return launches + (shares_added(sums, bias, y, parts) if shares is None else [])


def _parts_of(
    x: Arg, w: Arg, y: Arg, groups: int, geometries: Sequence[Geometry], blocked: bool
) -> int:
    """Parts of the sums of each geometry, which all write to other pixels of y: what the one with
    most terms had alone.
    """
    filters, channels = y.shape[1] // groups, x.shape[1] // groups
    most = max(geometries, key=lambda g: len(g.rows) * len(g.columns))
    halves = halves_of(x, w)
    if blocked:
        return tile_and_parts(filters, channels, most, x.shape[0], groups)[1]
    terms = channels * len(most.rows) * len(most.columns)
    paces = _HALVES if halves else _PACES[x.dtype.itemsize]
    return cheapest(paces, filters, x.shape[0] * prod(most.out), terms, groups)[1]


def _pointwise(x: Arg, w: Side, y: Arg) -> list[Grid]:
    """y [N, K, pixels] = w [K, C] by x [N, C, pixels], of halves: an image is a matrix."""
    images, channels, plane = x.shape[0], x.shape[1], prod(x.shape[2:])
    seen = Side(x, plane, 1, (channels * plane,))
    return product(w, seen, y, (images,), y.shape[1], plane, channels)


def fits(x: Arg, g: Geometry, terms: int, pixels: int) -> bool:
    """Whether bits and tables of places serve."""
    few = len(g.rows) + len(g.columns) <= _MOST_TAPS or _is_inside(g, *x.shape[2:])
    supported = x.dtype.is_float and x.size and 0 < terms <= _MOST_TERMS
    supported = supported and prod(x.shape[1:]) < LIMIT // 4
    return bool(supported and few and pixels + 4096 < LIMIT)


def _blocks(tile: Tile) -> int:
    """That a multiprocessor holds: those for which all numbers stay in registers."""
    numbers = tile.thread_rows * tile.thread_columns
    numbers += (tile.rows + tile.columns) * tile.steps // tile.threads
    registers = numbers * tile.itemsize // 4
    threads = 512 if registers <= 80 else 384 if registers <= 96 else 256
    return threads // tile.threads


def _steps(x: Arg, groups: int, g: Geometry) -> tuple[int, int, int, int]:
    """Elements of x from image to image, group to group, output row to row, column to column."""
    image = prod(x.shape[1:])
    return image, image // groups, g.stride[0] * x.shape[3], g.stride[1]


def _each(x, w, bias, y, groups: int, g: Geometry, w_start: int) -> Grid:
    size = x.shape[0] * y.shape[1] * prod(g.out)
    return Grid(
        *(convolve_each, x, w, bias or x, y, w_start, g.rows, g.columns, len(g.rows)),
        *(len(g.columns), groups, y.shape[1] // groups, x.shape[1] // groups, *x.shape[2:]),
        *(*g.stride, *g.out, *g.plane, *g.step, *g.first, bias is not None, size),
        grid=-(-size // THREADS),
        block=THREADS,
    )


# --- the way back ---------------------------------------------------------------------------------


def gather_back(
    gy: Arg, w: Arg, bias: Arg | None, gx: Arg, rows: Window, columns: Window, groups: int
) -> list[Grid | Launch]:
    """gx [N, C, H, W]: what each of its pixels receives from gy [N, K, H', W'] through filters w.

    Pixels h with equal h % stride receive through the same filter rows, so each such phase of gx is
    a convolution of gy with stride 1; one that receives through none is the bias alone.
    """
    if not gx.size:
        return []
    filters, channels = w.shape[0] // groups, w.shape[1]
    alone = all(v.kernel == v.stride == 1 and v.before == v.after == 0 for v in (rows, columns))
    alone = alone and gx.shape[2:] == gy.shape[2:]  # output padding adds pixels
    found = halves_of(gy, w)
    down, right = rows.phases(gx.shape[2]), columns.phases(gx.shape[3])
    phases = [
        Geometry(
            out=(-(-(gx.shape[2] - a) // rows.stride), -(-(gx.shape[3] - b) // columns.stride)),
            stride=(1, 1),
            rows=tuple((a + rows.before - r * rows.dilation) // rows.stride for r in over),
            columns=tuple(
                (b + columns.before - s * columns.dilation) // columns.stride for s in across
            ),
            plane=gx.shape[2:],  # pyright: ignore[reportArgumentType] - of two sizes
            step=(rows.stride, columns.stride),
            first=(a, b),
        )
        for a, over in down.items()
        for b, across in right.items()
    ]
    if len(phases) == 1 and cuda_depthwise.is_for(gy, gx, groups, phases[0]):
        convolved = cuda_depthwise.convolve(gy, w, bias, gx, phases[0])
        return [convolved, *mended(gy, w, bias, gx, (rows, columns))]
    blocked = in_blocks(found, channels, filters) and gy.size > 0
    blocked = blocked and all(within_reach(gy, phase) for phase in phases)
    even = not blocked or prod(gx.shape[2:]) % 4 == 0
    matrices = bias is None and groups == 1 and isinstance(gy, Arg)
    if matrices and alone and gy.size and found and even:
        return [*_pointwise(gy, Side(w, 1, channels, (0,)), gx)]
    taps = rows.kernel * columns.kernel
    starts, counts, places = [0] * taps, [0] * taps, [0] * taps
    whole = rows.kernel + columns.kernel <= _MOST_TAPS and filters * taps <= _MOST_TERMS
    tensor = (
        whole
        and prod(gy.shape[1:]) < LIMIT // 4
        and (channels > _FEW or blocked)
        and gy.size > 0
        and gx.size < LIMIT // 2
    )
    halves, blocked = tensor and bool(found), tensor and blocked
    line = blocks_of(filters) * LINE if blocked else filters  # terms of one place
    laid = Scratch(BITS if halves else w.dtype, 0)
    launches: list[Grid | Launch] = []
    covered = len(down) == min(rows.stride, gx.shape[2])
    covered = covered and len(right) == min(columns.stride, gx.shape[3])
    if not covered:
        launches.append(only_bias(bias, gx) if bias else cleared(gx))
    begins = []
    for over in down.values():
        for across in right.values():
            picked = [r * columns.kernel + s for r in over for s in across]
            begins.append(laid.size)
            for at, t in enumerate(picked):
                starts[t], counts[t], places[t] = laid.size, len(picked), at
            laid.size += -(-groups * channels * line * len(picked) // 8) * 8
    parts = 1
    if tensor and covered and len(phases) > 1:
        parts = _parts_of(gy, w, gx, groups, phases, blocked)
    shares = Scratch(gx.dtype, parts * gx.size) if parts > 1 else None
    own_bias = bias if parts == 1 else None
    seen, last = turned(gy) if blocked else (None, None)
    for geometry, start in zip(phases, begins, strict=True):
        if seen:
            terms = line * len(geometry.rows) * len(geometry.columns)
            launches += correlate_seen(
                seen, laid, own_bias, gx, groups, filters, geometry, gy.stored.name == "bf16",
                terms, start, shares,
            )  # fmt: skip
        else:
            launches += correlate(gy, laid, own_bias, gx, groups, geometry, start, shares)
    if shares:
        launches += shares_added(shares, bias, gx, parts)
    order = tuple(starts), tuple(counts), tuple(places)
    if last:
        lines = Lines(channels, filters, filters * channels * taps, taps, channels * taps)
        first = [last, arranged(w, laid, groups, lines, *order)]
    else:
        kernel = turn_halves if halves else turn_filters
        size = filters, channels, taps, w.size
        first = [Grid(kernel, w, laid, *order, *size, grid=-(-w.size // THREADS), block=THREADS)]
    launches += mended(gy, w, bias, gx, (rows, columns))
    return [*first, *launches] if laid.size else launches


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Grid]:
    """gw [groups*K, C, R, S] from gy [N, groups*K, H', W'] and x [N, groups*C, H, W]."""
    if not gw.size:
        return []
    if not gy.size or not x.size:
        return [cleared(gw)]
    images, channels, filters = x.shape[0], gw.shape[1], gw.shape[0] // groups
    terms, area = prod(gw.shape[1:]), prod(g.out)
    pixels = images * area
    if not fits(x, g, terms, pixels) or gw.size * 512 >= LIMIT:
        sizes = (images, groups, filters, channels, *x.shape[2:], *g.stride, *g.out, gw.size)
        return [
            Grid(
                *(sum_each, gy, x, gw, g.rows, g.columns, len(g.rows), len(g.columns), *sizes),
                grid=-(-gw.size // THREADS),
                block=THREADS,
            )
        ]
    even = area % 4 == 0 or filters % 8 == 0  # as pieces of gy are copied
    near = within_reach(x, g) and gy.size < LIMIT // 2
    if near and even and in_blocks(halves_of(gy, x), filters, channels):
        return spread_in_blocks(gy, x, gw, groups, g)
    sizes = (groups, filters, terms, pixels, area, g.out[1], prod(gy.shape[1:]))
    sizes += _steps(x, groups, g)
    if filters * terms < 512:
        return _few_gradients(gy, x, gw, sizes, _sight(g, channels, *x.shape[2:], 1))
    halves = halves_of(gy, x)
    paces = _FILTER_HALVES if halves else _PACES[x.dtype.itemsize]
    tile, parts = cheapest(paces, filters, terms, pixels, groups)
    part_steps = -(-pixels // (parts * tile.steps)) * tile.steps
    parts = -(-pixels // part_steps)
    if isinstance(tile, WarpTile):
        gw_wide = 1 if terms % 4 else 4
        whole = area % 8 == 0
        kernel = filter_halves(tile, whole, whole and points(g, x), gw_wide, halves == "bf16")
    else:
        kernel = filter_tiles(tile, 1 if area % tile.run else tile.run)
    down, across = -(-filters // tile.rows), -(-terms // tile.columns)
    shares = gw if parts == 1 else Scratch(gw.dtype, parts * gw.size)
    launches = [
        Grid(
            *(kernel, gy, x, shares),
            *_sight(g, channels, *x.shape[2:], tile.columns),
            *(*sizes, down, across, parts, part_steps),
            grid=down * across * parts * groups,
            block=tile.threads,
            shared=tile.shared if isinstance(tile, WarpTile) else 0,
            blocks=0 if isinstance(tile, WarpTile) else _blocks(tile),
        )
    ]
    return launches + shares_added(shares, None, gw, parts)


def _few_gradients(gy, x, gw: Arg, sizes: Sequence[int], sight: Sight) -> list[Grid]:
    """By blocks that make one number each."""
    pixels = sizes[3]
    parts = max(1, min(_PARTS, 8 * _MULTIPROCESSORS // gw.size, pixels // (32 * THREADS)))
    part_steps = -(-pixels // parts)
    parts = -(-pixels // part_steps)
    shares = gw if parts == 1 else Scratch(gw.dtype, parts * gw.size)
    launches = [
        Grid(
            *(sum_over_pixels, gy, x, shares, *sight, *sizes, parts, part_steps),
            grid=gw.size * parts,
            block=THREADS,
        )
    ]
    return launches + shares_added(shares, None, gw, parts)
