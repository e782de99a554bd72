"""The kernel behind convolutions: filters slid over padded images, as products of register tiles.

Images are never unfolded as a whole. For a block of output pixels and a few channels, each lane
lays out what the filters will meet in a buffer that stays in its cache: for every filter column one
copy of the image rows, shifted and strided as that column sees them. Filter rows then are offsets
into the same copy. `table[k]` says where the pixels begin that step k (channel, filter row, filter
column) multiplies. Each output is one sum in the order of the steps, however the work is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from opstep.kernels.conv.windows import LINE, Window
from opstep.kernels.matmul.products import prefetch_rows, stragglers
from opstep.runtime.device.builtin import (
    TILES,
    clear_run,
    column_rows,
    copy_run,
    offset,
    thin_run,
    vector_length,
)
from opstep.runtime.device.launch import (
    NO_LIMITS,
    Arg,
    Held,
    Launch,
    Scratch,
    Tiles,
    lanes,
)

_WIDEST = {8: 3, 4: 6, 2: 8, 1: 8}  # vectors in a tile of so many filters
_OVERREAD = 8 * 64  # bytes that a tile may read past its pixels
_BUFFER = 40 * 1024  # bytes of image laid out at a time: the first-level cache, nearly
_LARGE_BUFFER = 96 * 1024  # where many filters meet what a tile takes to that cache
_FILTERS = 384 * 1024  # bytes of filters that meet them: half of the second-level cache
_SHARING = 64  # filters at least, of many, that meet what was laid out once

# Times, in those of a product of vectors, of which a processor begins about two a cycle.
_LAYING = 7  # a vector that is laid out
_ROW = 20  # besides, for each row of them
_FETCHING = 1  # a weight, from a distant cache
_CONTESTED = 600  # a line of the result that two lanes write
_GRAIN = 1 << 20  # floating-point operations under which another lane is not woken


class Depth(NamedTuple):
    """The same as `Geometry` along the depth of volumes: an image is one plane."""

    out: int = 1
    stride: int = 1
    places: tuple[int, ...] = (0,)
    whole: int = 1
    step: int = 1
    first: int = 0


class Geometry(NamedTuple):
    """Where output pixels look in the image, along both axes.

    Output (i, j) at filter row r, column s sees image row ``i*stride[0] + rows[r]`` and column
    ``j*stride[1] + columns[s]``; outside of the image there are zeros. It is written to place
    ``(i*step[0] + first[0], j*step[1] + first[1])`` of a plane of `plane` rows and columns.
    """

    out: tuple[int, int]
    stride: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    plane: tuple[int, int]
    step: tuple[int, int] = (1, 1)
    first: tuple[int, int] = (0, 0)
    depth: Depth = Depth()

    @property
    def axes(self) -> tuple[Depth, Depth, Depth]:
        """The same of each axis: depth, rows, columns."""
        places = self.rows, self.columns
        flat = zip(self.out, self.stride, places, self.plane, self.step, self.first, strict=True)
        return (self.depth, *(Depth(*axis) for axis in flat))  # pyright: ignore[reportReturnType]

    @property
    def scattered(self) -> bool:
        return any(a.step != 1 or a.whole != a.out for a in self.axes)


def geometry_of(views: Sequence[Window], size: tuple[int, ...]) -> Geometry:
    """The places that outputs of a convolution look at, of a plane of that size."""
    missing = 3 - len(views)
    planes, rows, columns = (LINE,) * missing + tuple(views)
    out = (1,) * missing + size
    places = [
        tuple(k * v.dilation - v.before for k in range(v.kernel))  # pyright: ignore[reportArgumentType]
        for v in (planes, rows, columns)
    ]
    return Geometry(
        out=out[1:],
        stride=(rows.stride, columns.stride),
        rows=places[1],
        columns=places[2],
        plane=out[1:],
        depth=Depth(out[0], planes.stride, places[0], out[0]),
    )


class _Blocks(NamedTuple):
    """How the work is cut: output rows and columns, filters, channels; and the tile's rows."""

    rows: int
    columns: int
    filters: int
    channels: int
    tile: int


def correlate(
    x: Arg | Held,
    w,
    bias: Arg | Scratch | None,
    y: Arg | Held,
    groups: int,
    geometry: Geometry,
    buffer: Scratch | None = None,
    kind: int = 0,
) -> Launch:
    """x [N, groups*C, H, W] under filters w [groups*K, C, R*S] into y [N, groups*K, *g.plane].

    Volumes have a depth behind the channels, as filters do: a channel under a plane of a filter is
    a channel of its own. Launches that follow each other may share a `buffer`, which grows as each
    needs it. `kind` is that of the tiles.
    """
    g = geometry
    images, channels = x.shape[0] * g.depth.out, x.shape[1] // groups * len(g.depth.places)
    filters = y.shape[1] // groups
    taps = len(g.rows) * len(g.columns)
    together = _one_copy(g, filters)
    shifts = (min(g.columns),) if together else g.columns
    blocks = _cut(images * groups, channels, filters, g, len(shifts), x.dtype.itemsize)
    slots, starts = buffer_slots(g, blocks.rows)
    line = blocks.columns + (max(g.columns) - min(g.columns) if together else 0)
    places = [c - shifts[0] if together else k * len(slots) * line for k, c in enumerate(g.columns)]
    table = tuple(
        c * len(shifts) * len(slots) * line + starts[r] * line + place
        for c in range(blocks.channels)
        for r in range(len(g.rows))
        for place in places
    )
    laid_out = blocks.channels * len(shifts) * len(slots) * line + _OVERREAD // x.dtype.itemsize
    held = blocks.filters * blocks.rows * blocks.columns if g.scattered else 0
    lane = -(-(laid_out + held) // 64) * 64
    buffer = buffer or Scratch(x.dtype, lane, per_lane=True)
    buffer.size = max(buffer.size, lane)
    cuts = zip((filters, *g.out), (blocks.filters, blocks.rows, blocks.columns), strict=True)
    units = images * groups * prod(-(-whole // piece) for whole, piece in cuts)
    work = 2 * prod(g.out) * images * groups * filters * channels * taps
    tiles = None
    if not g.scattered and g.depth.out == 1 and blocks.columns == g.out[1]:
        tiles = Tiles(y, filters, prod(g.out), blocks.filters, blocks.rows * g.out[1], along=True)
    return Launch(
        *(_kernel(blocks.tile, kind), x, w, bias or x, y),
        *(buffer, lane, laid_out),
        *(table, shifts, slots, len(shifts), len(slots), taps, line),
        *(bias is not None, together, g.scattered),
        *(channels, filters, groups, *x.shape[-2:]),
        *(*g.out, *g.stride, *g.plane, *g.step, *g.first),
        *(*depth_sizes(x, g), g.depth.whole, g.depth.step, g.depth.first),
        *(blocks.rows, blocks.columns, blocks.filters, blocks.channels),
        NO_LIMITS,
        units=units,
        grain=max(1, units * _GRAIN // max(work, 1)),
        tiles=tiles,
        clamps=not g.scattered,
    )


def depth_sizes(x: Arg | Held, g: Geometry) -> tuple:
    """Where planes are seen, as the kernels take it."""
    taps = g.depth.places
    return taps, len(taps), x.shape[2] if x.rank == 5 else 1, g.depth.out, g.depth.stride


def _one_copy(g: Geometry, filters: int) -> bool:
    """Whether all filter columns look into one copy of the rows, at an offset.

    Tiles then end where output rows end, and vectors that are not full go to waste; a copy for each
    filter column has no such ends. A copy costs about as much as 7 products an element.
    """
    waste = -(-g.out[1] // 16) * 16 / max(1, g.out[1]) - 1
    return g.stride[1] == 1 and bool(g.columns) and waste * filters * len(g.rows) <= 7


def buffer_slots(g: Geometry, rows: int) -> tuple[tuple[int, ...], list[int]]:
    """Image rows (relative to the block's first) that `rows` output rows see, and where each filter
    row begins.

    Output rows that follow each other see image rows that are `stride` apart; these stand together.
    Rows that none sees, between filter rows far apart, are left out.
    """
    runs, starts = _runs(g, rows)
    return tuple(row for run in runs for row in run), starts


def count_slots(g: Geometry, rows: int) -> int:
    """How many `buffer_slots` there are."""
    return sum(len(run) for run in _runs(g, rows)[0])


def _runs(g: Geometry, rows: int) -> tuple[list[range], list[int]]:
    stride = g.stride[0]
    runs: list[range] = []
    starts = [0] * len(g.rows)
    count = 0
    for r in sorted(range(len(g.rows)), key=lambda r: (g.rows[r] % stride, g.rows[r])):
        first = g.rows[r]
        end = runs[-1].stop if runs else first - 1
        begin = end if end >= first and end % stride == first % stride else first
        starts[r] = count - (begin - first) // stride
        runs.append(range(begin, first + rows * stride, stride))
        count += len(runs[-1])
    return runs, starts


def even(total: int, most: int, multiple: int = 1) -> int:
    """The size of equal pieces of `total`, each at most `most` (but at least `multiple`)."""
    pieces = -(-total // max(most, 1))
    size = -(-total // max(pieces, 1))
    return max(multiple, -(-size // multiple) * multiple)


def _cut(
    images: int, channels: int, filters: int, g: Geometry, copies: int, itemsize: int
) -> _Blocks:
    """The blocks that take the least time, by `duration`."""
    tile = next((t for t in (1, 2, 4) if filters <= t), 8)
    copies, taps = max(1, copies), max(1, len(g.rows) * len(g.columns))
    budget = (_LARGE_BUFFER if filters >= _SHARING else _BUFFER) // itemsize
    few = min(channels, -(-96 // taps))  # at a time: the tile's loop shall be long
    columns = even(g.out[1], budget // (few * copies * count_slots(g, 1) or 1), 16)
    columns = max(1, min(columns, g.out[1]))
    work = 2 * images * prod(g.out) * filters * channels * taps
    sharing = max(1, min(lanes(), work // _GRAIN))

    def room(rows: int) -> int:
        """Channels that fit into the buffer."""
        return budget // (copies * max(1, count_slots(g, rows)) * columns)

    def duration(blocks: tuple[int, int]) -> float:
        """What lanes take for blocks of so many rows and filters, in steps of a vector."""
        rows, block = blocks
        contested = 0.0
        if sharing > 1 and block == filters and images == 1:  # lanes meet within planes
            pieces = -(-g.out[0] // rows)
            meetings = {pieces * lane // sharing * rows for lane in range(1, sharing)}
            lines = sum(row * g.out[1] * itemsize % 64 > 0 for row in meetings)
            contested = lines * filters / max(1, min(room(rows), channels)) * _CONTESTED
        counts = -(-filters // block) * -(-g.out[1] // columns) * images
        turns = counts * g.out[0] / rows
        if sharing > 1:  # none waits for long for another one
            turns = -(-counts * -(-g.out[0] // rows) // sharing) + 0.1
        vectors, some = divmod(rows * columns * itemsize, 64)
        vectors += (vectors % 3 > 0 or some > 0) * 0.3 + (some > 0)
        laid_out = copies * count_slots(g, rows) * (_LAYING * columns * itemsize / 64 + _ROW)
        return turns * (block * taps * (vectors + _FETCHING) + laid_out) + contested

    rows = 1
    if columns == g.out[1]:
        fits = (n for n in range(1, g.out[0] + 1) if room(-(-g.out[0] // n)) >= few)
        least = next(fits, g.out[0])
        most = max(2 * least, 4 * sharing)
        found = {-(-g.out[0] // n) for n in range(least, most + 1)}
    else:
        found = {1}
    cuts = [filters]
    while sharing > 1 and cuts[-1] >= 2 * _SHARING:
        cuts.append(even(cuts[-1], cuts[-1] // 2, tile))
    rows, block = min(((r, f) for r in sorted(found, reverse=True) for f in cuts), key=duration)
    most = min(room(rows), _FILTERS // (itemsize * taps * max(1, block)))
    return _Blocks(max(1, rows), columns, block, even(channels, most), tile)


@cache
def _kernel(rows: int, kind: int):
    """The kernel whose tiles are of so many filters."""
    tile, vectors = TILES[kind].outer[rows], _WIDEST[rows]
    column_tile = TILES[kind].column

    def slide_filters(
        x, w, bias, y, buffers, lane_size, laid_out, table, shifts, slots, copies, slot_count, taps,
        line, biased, together, scattered, channels, filters, groups, height, width, out_h,
        out_w, stride_h, stride_w, plane_h, plane_w, step_h, step_w, first_h, first_w, depths,
        depth_taps, depth, out_d, stride_d, whole_d, step_d, first_d, row_block, column_block,
        filter_block, channel_block, limits, lo, hi, lane,
    ):  # fmt: skip
        buffer = offset(buffers, lane * lane_size)
        row_blocks = (out_h + row_block - 1) // row_block
        column_blocks = (out_w + column_block - 1) // column_block
        filter_blocks = (filters + filter_block - 1) // filter_block
        widest = vectors * vector_length(x)
        tall = column_rows(x)
        for unit in range(lo, hi):
            i0 = unit % row_blocks * row_block
            rest = unit // row_blocks
            j0 = rest % column_blocks * column_block
            rest = rest // column_blocks
            f0 = rest % filter_blocks * filter_block
            z = rest // filter_blocks % out_d
            image = rest // filter_blocks // out_d  # of all images' groups
            f1 = min(f0 + filter_block, filters)
            count = min(column_block, out_w - j0)
            height_here = min(row_block, out_h - i0)
            first = image * filters
            weights = (image % groups) * filters
            target = offset(y, ((first * out_d + z) * out_h + i0) * out_w + j0)
            target_line = out_w
            pitch = out_d * out_h * out_w
            if scattered:
                target = offset(buffer, laid_out - f0 * row_block * column_block)
                target_line = column_block
                pitch = row_block * column_block
            # tiles run along one long line of pixels, or along each row
            lines = 1
            pixels = height_here * column_block
            if together or count < column_block:
                lines = height_here
                pixels = count
            filled = pixels
            if f1 - f0 >= tall and tall >= rows:  # of short vectors it takes some filters
                filled -= stragglers(pixels, vector_length(x))
            for c in range(0, max(channels, 1), channel_block):
                some = min(channel_block, channels - c)
                limited = limits[0] if c + some >= channels else 0
                source = offset(x, image * channels // depth_taps * depth * height * width)
                lay_out_rows(
                    source, buffer, c, c + some, depths, depth_taps, depth, z * stride_d,
                    height, width, shifts, copies, slots, slot_count, i0 * stride_h,
                    j0 * stride_w, line, stride_w,
                )  # fmt: skip
                clear_run(offset(buffer, some * copies * slot_count * line), x, widest)
                for i in range(lines):
                    for p in range(0, filled, widest):
                        for f in range(f0, f1, rows):
                            if i == 0 and p == 0:  # what the next tile reads
                                ahead = ((weights + f + rows) * channels + c) * taps
                                if f + rows >= f1:
                                    ahead = (weights + f1) * channels * taps
                                    if c + some < channels:
                                        ahead = ((weights + f0) * channels + c + some) * taps
                                there = offset(w, ahead)
                                prefetch_rows(there, channels * taps, rows, some * taps)
                            place = offset(target, f * pitch + i * target_line + p)
                            start = place
                            mode = 1
                            if c == 0:
                                mode = 2 * biased
                                if biased:
                                    start = offset(bias, weights + f)
                            tile(
                                some * taps,
                                offset(w, ((weights + f) * channels + c) * taps),
                                channels * taps,
                                1,
                                offset(buffer, i * line + p),
                                table,
                                place,
                                pitch,
                                mode,
                                start,
                                pitch if c > 0 else 1,
                                f1 - f,
                                min(widest, filled - p),
                                limited,
                                limits,
                            )
                            if p + widest < filled or (f - f0) % tall > 0:
                                continue
                            for q in range(filled, pixels, 4):
                                place = offset(target, f * pitch + i * target_line + q)
                                if mode == 1:
                                    start = place
                                column_tile(
                                    some * taps,
                                    offset(w, ((weights + f) * channels + c) * taps),
                                    channels * taps,
                                    offset(buffer, i * line + q),
                                    table,
                                    place,
                                    pitch,
                                    mode,
                                    start,
                                    pitch if c > 0 else 1,
                                    f1 - f,
                                    pixels - q,
                                    limited,
                                    limits,
                                )
            if scattered:
                for f in range(f0, f1):
                    for i in range(height_here):
                        plane = (first + f) * whole_d + z * step_d + first_d
                        row = plane * plane_h + (i0 + i) * step_h + first_h
                        at = row * plane_w + j0 * step_w + first_w
                        held = f * pitch + i * column_block
                        for j in range(count):
                            y[at + j * step_w] = target[held + j]

    return slide_filters


def plane_of(channel, depths, depth_taps, depth, front):
    """The plane that a channel under a plane of the filter sees; -1: one beyond the volume."""
    at = front + depths[channel % depth_taps]
    return channel // depth_taps * depth + at if 0 <= at < depth else -1


def lay_out_rows(
    x, buffer, channel, channel_end, depths, depth_taps, depth, front, height, width, shifts,
    copies, slots, slot_count, top, left, columns, stride,
):  # fmt: skip
    """Rows of the image as the filter's columns see them, zeros around it."""
    to = buffer
    for c in range(channel, channel_end):
        plane = plane_of(c, depths, depth_taps, depth, front)
        for s in range(copies):
            shift = shifts[s] + left  # image column of the first pixel
            begin = min(columns, (max(0, -shift) + stride - 1) // stride)
            end = max(begin, min(columns, (width - shift + stride - 1) // stride))
            for t in range(slot_count):
                row = slots[t] + top
                if plane < 0 or row < 0 or row >= height or begin > 0 or end < columns:
                    clear_run(to, x, columns)
                if plane >= 0 and 0 <= row < height:
                    source = offset(x, (plane * height + row) * width + shift)
                    if stride == 1:
                        copy_run(offset(to, begin), offset(source, begin), end - begin)
                    elif stride == 2:
                        thin_run(offset(to, begin), offset(source, begin * 2), end - begin)
                    else:
                        for j in range(begin, end):
                            to[j] = source[j * stride]
                to = offset(to, columns)
