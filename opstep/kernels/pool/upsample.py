"""Resizing of sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W]: to the nearest
element, or interpolated.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.conv.windows import per_axis, want_images, want_sizes
from opstep.kernels.pool.summing import Summing, SummingGradient
from opstep.kernels.rules.ranks import by_rank
from opstep.kernels.schedules.window import Terms
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch

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

    def terms(self, size: int, out: int, mode: str) -> Terms:
        """Of each element of the result; PyTorch, too, has terms of which the weight is 0."""
        before, after, part = self.between(size, out)
        if mode in NEAREST:
            return Terms.ranges(before, before + 1, size)
        indices, weights = np.stack([before, after], 1), np.stack([1.0 - part, part], 1)
        if mode == "bicubic":
            indices, weights = self._cubic(size, out)
        return Terms.of(indices, weights)

    def _cubic(self, size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
        first, rest = np.divmod(np.arange(out) * self.step + self.start, self.divisor)
        t = rest / self.divisor
        near = [((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1 for d in (t, 1 - t)]
        far = [_CUBIC * (((d - 5) * d + 8) * d - 4) for d in (t + 1, 2 - t)]
        indices = np.clip(first[:, None] + np.arange(-1, 3), 0, size - 1)
        return indices, np.stack([far[0], *near, far[1]], 1)


def _windows(small, large, *, scale, mode: str, align_corners: bool, size=None) -> list[Terms]:
    """Of each axis, for `small` sizes that become `large` ones."""
    return [
        Sampling.of(n, out, mode, align_corners, factor).terms(n, out, mode)
        for n, out, factor in zip(small, large, scale or [None] * len(small), strict=True)
    ]


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
_SOURCE = "torch.nn.functional.interpolate, ATen upsample_nearest"
_CHOICES = tuple({"mode": modes} for modes in MODES[1:])
_SIZES_BEFORE = f"size: dims, scale: floats = none, {_ATTRS}"


@by_rank(
    f"upsample{{n}}d(x: F, *, {_SIZES}",
    """Resizes sequences: nearest element, or linear interpolation.

    x [N, C, W]; y [N, C, W*scale] or [N, C, *size], as in `upsample2d`.""",
    """Resizes images: nearest pixel, or interpolation of the 4 (bilinear) or 16 (bicubic) nearest
    pixels.

    x [N, C, H, W]; y [N, C, H*scale[0], W*scale[1]], rounded down, or [N, C, *size]. Pixels lie
    `scale` apart, if it is given, else as the sizes say. "nearest-exact" counts from the centres of
    pixels.""",
    """Resizes volumes: nearest element, or interpolation of the 8 nearest.

    x [N, C, D, H, W]; y [N, C, D*scale[0], …] or [N, C, *size], as in `upsample2d`.""",
    source=(
        _SOURCE + "1d and upsample_linear1d",
        _SOURCE + "2d, upsample_bilinear2d and upsample_bicubic2d, ONNX Resize "
        "(nearest: asymmetric, floor; linear, cubic: half_pixel, or align_corners)",
        _SOURCE + "3d and upsample_trilinear3d",
    ),
    formula=("", "nearest: y[..., i, j] = x[..., i*H//H', j*W//W']", ""),
    choices=_CHOICES,
)
class Upsampling(Summing):
    """Base of resizings of `axes` dimensions."""

    windows = staticmethod(_windows)

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


@by_rank(
    f"upsample{{n}}d_grad(gy: F, *, {_SIZES_BEFORE}",
    "The derivative of `upsample{n}d`: gx [N, C, *size] from gy.",
    choices=_CHOICES,
)
class UpsamplingGradient(SummingGradient):
    """Base of the derivatives."""

    windows = staticmethod(_windows)

    @classmethod
    def infer(cls, gy, *, scale, size, mode, align_corners):
        _check(cls, gy, mode, align_corners)
        want_sizes("size", size, cls.axes)
        if scale is not None:
            _check_scale(scale, cls.axes)
        return gy.with_shape((*gy.shape[:2], *size))

    def grad(g, operands, results, grads, *, size, **attrs):
        out = operands[0].shape[2:]
        op: Any = getattr(g, f"upsample{len(out)}d")
        return (op(grads[0], size=out, **attrs),)

    def flops(gy, *, mode, **attrs):
        weights = {"linear": 4, "bilinear": 8, "trilinear": 16, "bicubic": 32}.get(mode, 1)
        return gy.size * weights
