"""As `cuda_depthwise`, where images and results have their channels last.

A block takes a part of an image and some channels into shared memory, with the zeros around them. A
thread makes a strip of outputs that stand below each other, of two channels. Taps are summed in the
order of `cuda_depthwise`, which gives the same bits.

With them MobileNet v2 takes 1.23 ms instead of 1.70, and ConvNeXt-T 2.14 instead of 3.18, of which
transposes were a part (bf16, batch 32, ``--kernels numba``).
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

from opstep.kernels.conv.correlation import Geometry
from opstep.kernels.conv.cuda_depthwise import span_of
from opstep.kernels.pointwise.cuda_epilogue import Ending, ending_of, finishing
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    load2,
    pointer_to,
    real,
    store2,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text

_THREADS = 128
_AHEAD = 4  # vectors that a thread reads before it waits for one
_STRIPS = (8, 7, 4, 2, 1)  # outputs a thread
_WIDTHS = (16, 14, 8, 7, 4)  # columns of outputs that a block has
_PAIRS = 16  # of channels that a block has, at most
_LEAST_PAIRS = 8  # at least, where there are more: so many lie beside each other
_ROOM = 44 << 10  # bytes of shared memory: four blocks have room on a multiprocessor
_BLOCKS = 132 * 4  # that run at once
_MOST_BLOCKS = 1 << 16  # along the second axis of a grid
_READ, _FILL, _FIXED = 2, 12, 40  # times of a read from shared memory, a fill, and a strip


class _Tile(NamedTuple):
    """What a block makes: so many outputs below each other a thread, in so many columns."""

    strip: int
    columns: int


def is_for(x: Arg) -> bool:
    """Whether so many channels can be shared out, besides what `cuda_depthwise.is_for` says."""
    pairs = x.shape[-1] // 2
    some = _pairs(pairs) if x.shape[-1] % 2 == 0 else 0
    return some >= max(1, min(_LEAST_PAIRS, pairs)) and pairs // some < _MOST_BLOCKS


def _pairs(pairs: int) -> int:
    """Those of a block: they share out all."""
    return max(n for n in range(1, min(pairs, _PAIRS) + 1) if pairs % n == 0)


def _seen(tile: _Tile, g: Geometry) -> tuple[int, int]:
    """Rows and columns of the image that a block looks at."""
    return (
        (tile.strip - 1) * g.stride[0] + span_of(g.rows),
        (tile.columns - 1) * g.stride[1] + span_of(g.columns),
    )


def _room(tile: _Tile, g: Geometry, pairs: int) -> int:
    """Bytes of shared memory: of images, and of filters."""
    rows, columns = _seen(tile, g)
    return 4 * (2 * pairs * rows * columns + len(g.rows) * len(g.columns) * _line(pairs))


def _line(pairs: int) -> int:
    """Numbers from one tap's weights to the next one's: so that of those which are laid out at once
    few lie in one bank.
    """
    return 2 * pairs + 2


def _time(tile: _Tile, images: int, channels: int, g: Geometry, pairs: int) -> float:
    """Of all blocks, in instructions of a thread."""
    rows, columns = _seen(tile, g)
    products = 2 * tile.strip * len(g.rows) + _READ * (rows + len(g.rows))
    strip = len(g.columns) * products + _FIXED
    filled = _FILL * (rows * columns * pairs + len(g.rows) * len(g.columns) * pairs)
    each = -(-tile.columns * pairs // _THREADS) * strip + filled / _THREADS
    down, across = -(-g.out[0] // tile.strip), -(-g.out[1] // tile.columns)
    blocks = images * down * across * (channels // 2 // pairs)
    return each * max(1.0, blocks / _BLOCKS)


def convolve(x: Arg, w: Arg, bias: Arg | None, y: Arg | Scratch, g: Geometry) -> Grid:
    """x [N, H, W, C] under filters w [C, 1, R, S] into y [N, *g.out, C], which may have an
    epilogue.
    """
    images, height, width, channels = x.shape
    out_h, out_w = g.out
    pairs = _pairs(channels // 2)
    tiles = [_Tile(*t) for t in product(_STRIPS, (out_w, *_WIDTHS)) if t[1] <= min(out_w, 16)]
    tiles = [t for t in tiles if _room(t, g, pairs) <= _ROOM] or [_Tile(1, 1)]
    tile = min(tiles, key=lambda t: _time(t, images, channels, g, pairs))
    down, across = -(-out_h // tile.strip), -(-out_w // tile.columns)
    lows = min(g.rows), min(g.columns)
    step = (*g.columns, *g.columns)[1] - g.columns[0]  # 0 where there is one
    ending, rest = ending_of(y, channels, 1)
    kernel = kernel_of(
        tuple(r - lows[0] for r in g.rows), len(g.columns), g.columns[0] - lows[1], step, g.stride,
        pairs, tile, ending,
    )  # fmt: skip
    target = x if ending else y  # one that is not written
    return Grid(
        *(kernel, x, w, bias or x, target, channels, height, width, out_h, out_w, *lows),
        *(down, across, bias is not None, *rest),
        grid=(images * down * across, channels // 2 // pairs),
        block=_THREADS,
        shared=_room(tile, g, pairs) + (8 * tile.strip * _THREADS if ending else 0),
    )


@cache
def kernel_of(
    rows: tuple[int, ...], columns: int, first: int, step: int, stride: tuple[int, int],
    pairs: int, tile: _Tile, ending: Ending | None = None,
):  # fmt: skip
    """As `cuda_depthwise.kernel_of`; a block has so many pairs of channels, and one tile. With an
    `ending` a thread puts its sums into shared memory, and finishes them there.
    """
    (down, right), strip, taps, line = stride, tile.strip, len(rows) * columns, _line(pairs)
    in_h = (strip - 1) * down + max(rows) + 1
    last = first + (columns - 1) * step
    in_w = (tile.columns - 1) * right + max(first, last) + 1
    wide = 2 if pairs % 2 else 4  # channels that are read at once
    parts = 2 * pairs // wide
    text = [
        "def convolve(",
        "    x, w, bias, y, channels, height, width, out_h, out_w, top, left, tiles, across,",
        "    biased, rest,",
        "):",
        "    shared = pointer_to(cuda.shared.array(0, real))",
        "    thread = cuda.threadIdx.x",
        f"    c0 = cuda.blockIdx.y * {2 * pairs}",
        "    above = div32(cuda.blockIdx.x, across)",
        f"    column0 = (cuda.blockIdx.x - above * across) * {tile.columns}",
        "    n = div32(above, tiles)",
        f"    row0 = (above - n * tiles) * {strip}",
        f"    low, near = row0 * {down} + top, column0 * {right} + left",
        "    image = offset(x, n * height * width * channels + c0)",
        "    zero = real(0.0)",
        f"    for k0 in range(thread, {in_h * in_w * parts}, {_AHEAD * _THREADS}):",
    ]
    for m in range(_AHEAD):
        text += [
            f"        k{m} = k0 + {m * _THREADS}",
            f"        at = div32(k{m}, {parts})",
            f"        i = div32(at, {in_w})",
            "        r = low + i",
            f"        c = near + at - i * {in_w}",
            f"        there{m} = 0 <= r < height and 0 <= c < width",
            f"        own = (r * width + c) * channels + {wide} * (k{m} - at * {parts})",
            f"        v{m} = load(image, own if there{m} else 0)",
        ]
    for m in range(_AHEAD):
        numbers = ", ".join(f"v{m}[{n}] if there{m} else zero" for n in range(wide))
        text += [
            f"        if k{m} < {in_h * in_w * parts}:",
            f"            store(shared, {wide} * k{m}, ({numbers}))",
        ]
    text += [
        f"    weights = offset(shared, {2 * in_h * in_w * pairs})",
        f"    for k in range(thread, {2 * pairs * taps}, {_THREADS}):",
        f"        c = div32(k, {taps})",
        f"        weights[(k - c * {taps}) * {line} + c] = w[c0 * {taps} + k]",
        "    cuda.syncthreads()",
        f"    for item in range(thread, {tile.columns * pairs}, {_THREADS}):",
        f"        j = div32(item, {pairs})",
        f"        c = 2 * (item - j * {pairs})",
        f"        source = offset(shared, (j * {right} + {first}) * {2 * pairs} + c)",
        "        own = offset(weights, c)",
        *(f"        a{k} = 0.0\n        b{k} = 0.0" for k in range(strip)),
        f"        for s in range({columns}):",
        *(f"            v{k} = load2(source, {k * in_w * 2 * pairs})" for k in range(in_h)),
    ]
    for r, row in enumerate(rows):
        text.append(f"            p = load2(own, {r * columns * line})")
        for k in range(strip):
            text.append(f"            a{k} += p[0] * v{k * down + row}[0]")
            text.append(f"            b{k} += p[1] * v{k * down + row}[1]")
    text += [
        f"            source = offset(source, {step * 2 * pairs})",
        f"            own = offset(own, {line})",
        "        c += c0",
        "        if biased:",
        "            p = bias[c]",
        "            q = bias[c + 1]",
        *(f"            a{k} += p\n            b{k} += q" for k in range(strip)),
        "        j += column0",
        "        if j < out_w:",
        "            index = ((n * out_h + row0) * out_w + j) * channels + c",
        "            target = offset(y, index)",
    ]
    if ending:
        made = 2 * in_h * in_w * pairs + taps * line
        text += [
            f"            own = offset(shared, {made} + 2 * thread)",
            *(f"            store2(own, {2 * k * _THREADS}, (a{k}, b{k}))" for k in range(strip)),
            f"            left = min({strip}, out_h - row0)",
            f"            finish(target, own, 0, {2 * _THREADS}, index, out_w * channels, c, 0,",
            "                left, bias, 0, False, rest)",
        ]
    for k in range(0 if ending else strip):
        text += [
            f"            if row0 + {k} < out_h:",
            f"                store2(target, {k} * out_w * channels, (a{k}, b{k}))",
        ]
    scope = {
        "cuda": cuda, "div32": div32, "load2": load2, "offset": offset, "pointer_to": pointer_to,
        "load": Intrinsic("load", wide), "real": real, "store": Intrinsic("store", wide),
        "store2": store2, "finish": finishing(ending, 2, True, ahead=strip),
    }  # fmt: skip
    name = f"{len(rows)}x{columns} by strips of {strip}, channels last"
    return from_text("\n".join(text) + "\n", name, "convolve", scope)
