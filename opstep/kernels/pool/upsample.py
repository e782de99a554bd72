"""Resizing of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: to the nearest
element, or interpolated.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opstep.kernels.conv.windows import flat, per_axis, want_images, want_sizes
from opstep.kernels.pool.cuda_pool import upsampled, upsampled_gradient
from opstep.kernels.pool.cuda_resample import resampled_on_cuda
from opstep.kernels.pool.resample import Mix, resample, resampled
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op

_GRAIN = 32768  # output elements under which another lane is not woken
NEAREST = ("nearest", "nearest-exact")
MODES = ((), (*NEAREST, "linear"), (*NEAREST, "bilinear", "bicubic"), (*NEAREST, "trilinear"))
_CUBIC = -0.75  # the slope of the kernel, as PyTorch and ONNX choose it
_FINEST = 1 << 20  # denominator of a scale


def _ratio(scale: float) -> Fraction:
    """A scale as the fraction that was meant: 0.1 is 1/10."""
    return Fraction(scale).limit_denominator(_FINEST)


class Sampling(NamedTuple):
    """Where the elements of one axis lie between those of the source: (i*step + start)/divisor.

    A fraction of integers, so that no rounding decides which element is the nearest.
    """

    step: int
    start: int
    divisor: int

    @classmethod
    def of(cls, size: int, out: int, mode: str, align_corners: bool, scale=None) -> Sampling:
        """Nearest: i*size/out, rounded down. Else centres are at halves, or corners coincide."""
        if align_corners:
            return cls(size - 1, 0, out - 1) if out > 1 else cls(0, 0, 1)
        ratio = _ratio(scale) if scale else Fraction(out, size)
        up, down = ratio.numerator, ratio.denominator
        if mode == "nearest":
            return cls(down, 0, up)
        if mode == "nearest-exact":
            return cls(2 * down, down, 2 * up)
        return cls(2 * down, down - up, 2 * up)

    def between(self, size: int, out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The elements before and after each place, the weight of the one after: at the edge, and
        where each place is that of an element, both are the same one.
        """
        place = np.maximum(np.arange(out) * self.step + self.start, 0)
        before = np.minimum(place // self.divisor, size - 1)
        after = np.minimum(before + (self.step != self.divisor), size - 1)
        return before, after, np.minimum((place - before * self.divisor) / self.divisor, 1.0)

    def mix(self, size: int, out: int, mode: str, whole: bool = False) -> Mix:
        """The terms of each element of the result; without weights of 0, unless it is `whole`:
        PyTorch has terms for them, too, and 0 times infinity is NaN.
        """
        if mode == "bicubic":
            entries = [self._cubic(i, size) for i in range(out)]
        elif mode in NEAREST:
            entries = [[(b, 1.0)] for b in self.between(size, out)[0].tolist()]
        else:
            before, after, weights = (a.tolist() for a in self.between(size, out))
            entries = [
                [(b, 1.0 - w), (e, w)] for b, e, w in zip(before, after, weights, strict=True)
            ]
        return Mix.of([[(k, w) for k, w in element if w or whole] for element in entries])

    def _cubic(self, i: int, size: int) -> list[tuple[int, float]]:
        place = i * self.step + self.start
        first, t = place // self.divisor, place % self.divisor / self.divisor
        near = [((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1 for d in (t, 1 - t)]
        far = [_CUBIC * (((d - 5) * d + 8) * d - 4) for d in (t + 1, 2 - t)]
        weights = (far[0], *near, far[1])
        return [(min(max(first + k - 1, 0), size - 1), w) for k, w in enumerate(weights)]


def repeat_pixels(x, y, height, width, out_h, out_w, rows, columns, doubled, lo, hi):
    """Nearest pixels; a unit is a row of y. columns[j]: the source of place j."""
    for unit in range(lo, hi):
        row = unit // out_h * height + rows[unit % out_h]
        source = offset(x, row * width)
        to = offset(y, unit * out_w)
        if doubled:
            for w in range(width):
                to[2 * w] = source[w]
                to[2 * w + 1] = source[w]
        else:
            for j in range(out_w):
                to[j] = source[columns[j]]


def gather_repeated(gy, gx, height, width, out_h, out_w, rows, columns, doubled, lo, hi):
    """gx: the sum of all gy that were taken from a pixel; a unit is a plane."""
    for unit in range(lo, hi):
        to = offset(gx, unit * height * width)
        for k in range(height * width):
            to[k] = 0
        for i in range(out_h):
            row = offset(to, rows[i] * width)
            source = offset(gy, (unit * out_h + i) * out_w)
            for j in range(out_w):
                row[columns[j]] += source[j]


def weight_after(place, before, divisor):
    """The weight of the pixel after a place; see `Sampling.between`."""
    return min((place - before * divisor) / divisor, 1.0)


def weigh_columns(weights, columns, out_w, step, start, divisor):
    """weights[j]: that of the pixel after place j."""
    for j in range(out_w):
        weights[j] = weight_after(max(j * step + start, 0), columns[j], divisor)


def mix_pixels(
    x, y, lines, apart, height, width, out_h, out_w, step_h, start_h, divisor_h, step_w, start_w,
    divisor_w, columns, lo, hi, lane,
):  # fmt: skip
    """Bilinear mixtures; a unit is a row of y. columns[j]: the pixel before place j."""
    mixed = offset(lines, lane * apart)
    weights = offset(lines, lane * apart + width)
    weigh_columns(weights, columns, out_w, step_w, start_w, divisor_w)
    next_h = step_h != divisor_h
    next_w = step_w != divisor_w
    for unit in range(lo, hi):
        place = max(unit % out_h * step_h + start_h, 0)
        before = min(place // divisor_h, height - 1)
        upper = offset(x, (unit // out_h * height + before) * width)
        lower = offset(upper, (min(before + next_h, height - 1) - before) * width)
        part = weight_after(place, before, divisor_h)
        for w in range(width):
            mixed[w] = upper[w] * (1.0 - part) + lower[w] * part
        for j in range(out_w):
            k = columns[j]
            after = min(k + next_w, width - 1)
            y[unit * out_w + j] = mixed[k] * (1.0 - weights[j]) + mixed[after] * weights[j]


def gather_mixed(
    gy, gx, lines, apart, height, width, out_h, out_w, step_h, start_h, divisor_h, step_w, start_w,
    divisor_w, columns, lo, hi, lane,
):  # fmt: skip
    """gx: what each pixel gave to mixtures comes back with the same weights; a unit is a plane."""
    mixed = offset(lines, lane * apart)
    weights = offset(lines, lane * apart + width)
    weigh_columns(weights, columns, out_w, step_w, start_w, divisor_w)
    next_h = step_h != divisor_h
    next_w = step_w != divisor_w
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
                mixed[min(k + next_w, width - 1)] += source[j] * weights[j]
            place = max(i * step_h + start_h, 0)
            before = min(place // divisor_h, height - 1)
            upper = offset(to, before * width)
            lower = offset(upper, (min(before + next_h, height - 1) - before) * width)
            part = weight_after(place, before, divisor_h)
            for w in range(width):
                upper[w] += mixed[w] * (1.0 - part)
                lower[w] += mixed[w] * part


class _Resizing(NamedTuple):
    """`small` sizes become `large` ones."""

    small: tuple[int, ...]
    large: tuple[int, ...]
    mode: str
    samplings: list[Sampling]

    @classmethod
    def of(cls, small, large, scale, mode: str, align_corners: bool) -> _Resizing:
        samplings = [
            Sampling.of(n, out, mode, align_corners, factor)
            for n, out, factor in zip(small, large, scale or [None] * len(small), strict=True)
        ]
        return cls(tuple(small), tuple(large), mode, samplings)

    def mixes(self, whole: bool = False) -> list[Mix]:
        return [
            s.mix(n, out, self.mode, whole)
            for s, n, out in zip(self.samplings, self.small, self.large, strict=True)
        ]

    @property
    def transposed(self) -> list[Mix]:
        return [mix.transposed(n) for mix, n in zip(self.mixes(), self.small, strict=True)]

    @property
    def on_plane(self) -> bool:
        """Whether the kernels of images can do it: of two axes, where elements are mixed."""
        return self.mode == "bilinear" or (self.mode in NEAREST and len(self.small) < 3)

    def before(self) -> list[list[int]]:
        """For rows and columns: the pixel at or before each place."""
        axes = zip(self.samplings, self.small, self.large, strict=True)
        tables = [s.between(n, out)[0].tolist() for s, n, out in axes]
        return [[0], *tables][-2:]

    def steps(self) -> list[int]:
        """How places lie, where pixels are mixed."""
        rows, columns = self.samplings
        return [*rows, *columns]


def _launch(kernels, source: Arg, target: Arg, to: _Resizing, units: int) -> Launch:
    """The gradient goes from the large image to the small one."""
    (height, width), (out_h, out_w) = ((1, *sizes)[-2:] for sizes in (to.small, to.large))
    units = units if target.size else 0
    grain = max(1, units * _GRAIN // max(source.size, target.size, 1))
    rows, columns = map(tuple, to.before())
    sizes = (height, width, out_h, out_w)
    if to.mode in NEAREST:
        doubled = columns == tuple(j // 2 for j in range(2 * width))
        args = (*sizes, rows, columns, doubled)
        return Launch(kernels[0], source, target, *args, units=units, grain=grain)
    lines = Scratch(source.dtype, width + out_w, per_lane=True)
    return Launch(
        *(kernels[1], source, target, lines, lines.size),
        *(*sizes, *to.steps(), columns),
        units=units,
        grain=grain,
    )


def _check(cls, x, mode: str, align_corners: bool) -> None:
    modes = MODES[cls.axes]
    if mode not in modes:
        *others, last = (f'"{m}"' for m in modes)
        raise Mismatch(f'mode is {", ".join(others)} or {last}, not "{mode}"', "mode")
    if align_corners and mode in NEAREST:
        raise Mismatch("align_corners goes with interpolation only", "align_corners")
    want_images(f"upsample{cls.axes}d", x, 0, cls.axes)


def _check_scale(scale, axes: int) -> None:
    if len(scale) != axes:
        per_axis("scale", scale, axes)
    if not all(1 / _FINEST <= factor <= 2**31 for factor in scale):
        raise Mismatch(f"scale must be numbers above 0, not {list(scale)}", "scale")


def _scaled(size: Dim, factor: float) -> Dim:
    ratio = _ratio(factor)
    return size * ratio.numerator // ratio.denominator


_ATTRS = 'mode: str = "nearest", align_corners: bool = false)'
_SIZES = f"scale: floats = none, size: dims = none, {_ATTRS}"
_SIZES_BEFORE = f"size: dims, scale: floats = none, {_ATTRS}"


class Upsampling(Op):
    """Base of resizings of `axes` dimensions."""

    axes: ClassVar[int]

    @classmethod
    def infer(cls, x, *, scale, size, mode, align_corners):
        _check(cls, x, mode, align_corners)
        if scale is None and size is None:
            raise Mismatch("give either scale or size", "size")
        if 0 in x.shape[2:]:
            raise Mismatch(f"images {x} have no pixels", 0)
        if scale is not None:
            _check_scale(scale, cls.axes)
        if size is None:
            size = tuple(_scaled(n, f) for n, f in zip(x.shape[2:], scale, strict=True))
        want_sizes("size", size, cls.axes)
        return x.with_shape((*x.shape[:2], *size))

    def oracle(x, *, scale, size, **attrs):
        if size is None:
            size = tuple(_scaled(n, f) for n, f in zip(x.shape[2:], scale, strict=True))
        to = _Resizing.of(x.shape[2:], size, scale, **attrs)
        return _on_array(x, to)

    def cpu(x, y, *, scale, size, **attrs):
        to = _Resizing.of(x.shape[2:], y.shape[2:], scale, **attrs)
        if not to.on_plane:
            return resample(x, y, to.mixes(whole=True))
        return _launch((repeat_pixels, mix_pixels), x, y, to, prod(y.shape[:-1]))

    def cuda(x, y, *, scale, size, **attrs):
        to = _Resizing.of(x.shape[2:], y.shape[2:], scale, **attrs)
        if not to.on_plane or to.mode not in NEAREST:
            return resampled_on_cuda(x, y, to.mixes(whole=True), skips=False)
        return upsampled(flat(x), flat(y), to.before())

    def grad(g, operands, results, grads, *, scale, size, **attrs):
        x = operands[0]
        if size is None and all(factor == int(factor) for factor in scale):
            scale = None  # that of the sizes
        op = getattr(g, f"upsample{x.type.rank - 2}d_grad")
        return (op(grads[0], size=x.shape[2:], scale=scale, **attrs),)

    @classmethod
    def flops(cls, x, *, mode, **attrs):
        weights = {"linear": 3, "bilinear": 6, "trilinear": 12, "bicubic": 32}.get(mode, 0)
        return cls.infer(x, mode=mode, **attrs).size * weights if weights else 0


def _on_array(x, to: _Resizing):
    """For oracles: of images, rows are mixed as the kernels mix them, weights of 0 included."""
    if not to.on_plane:
        return resampled(x, to.mixes(whole=True))
    for axis, (s, n, out) in enumerate(zip(to.samplings, to.small, to.large, strict=True), 2):
        before, after, weights = s.between(n, out)
        if to.mode in NEAREST:
            x = np.take(x, before, axis)
        else:
            weights = weights.reshape(-1, *[1] * (x.ndim - axis - 1))
            x = np.take(x, before, axis) * (1 - weights) + np.take(x, after, axis) * weights
    return x


class UpsamplingGradient(Op):
    """Base of the derivatives."""

    axes: ClassVar[int]
    results = ("gx",)

    @classmethod
    def infer(cls, gy, *, scale, size, mode, align_corners):
        _check(cls, gy, mode, align_corners)
        want_sizes("size", size, cls.axes)
        if scale is not None:
            _check_scale(scale, cls.axes)
        return gy.with_shape((*gy.shape[:2], *size))

    def oracle(gy, *, scale, size, **attrs):
        to = _Resizing.of(size, gy.shape[2:], scale, **attrs)
        return resampled(gy, to.transposed)

    def cpu(gy, gx, *, scale, size, **attrs):
        to = _Resizing.of(gx.shape[2:], gy.shape[2:], scale, **attrs)
        if not to.on_plane:
            return resample(gy, gx, to.transposed)
        return _launch((gather_repeated, gather_mixed), gy, gx, to, prod(gx.shape[:2]))

    def cuda(gy, gx, *, scale, size, **attrs):
        to = _Resizing.of(gx.shape[2:], gy.shape[2:], scale, **attrs)
        if not to.on_plane or to.mode not in NEAREST:
            return resampled_on_cuda(gy, gx, to.transposed)
        return upsampled_gradient(flat(gy), flat(gx), to.before())

    def grad(g, operands, results, grads, *, size, **attrs):
        out = operands[0].shape[2:]
        op: Any = getattr(g, f"upsample{len(out)}d")
        return (op(grads[0], size=out, **attrs),)

    def flops(gy, *, mode, **attrs):
        weights = {"linear": 4, "bilinear": 8, "trilinear": 16, "bicubic": 32}.get(mode, 1)
        return gy.size * weights


class upsample1d(Upsampling):
    """Resizes sequences: nearest element, or linear interpolation.

    x [N, C, W]; y [N, C, W*scale] or [N, C, *size], as in `upsample2d`.
    """

    axes = 1
    choices = {"mode": MODES[1]}
    signature = f"upsample1d(x: F, *, {_SIZES}"
    source = "torch.nn.functional.interpolate, ATen upsample_nearest1d and upsample_linear1d"


class upsample2d(Upsampling):
    """Resizes images: nearest pixel, or interpolation of the 4 (bilinear) or 16 (bicubic) nearest
    pixels.

    x [N, C, H, W]; y [N, C, H*scale[0], W*scale[1]], rounded down, or [N, C, *size]. Pixels lie
    `scale` apart, if it is given, else as the sizes say. "nearest-exact" counts from the centres of
    pixels.
    """

    axes = 2
    choices = {"mode": MODES[2]}
    signature = f"upsample2d(x: F, *, {_SIZES}"
    source = (
        "torch.nn.functional.interpolate, ATen upsample_nearest2d, upsample_bilinear2d and "
        "upsample_bicubic2d, ONNX Resize (nearest: asymmetric, floor; linear, cubic: half_pixel, "
        "or align_corners)"
    )
    formula = "nearest: y[..., i, j] = x[..., i*H//H', j*W//W']"


class upsample3d(Upsampling):
    """Resizes volumes: nearest element, or interpolation of the 8 nearest.

    x [N, C, D, H, W]; y [N, C, D*scale[0], …] or [N, C, *size], as in `upsample2d`.
    """

    axes = 3
    choices = {"mode": MODES[3]}
    signature = f"upsample3d(x: F, *, {_SIZES}"
    source = "torch.nn.functional.interpolate, ATen upsample_nearest3d and upsample_trilinear3d"


class upsample1d_grad(UpsamplingGradient):
    """The derivative of `upsample1d`: gx [N, C, *size] from gy."""

    axes = 1
    choices = {"mode": MODES[1]}
    signature = f"upsample1d_grad(gy: F, *, {_SIZES_BEFORE}"


class upsample2d_grad(UpsamplingGradient):
    """The derivative of `upsample2d`: gx [N, C, *size] from gy."""

    axes = 2
    choices = {"mode": MODES[2]}
    signature = f"upsample2d_grad(gy: F, *, {_SIZES_BEFORE}"


class upsample3d_grad(UpsamplingGradient):
    """The derivative of `upsample3d`: gx [N, C, *size] from gy."""

    axes = 3
    choices = {"mode": MODES[3]}
    signature = f"upsample3d_grad(gy: F, *, {_SIZES_BEFORE}"
