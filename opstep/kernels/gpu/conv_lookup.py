"""Kernels of convolutions and their derivatives.

Each is a matrix product whose right operand is looked up in the images (an implicit GEMM): a row
of the result is a filter, a column a pixel, a term of the sum one tap of the filter. `taps` says of
each term where it looks, as one number: ``channel offset << 24 | rows down << 12 | columns right``.
"""

from __future__ import annotations

from functools import cache

from opstep.kernels.gpu.tile import Tile, putter, thread_place
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.names import cuda, div32, pointer_to, real, spread
from opstep.runtime.device.source import Intrinsic


class Taps:
    """How a tap is packed."""

    DOWN, CHANNEL, MOST = 12, 24, 1 << 12


_DOWN, _CHANNEL, _MASK = Taps.DOWN, Taps.CHANNEL, Taps.MOST - 1


@cache
def looker(sign: int, row_stride: int, column_stride: int):
    """(image, top, left, tap, height, width) -> the element that a tap looks at, zero outside.

    `sign` -1: a derivative by the images looks back; only where a window began, `stride` apart, is
    there anything to see.
    """
    plain = row_stride == 1 and column_stride == 1

    def look(image, top, left, tap, height, width):
        h = top + sign * ((tap >> _DOWN) & _MASK)
        w = left + sign * (tap & _MASK)
        value = real(0.0)
        if plain:
            if h >= 0 and h < height and w >= 0 and w < width:
                value = real(image[(tap >> _CHANNEL) + h * width + w])
        elif h >= 0 and w >= 0:
            i, j = div32(h, row_stride), div32(w, column_stride)
            if i * row_stride == h and j * column_stride == w and i < height and j < width:
                value = real(image[(tap >> _CHANNEL) + i * width + j])
        return value

    return look


@cache
def convolver(
    tile: Tile, sign: int, row_stride: int, column_stride: int, tabled: bool, c_wide: int
):
    """The kernel for tiles of that shape. `tabled`: filters are not laid out in order of terms, and
    `places` says where each stands; `c_wide`: pixels that are written at once.
    """
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    rows, columns, right_at = tile.rows, tile.columns, tile.right_at
    run, row_gap, column_gap = tile.run, tile.row_gap, tile.column_gap
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    count, size = thread_rows * thread_columns, 2 * stage
    left_units, right_units = rows * steps // threads, columns * steps // threads
    lines = threads // columns  # terms that the threads look up together
    put_left = putter(rows, steps, threads, True, 1, tile.left_pitch)
    put_right = putter(columns, steps, threads, False, 1, tile.right_pitch)
    multiply, place = tile.product(), thread_place(tile)
    look = looker(sign, row_stride, column_stride)
    zeros = Intrinsic("fill", count)
    gather, store = Intrinsic("gather", c_wide), Intrinsic("store", c_wide)

    def fetch_filters(held, filters, places, first, limit, k, k_end, pitch, thread):
        for u in range(left_units):
            unit = thread + u * threads
            row, term = first + unit // steps, k + unit % steps
            if term < k_end and row < limit:
                at = places[term] if tabled else term
                held[u] = filters[row * pitch + at]
            else:
                held[u] = 0.0

    def fetch_pixels(held, image, taps, top, left, height, width, k, k_end, thread):
        for u in range(right_units):
            term = k + thread // columns + u * lines
            if term < k_end:
                held[u] = look(image, top, left, taps[term], height, width)
            else:
                held[u] = 0.0

    def convolve(
        filters, image, bias, out, taps, places, filter_pitch, group_filters, group_rows,
        image_size, group_image, height, width, out_width, plane, pixels, out_size, row_step,
        column_step, before, left_of, terms, down, across, groups, parts, part_steps, part_size,
        biased,
    ):  # fmt: skip
        """out[part, n, group*rows + row, pixel] = the sum over a part of the terms (+ a bias)."""
        memory = cuda.shared.array(size, real)
        left_held = pointer_to(cuda.local.array(left_units, real))
        right_held = pointer_to(cuda.local.array(right_units, real))
        thread = cuda.threadIdx.x
        tile_row, unit = cuda.blockIdx.y, cuda.blockIdx.z
        part = div32(unit, groups)
        group = unit - part * groups
        row0, column0 = tile_row * rows, cuda.blockIdx.x * columns
        begin = part * part_steps
        end = min(begin + part_steps, terms)
        pixel = min(column0 + thread % columns, pixels - 1)
        n = div32(pixel, plane)
        i = div32(pixel - n * plane, out_width)
        j = pixel - n * plane - i * out_width
        top, left = i * row_step + before, j * column_step + left_of
        source = offset(image, n * image_size + group * group_image)
        weights = offset(filters, group * group_filters)
        row, column = place(thread)
        shared = pointer_to(memory)
        sums = zeros(0.0)
        fetch_filters(
            left_held, weights, places, row0, group_rows, begin, end, filter_pitch, thread
        )
        fetch_pixels(right_held, source, taps, top, left, height, width, begin, end, thread)
        put_left(shared, left_held, thread)
        put_right(offset(shared, right_at), right_held, thread)
        cuda.syncthreads()
        at = 0
        for step in range(begin, end, steps):
            ahead = step + steps
            if ahead < end:
                fetch_filters(
                    left_held, weights, places, row0, group_rows, ahead, end, filter_pitch, thread
                )
                fetch_pixels(right_held, source, taps, top, left, height, width, ahead, end, thread)
            here = offset(shared, at)
            sums = multiply(sums, offset(here, row), offset(here, right_at + column))
            at = stage - at
            if ahead < end:
                put_left(offset(shared, at), left_held, thread)
                put_right(offset(shared, at + right_at), right_held, thread)
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(count, real))
        spread(held, sums)
        for b in range(0, thread_columns, c_wide):
            q = column0 + column + b // run * column_gap + b % run
            if q < pixels:
                image_of = div32(q, plane)
                to = offset(
                    out,
                    part * part_size + image_of * out_size + group * group_rows * plane
                    + q - image_of * plane,
                )  # fmt: skip
                for a in range(thread_rows):
                    r = row0 + row + a // run * row_gap + a % run
                    if r < group_rows:
                        mine = offset(held, a * thread_columns + b)
                        if biased:
                            for e in range(c_wide):
                                mine[e] += bias[group * group_rows + r]
                        if c_wide > 1:
                            store(to, r * plane, gather(mine))
                        else:
                            to[r * plane] = mine[0]

    return convolve


@cache
def filter_deriver(tile: Tile):
    """The kernel for derivatives by filters: rows are filters, columns their taps, terms pixels."""
    threads, steps, stage = tile.threads, tile.steps, tile.stage
    rows, columns, right_at = tile.rows, tile.columns, tile.right_at
    run, row_gap, column_gap = tile.run, tile.row_gap, tile.column_gap
    thread_rows, thread_columns = tile.thread_rows, tile.thread_columns
    count, size = thread_rows * thread_columns, 2 * stage
    left_units, right_units = rows * steps // threads, columns * steps // threads
    lines = threads // steps  # rows, or columns, whose terms the threads read together
    put_left = putter(rows, steps, threads, True, 1, tile.left_pitch)
    put_right = putter(columns, steps, threads, True, 1, tile.right_pitch)
    multiply, place = tile.product(), thread_place(tile)
    look = looker(1, 1, 1)
    zeros = Intrinsic("fill", count)

    def fetch(
        left_held, right_held, gradient, image, taps, row0, group_rows, column0, terms_across,
        pixel, end, plane, out_width, gradient_size, image_size, height, width, row_step,
        column_step, before, left_of, thread,
    ):  # fmt: skip
        there = pixel < end
        pixel = min(pixel, end - 1)
        n = div32(pixel, plane)
        i = div32(pixel - n * plane, out_width)
        j = pixel - n * plane - i * out_width
        top, left = i * row_step + before, j * column_step + left_of
        given = offset(gradient, n * gradient_size + pixel - n * plane)
        source = offset(image, n * image_size)
        line = thread // steps
        for u in range(left_units):
            row = row0 + line + u * lines
            left_held[u] = given[row * plane] if there and row < group_rows else 0.0
        for u in range(right_units):
            column = column0 + line + u * lines
            if there and column < terms_across:
                right_held[u] = look(source, top, left, taps[column], height, width)
            else:
                right_held[u] = 0.0

    def derive(
        gradient, image, out, taps, group_rows, terms_across, gradient_size, image_size,
        group_image, height, width, out_width, plane, pixels, row_step, column_step, before,
        left_of, groups, parts, part_steps, part_size,
    ):  # fmt: skip
        """out[part, group*rows + row, column] = the sum over a part of the pixels."""
        memory = cuda.shared.array(size, real)
        left_held = pointer_to(cuda.local.array(left_units, real))
        right_held = pointer_to(cuda.local.array(right_units, real))
        thread = cuda.threadIdx.x
        unit = cuda.blockIdx.z
        part = div32(unit, groups)
        group = unit - part * groups
        row0, column0 = cuda.blockIdx.y * rows, cuda.blockIdx.x * columns
        begin = part * part_steps
        end = min(begin + part_steps, pixels)
        given = offset(gradient, group * group_rows * plane)
        source = offset(image, group * group_image)
        row, column = place(thread)
        shared = pointer_to(memory)
        sums = zeros(0.0)
        fetch(
            left_held, right_held, given, source, taps, row0, group_rows, column0, terms_across,
            begin + thread % steps, end, plane, out_width, gradient_size, image_size, height, width,
            row_step, column_step, before, left_of, thread,
        )  # fmt: skip
        put_left(shared, left_held, thread)
        put_right(offset(shared, right_at), right_held, thread)
        cuda.syncthreads()
        at = 0
        for step in range(begin, end, steps):
            ahead = step + steps
            if ahead < end:
                fetch(
                    left_held, right_held, given, source, taps, row0, group_rows, column0,
                    terms_across, ahead + thread % steps, end, plane, out_width, gradient_size,
                    image_size, height, width, row_step, column_step, before, left_of, thread,
                )  # fmt: skip
            here = offset(shared, at)
            sums = multiply(sums, offset(here, row), offset(here, right_at + column))
            at = stage - at
            if ahead < end:
                put_left(offset(shared, at), left_held, thread)
                put_right(offset(shared, at + right_at), right_held, thread)
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(count, real))
        spread(held, sums)
        to = offset(out, part * part_size + group * group_rows * terms_across)
        for a in range(thread_rows):
            r = row0 + row + a // run * row_gap + a % run
            if r < group_rows:
                for b in range(thread_columns):
                    q = column0 + column + b // run * column_gap + b % run
                    if q < terms_across:
                        to[r * terms_across + q] = held[a * thread_columns + b]

    return derive


def add_up(parts, bias, out, size, count, plane, channels, biased):
    """out[i] = the sum of `count` parts (+ the bias of its channel): a thread an element."""
    i = cuda.grid(1)
    if i < size:
        total = parts[i]
        for p in range(1, count):
            total += parts[p * size + i]
        if biased:
            channel = div32(i, plane)
            total += bias[channel - div32(channel, channels) * channels]
        out[i] = total


@cache
def one_by_one(sign: int, row_stride: int, column_stride: int, tabled: bool):
    """A thread an output: for filters of few channels (depthwise), and for integers."""

    def convolve(
        filters, image, bias, out, taps, places, filter_pitch, group_filters, group_rows,
        image_size, group_image, height, width, out_width, plane, size, row_step, column_step,
        before, left_of, terms, groups, biased,
    ):  # fmt: skip
        index = cuda.grid(1)
        if index < size:
            row = index // plane
            pixel = index - row * plane
            channels = groups * group_rows
            n = row // channels
            channel = row - n * channels
            group = channel // group_rows
            i = pixel // out_width
            j = pixel - i * out_width
            top, left = i * row_step + before, j * column_step + left_of
            source = offset(image, n * image_size + group * group_image)
            weights = offset(
                filters, group * group_filters + (channel - group * group_rows) * filter_pitch
            )
            total = bias[channel] if biased else 0.0
            for term in range(terms):
                tap = taps[term]
                h = top + sign * ((tap >> _DOWN) & _MASK)
                w = left + sign * (tap & _MASK)
                if h >= 0 and w >= 0:
                    r, s = div32(h, row_stride), div32(w, column_stride)
                    fits = r * row_stride == h and s * column_stride == w
                    if fits and r < height and s < width:
                        weight = weights[places[term] if tabled else term]
                        total += source[(tap >> _CHANNEL) + r * width + s] * weight
            out[index] = total

    return convolve


def derive_one_by_one(
    gradient, image, out, taps, group_rows, terms, gradient_size, image_size, group_image, height,
    width, out_width, plane, images, row_step, column_step, before, left_of, size,
):  # fmt: skip
    """A thread an element of the filters' derivative, for integers."""
    index = cuda.grid(1)
    if index < size:
        row = index // terms
        tap = taps[index - row * terms]
        group = row // group_rows
        total = 0.0
        for n in range(images):
            given = offset(gradient, n * gradient_size + row * plane)
            source = offset(image, n * image_size + group * group_image + (tap >> _CHANNEL))
            for pixel in range(plane):
                i = pixel // out_width
                h = i * row_step + before + ((tap >> _DOWN) & _MASK)
                w = (pixel - i * out_width) * column_step + left_of + (tap & _MASK)
                if h >= 0 and h < height and w >= 0 and w < width:
                    total += given[pixel] * source[h * width + w]
        out[index] = total
