"""Convolutions by filters of 3x3 pixels, one pixel apart, on the CPU, by Winograd's F(2x2, 3x3).

Tiles of 2x2 results take 16 products for each channel where 36 is what it takes pixel by pixel.
Filters and images are transformed, then come 16 matrix products, whose results are transformed
back. Larger tiles would multiply less often still, but their results would depend on pixels outside
of their windows: one NaN would spread. Of these tiles each result depends on its window alone. Its
error is that of the window's largest pixels and weights, also where one of the two is 0; of dense
filters it is half to two thirds of that of a sum in turn.
"""

from __future__ import annotations

from math import prod

from opstep.kernels.conv.correlation import even
from opstep.kernels.matmul.matmul import products_of_panels
from opstep.kernels.matmul.products import PANEL, Side, clear_ends, transpose
from opstep.runtime.device.builtin import (
    clear_run,
    copy_run,
    fma,
    offset,
    thin_run,
    vector_length,
    winograd_filters,
    winograd_images,
    winograd_results,
)
from opstep.runtime.device.launch import Arg, Held, Launch, Scratch, Tiles
from opstep.runtime.ir.types import f32

_PLACES = 16  # products of a tile and a channel
_SIZE = 2  # results of a tile, along both axes
_ROWS = 8  # rows of tiles whose pixels are laid out at a time
_MEMORY = 2 << 20  # bytes of transformed images and products at a time, which a cache shall hold
_LEAST = 128  # tiles at a time even so, for the transformed filters are read again for the next
_SLACK = 64  # elements that vectors may read past the last
_LINE = 16  # elements of a line of a cache: what is read together must not share its place there

# Times of an element, in those of a product that is added to a sum.
_FILTER = 14  # of a transformed filter, which goes to memory
_IMAGE = 27  # of a transformed image
_RESULT = 13  # of a product that is transformed back


def pays(x, w, y, views, groups: int) -> bool:
    """Whether one image takes less time than pixel by pixel. That depends on shapes alone, so that
    bits do not depend on the machine, nor those of an image on how many there are.
    """
    if x.dtype != f32 or x.rank != 4 or groups != 1 or tuple(w.shape[2:]) != (3, 3):
        return False
    if any(v.stride != 1 or v.dilation != 1 for v in views):
        return False
    (filters, channels), tiles = w.shape[:2], _tiles(y)
    direct = filters * channels * 9 * prod(y.shape[2:])
    taken = filters * channels * (tiles + _FILTER)
    taken += tiles * (channels * _IMAGE + filters * _RESULT)
    return min(filters, channels) >= 16 and _PLACES * taken < 0.9 * direct


def _tiles(y) -> int:
    return prod(-(-size // _SIZE) for size in y.shape[2:])


def correlate(x, w, bias, y, views) -> list[Launch]:
    """x [N, C, H, W] under w [K, C, 3, 3] into y [N, K, H', W'], some rows of tiles at a time."""
    (images, channels), filters, size = x.shape[:2], y.shape[1], x.dtype.itemsize
    down, across = (-(-n // _SIZE) for n in y.shape[2:])
    panel, rows = PANEL // size, images * down
    fitting = max(_LEAST, _MEMORY // (_PLACES * size * (channels + filters)))
    some = even(rows, fitting // across)
    of_filters = filters * channels + _LINE
    of_images = -(-some * across // panel) * panel * channels + _LINE
    of_products = filters * some * across + _LINE
    turned = Scratch(x.dtype, _PLACES * of_filters)
    seen = Scratch(x.dtype, _PLACES * of_images + _SLACK)
    products = Held(x.dtype, (_PLACES, filters, some * across))
    products.size = _PLACES * of_products + _SLACK
    pixels = Scratch(x.dtype, 9 * channels + _SLACK, per_lane=True)
    lines = Scratch(x.dtype, (2 * min(_ROWS, down) + 2) * 2 * (across + 1) + _SLACK, per_lane=True)
    again = Scratch(x.dtype, 2 * y.shape[3] + 2, per_lane=True)
    launches = [
        Launch(
            *(turn_filters, w, turned, pixels, pixels.size, channels, of_filters),
            units=filters,
            grain=max(1, (1 << 14) // channels),
        )
    ]
    left, right = Side(turned, channels, 1, (of_filters,)), Side(seen, 1, 1, (of_images,))
    for first in range(0, rows, some):
        here = min(some, rows - first)
        grain = max(1, (1 << 12) // (here * across))
        launches.append(
            Launch(
                *(turn_images, x, seen, lines, lines.size, channels, of_images, first),
                *(here, *x.shape[2:], down, across, *(v.before for v in views)),
                units=channels,
                grain=grain,
            )
        )
        launches += products_of_panels(
            left, right, products, _PLACES, filters, here * across, channels, of_products
        )
        launches.append(
            Launch(
                *(turn_back, products, x, w, bias or x, y, bias is not None, channels, filters),
                *(of_products, first, here, *x.shape[2:], *y.shape[2:], down, across),
                *(*(v.before for v in views), again, again.size),
                units=filters,
                grain=grain,
                tiles=_planes(y) if images == 1 and here == rows else None,
            )
        )
    return launches


def _planes(y: Arg) -> Tiles:
    """A unit writes a plane."""
    pixels = prod(y.shape[2:])
    return Tiles(y, y.shape[1], pixels, 1, pixels)


def turn_filters(w, to, buffers, lane_size, channels, apart, lo, hi, lane):
    """to[e, k, c] from w[k, c]; a unit is a filter."""
    pixels = offset(buffers, lane * lane_size)
    length = vector_length(w)
    for k in range(lo, hi):
        transpose(offset(w, k * channels * 9), 9, pixels, channels, channels, 9)
        for c in range(0, channels, length):
            winograd_filters(
                offset(pixels, c), channels, offset(to, k * channels + c), apart,
                min(length, channels - c),
            )  # fmt: skip


def turn_images(
    x, to, buffers, lane_size, channels, apart, first, count, height, width, down, across, top,
    left, lo, hi, lane,
):  # fmt: skip
    """to[e], the panels of channels by tiles of products e, from `count` rows of tiles of x; a unit
    is a channel.
    """
    lines = offset(buffers, lane * lane_size)
    length = vector_length(x)
    panel = 3 * length  # columns of a panel, as `products.multiply` has them
    half = across + 1
    some = count * across % panel  # columns of the last panel, if it is not full
    for c in range(lo, hi):
        row = first
        last = offset(to, (count * across - some) * channels + c * panel)
        clear_ends(last, apart, _PLACES, some)
        while row < first + count:
            i0 = row % down
            rows = min(_ROWS, down - i0, first + count - row)
            plane = offset(x, (row // down * channels + c) * height * width)
            for r in range(2 * rows + 2):
                lay_out_halves(
                    plane, offset(lines, r * 2 * half), 2 * i0 + r - top, height, width, left, half
                )
            clear_run(offset(lines, (2 * rows + 2) * 2 * half), x, length)
            for i in range(rows):
                at = (row - first + i) * across
                j = 0
                while j < across:
                    place = (at + j) % panel
                    room = min(length, panel - place)
                    # A mask is slow. What a whole vector writes too much is overwritten by the next
                    # tiles or, where a panel ends, by the next channel, whose row follows; that of
                    # the last channel may be another lane's.
                    winograd_images(
                        offset(lines, i * 4 * half + j), 2 * half,
                        offset(to, (at + j - place) * channels + c * panel + place), apart,
                        room if c + 1 == hi else length,
                    )  # fmt: skip
                    j += min(room, across - j)
            row += rows


def lay_out_halves(plane, to, row, height, width, left, half):
    """A row of an image, zeros around it: every second pixel, then those between."""
    length = vector_length(plane)
    for odd in range(2):
        begin = min(half, max(0, (left - odd + 1) // 2))
        end = max(begin, min(half, (width + left - odd + 1) // 2))
        if row < 0 or row >= height:
            end = begin
        here = offset(to, odd * half)
        if begin > 0 or end < half:
            clear_run(here, plane, half)
        if begin < end:
            source = offset(plane, row * width + 2 * begin + odd - left)
            if end - begin < length:  # `thin_run` would need a mask
                for j in range(end - begin):
                    here[begin + j] = source[2 * j]
            else:
                thin_run(offset(here, begin), source, end - begin)


def turn_back(
    products, x, w, bias, y, biased, channels, filters, apart, first, count, height, width, out_h,
    out_w, down, across, top, left, buffers, lane_size, lo, hi, lane,
):  # fmt: skip
    """`count` rows of tiles of y from products [e, k, tile]; a unit is a filter."""
    line = offset(buffers, lane * lane_size)
    length = vector_length(y)
    for k in range(lo, hi):
        start = bias[k] if biased else 0.0
        source = offset(products, k * count * across)
        for row in range(first, first + count):
            n, i = row // down, row % down * 2
            to = offset(y, ((n * filters + k) * out_h + i) * out_w)
            odd = False
            for j in range(0, across, length):
                odd |= winograd_results(
                    offset(source, (row - first) * across + j), apart, start, offset(to, 2 * j),
                    out_w, min(2 * length, out_w - 2 * j), out_h - i,
                )  # fmt: skip
            if odd:
                for r in range(min(2, out_h - i)):
                    add_up_again(
                        offset(x, n * channels * height * width), offset(w, k * channels * 9),
                        start, offset(to, r * out_w), line, channels, height, width, out_w,
                        i + r - top, left,
                    )  # fmt: skip


def add_up_again(x, w, start, y, line, channels, height, width, columns, first, left):
    """A row of results anew, those that are infinite or NaN, each as a sum in turn: a transform
    takes differences of infinities where their sum is infinite, and can exceed what a sum does not.
    """
    pixels = offset(line, columns)
    for j in range(columns):
        line[j] = start
    clear_run(pixels, x, columns + 2)
    begin = min(columns + 2, left)
    end = max(begin, min(columns + 2, width + left))
    for c in range(channels):
        for r in range(3):
            at = first + r
            if 0 <= at < height:
                source = offset(x, (c * height + at) * width + begin - left)
                copy_run(offset(pixels, begin), source, end - begin)
            else:
                clear_run(pixels, x, columns + 2)
            a, b, d = w[c * 9 + r * 3], w[c * 9 + r * 3 + 1], w[c * 9 + r * 3 + 2]
            for j in range(columns):
                total = fma(b, pixels[j + 1], fma(a, pixels[j], line[j]))
                line[j] = fma(d, pixels[j + 2], total)
    for j in range(columns):
        if y[j] - y[j] != 0:
            y[j] = line[j]
