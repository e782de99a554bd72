"""Resizing of images: nearest or bilinear."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from opstep.kernels.conv.windows import per_axis, want_images, want_sizes
from opstep.kernels.pool.cuda_pool import upsampled, upsampled_gradient
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op

_GRAIN = 32768  # output elements under which another lane is not woken
MODES = ("nearest", "bilinear")


class Sampling(NamedTuple):
    """Where the pixels of one axis lie between those of the source: (i*step + start)/whole, at
    least 0.

    A fraction of integers, so that no rounding decides which pixel is the nearest.

    """

    step: int
    start: int
    divisor: int

    @classmethod
    def of(cls, size: int, out: int, mode: str, align_corners: bool) -> Sampling:
        """Nearest: i*size/out, rounded down. Bilinear: pixel centres are at halves, or the corners
        coincide.
        """
        if mode == "nearest":
            return cls(size, 0, out)
        if align_corners:
            return cls(size - 1, 0, out - 1) if out > 1 else cls(0, 0, 1)
        return cls(2 * size, size - out, 2 * out)

    def between(self, size: int, out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For oracles: the pixels before and behind each place, the weight of the one behind."""
        place = np.maximum(np.arange(out) * self.step + self.start, 0)
        before = np.minimum(place // self.divisor, size - 1)
        after = np.minimum(before + 1, size - 1)
        return before, after, np.where(after > before, place % self.divisor / self.divisor, 0.0)


def repeat_pixels(x, y, height, width, out_h, out_w, columns, lo, hi):
    """Nearest pixels; a unit is a row of y. columns[j]: the source of place j."""
    for unit in range(lo, hi):
        row = unit // out_h * height + unit % out_h * height // out_h
        source = offset(x, row * width)
        to = offset(y, unit * out_w)
        if out_w == 2 * width:
            for w in range(width):
                to[2 * w] = source[w]
                to[2 * w + 1] = source[w]
        else:
            for j in range(out_w):
                to[j] = source[columns[j]]


def gather_repeated(gy, gx, height, width, out_h, out_w, columns, lo, hi):
    """gx: the sum of all gy that were taken from a pixel; a unit is a plane."""
    for unit in range(lo, hi):
        to = offset(gx, unit * height * width)
        for k in range(height * width):
            to[k] = 0
        for i in range(out_h):
            row = offset(to, i * height // out_h * width)
            source = offset(gy, (unit * out_h + i) * out_w)
            for j in range(out_w):
                row[columns[j]] += source[j]


def weigh_columns(weights, out_w, width, step, start, divisor):
    """weights[j]: that of the pixel behind place j. 0 where there is none."""
    for j in range(out_w):
        place = max(j * step + start, 0)
        weights[j] = 0
        if place // divisor + 1 < width:
            weights[j] = (place % divisor) / divisor


def mix_pixels(
    x, y, lines, line, height, width, out_h, out_w, step_h, start_h, divisor_h, step_w, start_w,
    divisor_w, columns, lo, hi, lane,
):  # fmt: skip
    """Bilinear mixtures; a unit is a row of y. columns[j]: the pixel before place j."""
    mixed = offset(lines, lane * line)
    weights = offset(lines, lane * line + width)
    weigh_columns(weights, out_w, width, step_w, start_w, divisor_w)
    for unit in range(lo, hi):
        place = max(unit % out_h * step_h + start_h, 0)
        before = min(place // divisor_h, height - 1)
        upper = offset(x, (unit // out_h * height + before) * width)
        if before + 1 < height:
            lower = offset(upper, width)
            part = (place % divisor_h) / divisor_h
            for w in range(width):
                mixed[w] = upper[w] * (1.0 - part) + lower[w] * part
        else:
            for w in range(width):
                mixed[w] = upper[w]
        for j in range(out_w):
            k = columns[j]
            after = min(k + 1, width - 1)
            y[unit * out_w + j] = mixed[k] * (1.0 - weights[j]) + mixed[after] * weights[j]


def gather_mixed(
    gy, gx, lines, line, height, width, out_h, out_w, step_h, start_h, divisor_h, step_w, start_w,
    divisor_w, columns, lo, hi, lane,
):  # fmt: skip
    """gx: what each pixel gave to mixtures comes back with the same weights; a unit is a plane."""
    mixed = offset(lines, lane * line)
    weights = offset(lines, lane * line + width)
    weigh_columns(weights, out_w, width, step_w, start_w, divisor_w)
    for unit in range(lo, hi):
        to = offset(gx, unit * height * width)
        for k in range(height * width):
            to[k] = 0
        for i in range(out_h):
            for w in range(width):
                mixed[w] = 0
            source = offset(gy, (unit * out_h + i) * out_w)
            for j in range(out_w):
                k = columns[j]
                mixed[k] += source[j] * (1.0 - weights[j])
                mixed[min(k + 1, width - 1)] += source[j] * weights[j]
            place = max(i * step_h + start_h, 0)
            before = min(place // divisor_h, height - 1)
            upper = offset(to, before * width)
            if before + 1 < height:
                lower = offset(upper, width)
                part = (place % divisor_h) / divisor_h
                for w in range(width):
                    upper[w] += mixed[w] * (1.0 - part)
                    lower[w] += mixed[w] * part
            else:
                for w in range(width):
                    upper[w] += mixed[w]


def _launch(
    kernels, source: Arg, target: Arg, small: Arg, large: Arg, units, mode, align
) -> Launch:
    """`small` is the image before, `large` the one after upsampling; the gradient swaps them."""
    (height, width), (out_h, out_w) = small.shape[2:], large.shape[2:]
    units = units if target.size else 0
    grain = max(1, units * _GRAIN // max(large.size, 1))
    columns = Sampling.of(width, out_w, mode, align)
    before = tuple(columns.between(width, out_w)[0].tolist())
    sizes = (height, width, out_h, out_w)
    if mode == "nearest":
        return Launch(kernels[0], source, target, *sizes, before, units=units, grain=grain)
    rows = Sampling.of(height, out_h, mode, align)
    line = width + out_w
    return Launch(
        *(kernels[1], source, target, Scratch(small.dtype, line, per_lane=True), line),
        *(*sizes, *rows, *columns, before),
        units=units,
        grain=grain,
    )


def _sampling(small, large, mode: str, align: bool) -> tuple[list[list[int]], list[int] | None]:
    """For rows and columns: the pixel at or before each place; how places lie, where pixels are
    mixed.
    """
    axes = [Sampling.of(n, out, mode, align) for n, out in zip(small, large, strict=True)]
    before = [p.between(n, out)[0].tolist() for p, n, out in zip(axes, small, large, strict=True)]
    return before, None if mode == "nearest" else [*axes[0], *axes[1]]


def _check(x, mode: str, align_corners: bool) -> None:
    if mode not in MODES:
        raise Mismatch(f'mode is "nearest" or "bilinear", not "{mode}"', "mode")
    if align_corners and mode == "nearest":
        raise Mismatch("align_corners goes with bilinear mode only", "align_corners")
    want_images("upsample2d", x)


class upsample2d(Op):
    """Resizes images: nearest pixel, or bilinear interpolation of the four nearest pixels.

    x [N, C, H, W]; y [N, C, H*scale[0], W*scale[1]] or [N, C, *size]: give one of the two.
    """

    choices = {"mode": MODES}
    signature = (
        'upsample2d(x: F, *, scale: ints = none, size: dims = none, mode: str = "nearest", '
        "align_corners: bool = false)"
    )
    source = (
        "torch.nn.functional.interpolate, ATen upsample_nearest2d and upsample_bilinear2d, "
        "ONNX Resize (nearest: asymmetric, floor; linear: half_pixel, or align_corners)"
    )
    formula = "nearest: y[..., i, j] = x[..., i*H//H', j*W//W']"

    def infer(x, *, scale, size, mode, align_corners):
        _check(x, mode, align_corners)
        if (scale is None) == (size is None):
            raise Mismatch("give either scale or size", "size" if scale is None else "scale")
        if 0 in x.shape[2:]:
            raise Mismatch(f"images {x} have no pixels", 0)
        if size is None:
            factors = per_axis("scale", scale, 2)
            size = tuple(n * f for n, f in zip(x.shape[2:], factors, strict=True))
        want_sizes("size", size)
        return x.with_shape((*x.shape[:2], *size))

    def oracle(x, *, scale, size, mode, align_corners):
        if size is None:
            size = tuple(n * f for n, f in zip(x.shape[2:], scale, strict=True))
        (h0, h1, v), (w0, w1, u) = (
            Sampling.of(n, out, mode, align_corners).between(n, out)
            for n, out in zip(x.shape[2:], size, strict=True)
        )
        if mode == "nearest":
            return x[:, :, h0][..., w0]
        v = v[:, None]
        mixed = x[:, :, h0] * (1 - v) + x[:, :, h1] * v
        return mixed[..., w0] * (1 - u) + mixed[..., w1] * u

    def cpu(x, y, *, scale, size, mode, align_corners):
        kernels = (repeat_pixels, mix_pixels)
        return _launch(kernels, x, y, x, y, prod(y.shape[:3]), mode, align_corners)

    def cuda(x, y, *, scale, size, mode, align_corners):
        return upsampled(x, y, *_sampling(x.shape[2:], y.shape[2:], mode, align_corners))

    def grad(g, operands, results, grads, *, mode, align_corners, **attrs):
        size = operands[0].shape[2:]
        gx = g.upsample2d_grad(grads[0], size=size, mode=mode, align_corners=align_corners)
        return (gx,)

    def flops(x, *, scale, size, mode, align_corners):
        out = upsample2d.infer(x, scale=scale, size=size, mode=mode, align_corners=align_corners)
        return 0 if mode == "nearest" else out.size * 6


class upsample2d_grad(Op):
    """The derivative of `upsample2d`: gx [N, C, *size] from gy."""

    choices = {"mode": MODES}
    signature = (
        'upsample2d_grad(gy: F, *, size: dims, mode: str = "nearest", align_corners: bool = false)'
    )
    results = ("gx",)

    def infer(gy, *, size, mode, align_corners):
        _check(gy, mode, align_corners)
        want_sizes("size", size)
        return gy.with_shape((*gy.shape[:2], *size))

    def oracle(gy, *, size, mode, align_corners):
        gx = np.zeros((*gy.shape[:2], *size))
        (h0, h1, v), (w0, w1, u) = (
            Sampling.of(n, out, mode, align_corners).between(n, out)
            for n, out in zip(size, gy.shape[2:], strict=True)
        )
        if mode == "nearest":
            v, u = v * 0, u * 0
        for rows, row_weights in ((h0, 1 - v), (h1, v)):
            for columns, weights in ((w0, 1 - u), (w1, u)):
                shares = gy * row_weights[:, None] * weights
                np.add.at(gx, (slice(None), slice(None), rows[:, None], columns), shares)
        return gx

    def cpu(gy, gx, *, size, mode, align_corners):
        kernels = (gather_repeated, gather_mixed)
        return _launch(kernels, gy, gx, gx, gy, prod(gx.shape[:2]), mode, align_corners)

    def cuda(gy, gx, *, size, mode, align_corners):
        places = _sampling(gx.shape[2:], gy.shape[2:], mode, align_corners)
        return upsampled_gradient(gy, gx, *places)

    def grad(g, operands, results, grads, *, size, mode, align_corners):
        out = operands[0].shape[2:]
        return (g.upsample2d(grads[0], size=out, mode=mode, align_corners=align_corners),)

    def flops(gy, *, mode, **attrs):
        return gy.size * (1 if mode == "nearest" else 8)
