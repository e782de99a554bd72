"""Convolutions with filters of one pixel on the CPU, as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.products import Side, transpose
from opstep.runtime.device.builtin import offset, thin_run
from opstep.runtime.device.launch import Launch, Scratch

_BLOCK = 64  # columns that are turned at a time


def mix_channels(x, w, bias, y, stride: Sequence[int]) -> list[Launch]:
    """Filters of one pixel: a product of the filters and each image's channels."""
    (images, channels), filters, pixels = x.shape[:2], y.shape[1], math.prod(y.shape[2:])
    launches = []
    seen = x
    if x.shape[2:] != y.shape[2:]:
        seen = Scratch(x.dtype, images * channels * pixels)
        sizes = (*x.shape[2:], *y.shape[2:], *stride)
        launches.append(Launch(thin_out, x, seen, *sizes, units=images * channels, grain=8))
    shape, of_filters, of_images = (), (), ()
    if images > 1:
        shape, of_filters, of_images = (images,), (0,), (channels * pixels,)
    left, right = Side(w, channels, 1, of_filters), Side(seen, pixels, 1, of_images)
    launches += product(left, right, y, shape, filters, pixels, channels, bias, of_rows=True)
    return launches


def mix_channels_back(gy, w, bias, gx) -> list[Launch]:
    """What each channel receives through filters of one pixel, stride 1."""
    filters, channels = gy.shape[1], gx.shape[1]
    turned = Scratch(w.dtype, filters * channels)
    units = -(-channels // _BLOCK)
    turn = Launch(turn_matrix, w, turned, filters, channels, units=units, grain=1)
    return [turn, *mix_channels(gy, turned, bias, gx, ())]


def turn_matrix(x, y, rows, columns, lo, hi):
    """y[j, i] = x[i, j]; a unit is `_BLOCK` columns."""
    for unit in range(lo, hi):
        j = unit * _BLOCK
        transpose(offset(x, j), columns, offset(y, j * rows), rows, rows, min(_BLOCK, columns - j))


def thin_out(x, y, height, width, out_h, out_w, stride_h, stride_w, lo, hi):
    """The pixels that strides do not leave out, of one channel a unit."""
    for unit in range(lo, hi):
        for i in range(out_h):
            source = offset(x, (unit * height + i * stride_h) * width)
            to = offset(y, (unit * out_h + i) * out_w)
            if stride_w == 2:
                thin_run(to, source, out_w)
            else:
                for j in range(out_w):
                    to[j] = source[j * stride_w]
