"""Convolutions of each channel by a filter of its own, on CUDA.

A block takes a part of a plane, or some small planes, into shared memory, with the zeros around
them. A thread makes a strip of outputs that stand below each other: for each column of the filter
it reads what all of them see once, and multiplies it by that column's weights.
"""

from __future__ import annotations

from functools import cache

from opstep.kernels.conv.correlation import Depth, Geometry
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to, real
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.texts import from_text

THREADS = 128
_STRIPS = (14, 8, 7, 4, 1)  # outputs a thread
_ROOM = 24 << 10  # bytes of shared memory, so that a multiprocessor holds many blocks
_WIDEST = 64  # columns of outputs, where a plane does not fit
_WIDEST_LINE = 1024  # where it has one row
_BLOCKS = 264  # that are wanted: two for each multiprocessor
_MOST_TAPS = 128
_MOST_SPAN = 16  # rows and columns from a filter's first to its last
_MOST_OF_LINE = 64  # columns, where there is one row


def is_for(x: Arg, y: Arg, groups: int, g: Geometry) -> bool:
    """Whether these are such filters, and nothing stands between their outputs."""
    alone = groups == x.shape[1] == y.shape[1] and x.dtype.is_float and x.size and y.size
    alone = alone and g.depth == Depth()
    taps, high, wide = len(g.rows) * len(g.columns), span_of(g.rows), span_of(g.columns)
    most = _MOST_OF_LINE if high == g.out[0] == 1 else _MOST_SPAN
    small = taps <= _MOST_TAPS and high <= _MOST_SPAN and wide <= most and max(g.stride) <= 4
    return bool(alone and small and not g.scattered and max(x.size, y.size) < LIMIT)


def span_of(places: tuple[int, ...]) -> int:
    return max(places) - min(places) + 1


def convolve(x: Arg, w: Arg, bias: Arg | None, y: Arg, g: Geometry) -> Grid:
    """x [N, C, H, W] under filters w [C, 1, R, S] into y [N, C, *g.out]."""
    (down, right), taps = g.stride, len(g.rows) * len(g.columns)
    planes, (out_h, out_w) = x.shape[0] * x.shape[1], g.out
    high, wide = span_of(g.rows), span_of(g.columns)
    strip = min(_STRIPS, key=lambda n: -(-out_h // n) * (n * taps + _reads(n, g) + 40))
    itemsize = x.dtype.itemsize

    def room(rows: int, columns: int) -> int:
        """Bytes for what so many rows and columns of outputs see."""
        return itemsize * (((rows - 1) * down + high) * ((columns - 1) * right + wide) + taps)

    rows = -(-out_h // strip) * strip
    widest = _WIDEST_LINE if out_h == high == 1 else _WIDEST
    columns = out_w if room(rows, out_w) <= _ROOM else min(out_w, widest)
    across = -(-out_w // columns)
    while rows > strip and (
        room(rows, columns) > _ROOM or planes * across * -(-out_h // rows) < _BLOCKS
    ):
        rows = -(-rows // strip // 2) * strip
    tiles = -(-out_h // rows)
    some = 1
    if tiles == across == 1:  # planes that are small are taken together
        items = rows // strip * columns
        some = max(1, min(_ROOM // room(rows, columns), -(-4 * THREADS // items)))
        some = max(1, min(some, planes // _BLOCKS))
    in_h, in_w = (rows - 1) * down + high, (columns - 1) * right + wide
    lows = min(g.rows), min(g.columns)
    step = (*g.columns, *g.columns)[1] - g.columns[0]  # 0 where there is one
    kernel = kernel_of(
        tuple(r - lows[0] for r in g.rows), len(g.columns), g.columns[0] - lows[1], step, down,
        right, strip,
    )  # fmt: skip
    return Grid(
        *(kernel, x, w, bias or x, y, planes, x.shape[1], *x.shape[2:], out_h, out_w, *lows),
        *(tiles, across, rows, columns, some, in_h, in_w, bias is not None),
        grid=-(-planes // some) * tiles * across,
        block=THREADS,
        shared=some * room(rows, columns),
    )


def _reads(strip: int, g: Geometry) -> int:
    """Of shared memory, by a thread."""
    seen = (strip - 1) * g.stride[0] + span_of(g.rows)
    return (seen + len(g.rows)) * len(g.columns)


@cache
def kernel_of(
    rows: tuple[int, ...], columns: int, first: int, step: int, down: int, right: int, strip: int
):
    """Filter row r looks `rows[r]` rows below the first, column s ``first + s * step`` right of
    it; `down` and `right` are the strides.
    """
    taps, seen = len(rows) * columns, (strip - 1) * down + max(rows) + 1
    sums = [f"a{k}" for k in range(strip)]
    text = [
        "def convolve(",
        "    x, w, bias, y, planes, channels, height, width, out_h, out_w, top, left, tiles,",
        "    across, tile_h, tile_w, some, in_h, in_w, biased,",
        "):",
        "    shared = pointer_to(cuda.shared.array(0, real))",
        "    thread = cuda.threadIdx.x",
        "    above = div32(cuda.blockIdx.x, across)",
        "    column0 = (cuda.blockIdx.x - above * across) * tile_w",
        "    first = div32(above, tiles)",
        "    row0 = (above - first * tiles) * tile_h",
        "    p0 = first * some",
        "    here = min(some, planes - p0)",
        f"    low, near = row0 * {down} + top, column0 * {right} + left",
        "    area = in_h * in_w",
        "    images = offset(x, p0 * height * width)",
        f"    for k in range(thread, here * area, {THREADS}):",
        "        p = div32(k, area)",
        "        at = k - p * area",
        "        i = div32(at, in_w)",
        "        r = low + i",
        "        c = near + at - i * in_w",
        "        v = 0.0",
        "        if 0 <= r < height and 0 <= c < width:",
        "            v = images[(p * height + r) * width + c]",
        "        shared[k] = v",
        "    weights = offset(shared, some * area)",
        f"    for k in range(thread, here * {taps}, {THREADS}):",
        f"        p = div32(k, {taps})",
        f"        weights[k] = w[(p0 + p) % channels * {taps} + k - p * {taps}]",
        "    cuda.syncthreads()",
        f"    items = div32(tile_h, {strip}) * tile_w",
        f"    for item in range(thread, here * items, {THREADS}):",
        "        p = div32(item, items)",
        "        at = item - p * items",
        "        run = div32(at, tile_w)",
        "        j = at - run * tile_w",
        f"        i = run * {strip}",
        f"        source = offset(shared, p * area + i * {down} * in_w + j * {right} + {first})",
        f"        own = offset(weights, p * {taps})",
        *(f"        {a} = 0.0" for a in sums),
        f"        for s in range({columns}):",
        *(f"            v{k} = source[{k} * in_w]" for k in range(seen)),
    ]
    for r, row in enumerate(rows):
        text.append(f"            weight = own[{r * columns} + s]")
        text += [f"            {a} += weight * v{k * down + row}" for k, a in enumerate(sums)]
    text += [
        f"            source = offset(source, {step})",
        "        if biased:",
        "            b = bias[(p0 + p) % channels]",
        *(f"            {a} += b" for a in sums),
        "        i += row0",
        "        j += column0",
        "        if j < out_w:",
        "            target = offset(y, ((p0 + p) * out_h + i) * out_w + j)",
    ]
    for k, a in enumerate(sums):
        text += [f"            if i + {k} < out_h:", f"                target[{k} * out_w] = {a}"]
    scope = {"cuda": cuda, "div32": div32, "offset": offset, "pointer_to": pointer_to, "real": real}
    name = f"{len(rows)}x{columns} by strips of {strip}"
    return from_text("\n".join(text) + "\n", name, "convolve", scope)
