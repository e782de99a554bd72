"""Convolutions of halves in blocks of 64 channels: launches of what `cuda_warpgroups` has."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from opstep.kernels.conv.correlation import Depth, Geometry
from opstep.kernels.conv.cuda_layouts import (
    THREADS,
    arrange_filters,
    channels_last,
    in_fours_last,
)
from opstep.kernels.conv.cuda_tiles import shares_added, targets_of
from opstep.kernels.conv.cuda_warpgroups import NOWHERE, convolve_blocks
from opstep.kernels.matmul.cuda_gemm import added
from opstep.kernels.matmul.cuda_gemm_tiles import Pace, cheapest
from opstep.kernels.matmul.cuda_tile import LINE, WarpTile
from opstep.kernels.pointwise.cuda_epilogue import ending_of
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.target import architecture
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import i16

BITS = i16  # that carry halves
_FEWEST = 32  # channels that are worth a block
_FEWEST_FILTERS = 3  # that are worth a tile
_PLACES = LINE // 4  # under a filter of a step, of four channels
PACES = (
    Pace(WarpTile(128, 256, 16, 256, 4, True), 0.2, 0.6, 1),
    Pace(WarpTile(256, 128, 16, 128, 4, True), 0.2, 0.6, 1),
    Pace(WarpTile(128, 128, 16, 128, 3, True), 0.15, 0.3, 2),
    Pace(WarpTile(64, 128, 16, 128, 4, True), 0.2, 0.19, 2),
    Pace(WarpTile(128, 64, 16, 64, 4, True), 0.15, 0.234, 2),
    Pace(WarpTile(64, 64, 16, 64, 4, True), 0.1, 0.144, 3),
)
# Blocks that a multiprocessor is to hold, each with its share of registers.
TOGETHER = {pace.tile: pace.together for pace in PACES}


def within_reach(x: Arg, g: Geometry) -> bool:
    """Whether all places that a convolution looks at, and those of what it lays out, are whole
    numbers of 32 bits, and none is taken for `cuda_warpgroups.NOWHERE`.
    """
    ends = (stride * out for stride, out in zip(g.stride, g.out, strict=True))
    far = max(map(abs, (*g.rows, *g.columns, *ends, *x.shape[2:])), default=0)
    pixels = max(prod(x.shape[2:]), prod(g.out))
    plain = g.depth == Depth() and len(x.shape) == 4
    return plain and far < -NOWHERE // 4 and x.shape[0] * max(4, x.shape[1]) * pixels < LIMIT // 2


def in_blocks(halves: str, filters: int, channels: int) -> bool:
    """Whether so many sums over so many channels are made here, `within_reach`."""
    many = filters >= _FEWEST_FILTERS and channels >= _FEWEST and channels % 8 == 0
    return bool(halves) and many and architecture() == 90


def in_fours(halves: str, filters: int, channels: int, taps: int, groups: int) -> bool:
    """Whether sums over so few channels are made here, as if there were four."""
    few = groups == 1 and 2 <= channels <= 4 and taps > 1
    return bool(halves) and few and filters > 16 and architecture() == 90


def blocks_of(channels: int) -> int:
    return -(-channels // LINE)


def steps_of(channels: int, g: Geometry) -> int:
    taps = len(g.rows) * len(g.columns)
    return -(-taps // _PLACES) if channels <= 4 else blocks_of(channels) * taps


def tile_and_parts(filters: int, channels: int, g: Geometry, images: int, groups: int):
    """(the tile, parts of the sums) of a convolution."""
    terms = steps_of(channels, g) * LINE
    return cheapest(PACES, filters, images * prod(g.out), terms, groups)


class Lines(NamedTuple):
    """Filters as rows of a matrix: how many, what each sums over, and elements of the filters from
    group to group, row to row, and term to term, if places under them follow each other.
    """

    rows: int
    inner: int
    group_step: int
    row_step: int
    inner_step: int


def arranged(
    w: Arg, into: Scratch, groups: int, lines: Lines, starts: tuple[int, ...],
    counts: tuple[int, ...], places: tuple[int, ...],
) -> Grid:  # fmt: skip
    """Filters in the order that `correlate_seen` takes them; see `arrange_filters`."""
    blocks = blocks_of(lines.inner)
    size = groups * blocks * 8 * lines.rows * len(starts)
    return Grid(
        *(arrange_filters, w, into, starts, counts, places, lines.rows, lines.inner, blocks),
        *(lines.group_step, lines.row_step, lines.inner_step, len(starts), size),
        grid=-(-size // THREADS),
        block=THREADS,
    )


class Images(NamedTuple):
    """Images with channels last: [N, height, width, channels]."""

    array: Arg | Scratch
    height: int
    width: int


def turned(x: Arg, view: Geometry | None = None) -> tuple[Images, Grid]:
    """Images with channels last, and what makes them; what a filter of one place sees of them, if
    `view` is given.
    """
    images, channels, height, width = x.shape
    out = view.out if view else (height, width)
    stride, first = (view.stride, (view.rows[0], view.columns[0])) if view else ((1, 1), (0, 0))
    made = Scratch(BITS, images * channels * prod(out))
    across, down = -(-prod(out) // LINE), -(-channels // LINE)
    grid = Grid(
        *(channels_last, x, made, channels, height, width, *out, *stride, *first, across, down),
        grid=images * across * down,
        block=THREADS,
    )
    return Images(made, *out), grid


def correlate_in_blocks(
    x: Arg, w: Arg, bias: Arg | None, y: Arg, groups: int, g: Geometry,
    seen: Images | None = None, last: int = 0,
) -> list[Grid]:  # fmt: skip
    """`cuda_conv.correlate` of halves. `seen`: the images with channels last, if there are; `last`:
    see `correlate_seen`.
    """
    launches, seen, laid, line, g = prepared(x, w, groups, g, seen)
    channels, bf16 = max(4, w.shape[1]), x.stored.name == "bf16"
    return launches + correlate_seen(seen, laid, bias, y, groups, channels, g, bf16, line, 0, last)


def prepared(
    x: Arg, w: Arg, groups: int, g: Geometry, seen: Images | None = None
) -> tuple[list[Grid], Images, Arg | Scratch, int, Geometry]:
    """(launches, images, filters, terms of each, where outputs look): what a convolution needs. The
    images are those that are `seen`, if there are.
    """
    filters, channels = w.shape[0] // groups, w.shape[1]
    taps, line = len(g.rows) * len(g.columns), channels
    launches: list[Grid] = []
    if channels <= 4:
        return *_in_fours(x, w, steps_of(channels, g) * _PLACES), g
    point = taps == 1
    if seen is None:
        seen, turn = turned(x, g if point else None)
        launches.append(turn)
        if point:
            g = g._replace(stride=(1, 1), rows=(0,), columns=(0,))
    if point:
        return launches, seen, w, line, g
    line = blocks_of(channels) * taps * LINE
    laid = Scratch(BITS, groups * filters * line)
    lines = Lines(filters, channels, filters * channels * taps, channels * taps, taps)
    order = (0,) * taps, (taps,) * taps, tuple(range(taps))
    launches.append(arranged(w, laid, groups, lines, *order))
    return launches, seen, laid, line, g


def _in_fours(x: Arg, w: Arg, places: int) -> tuple[list[Grid], Images, Scratch, int]:
    """Of at most four channels, with so many places under a filter."""
    images, channels, height, width = x.shape
    filters, taps, plane = w.shape[0], prod(w.shape[2:]), height * width
    seen = Images(Scratch(BITS, 4 * images * plane), height, width)
    laid = Scratch(BITS, 4 * filters * places)
    launches = [
        Grid(in_fours_last, *args, grid=-(-args[-1] // THREADS), block=THREADS)
        for args in (
            (x, seen.array, channels, plane, plane, images * plane),
            (w, laid, channels, taps, places, filters * places),
        )
    ]
    return launches, seen, laid, 4 * places


def correlate_seen(
    x: Images, w: Arg | Scratch, bias: Arg | None, y: Arg, groups: int, channels: int, g: Geometry,
    bf16: bool, line: int, w_start: int = 0, last: int = 0,
) -> list[Grid]:  # fmt: skip
    """What comes behind: w has lines of so many terms. `last`: y is [N, *g.out, K], and has sums of
    so many parts, those that it would have with channels first.
    """
    images, made = y.shape[0], y.shape[3 if last else 1]
    filters, steps, pixels = made // groups, steps_of(channels, g), images * prod(g.out)
    sides = (pixels, filters) if last else (filters, pixels)
    tile, parts = cheapest(PACES, *sides, steps * LINE, groups, parts=last)
    assert isinstance(tile, WarpTile)
    if g.scattered:  # others write to the same result
        parts = 1
    part_steps = -(-steps // parts)
    parts = -(-steps // part_steps)
    sums = Scratch(y.dtype, parts * y.size) if parts > 1 else y
    whole, plane = parts == 1 and not g.scattered, prod(g.plane)
    ending, rest = ending_of(y, made, 1 if last else plane) if whole else (None, ())
    wide = 1 if g.scattered or (filters if last else prod(g.out)) % 4 else 4
    kernel = convolve_blocks(tile, 4 if channels <= 4 else 8, wide, bf16, ending, last > 0)
    down, across = -(-sides[0] // tile.rows), -(-sides[1] // tile.columns)
    launches = [
        Grid(
            *(kernel, x.array, w, bias or y, sums, w_start, *_progression(g.rows)),
            *(*_progression(g.columns), len(g.rows), len(g.columns), groups, filters, channels),
            *(line, steps, pixels, x.height, x.width, *g.stride, prod(g.out), g.out[1], plane),
            *(g.step[1], targets_of(g), down, across, parts, part_steps, y.size),
            *(bias is not None and parts == 1, *rest),
            grid=down * across * parts * groups,
            block=tile.threads,
            shared=tile.shared,
            blocks=TOGETHER[tile],
        )
    ]
    if last and parts > 1:
        return [*launches, added(sums, bias, y, y.size, filters, parts)]
    return launches + shares_added(sums, bias, y, parts)


def _progression(places: tuple[int, ...]) -> tuple[int, int]:
    """(the first, the gap): what a window sees is evenly spaced."""
    return places[0], places[1] - places[0] if len(places) > 1 else 0
