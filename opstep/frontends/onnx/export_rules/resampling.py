"""Resizing. Its derivatives, which ONNX has not, are products with a matrix for each axis."""

from __future__ import annotations

import numpy as np

from opstep.frontends.onnx.export_rules import RULES, wide
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import f32


def matrix(op, size, attrs):
    """What an op of one axis does to a row of `size` numbers: [size, …], by its oracle."""
    rows = np.eye(size)[:, None]
    shape = (size, 1, size)
    if op.startswith("upsample2d"):  # of which one axis has one element
        rows, shape = rows[:, :, None], (size, 1, 1, size)
    found = OPS[op].oracle(rows.reshape(shape), **attrs)
    return found.reshape(size, -1)


def along(b, x, axis, factors):
    """x with the rows along an axis multiplied with a matrix."""
    last = x.type.rank - 1
    perm = list(range(last + 1))
    perm[axis], perm[last] = last, axis
    y = b.matmul(b.transpose(x, perm=perm) if axis != last else x, b.value(factors, x.dtype))
    return b.transpose(y, perm=perm) if axis != last else y


_MODES = {
    "nearest": ("nearest", "asymmetric", "floor"),
    "nearest-exact": ("nearest", "half_pixel", "round_prefer_ceil"),
    "linear": ("linear", "half_pixel", None),
    "bilinear": ("linear", "half_pixel", None),
    "trilinear": ("linear", "half_pixel", None),
    "bicubic": ("cubic", "half_pixel", None),
}


def _fitting(size, out, scale):
    """A factor in f32 that gives that size, rounded down."""
    factor = np.float32(scale)
    while type(size) is int and int(size * float(factor)) < out:
        factor = np.nextafter(factor, np.float32(np.inf))
    return factor


def _upsample(b, t, x, scale, size, mode, align_corners):
    kind, coordinates, rounding = _MODES[mode]
    if align_corners:
        coordinates = "align_corners"
    scales = sizes = None
    if scale is not None:
        scales = b.value([1.0, 1.0, *map(_fitting, x.shape[2:], t.shape[2:], scale)], f32)
    else:
        sizes = b.vector(t.shape)
    return b.onnx(
        "Resize", x, None, scales, sizes, out=t, mode=kind, nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
        cubic_coeff_a=-0.75 if kind == "cubic" else None,
    )  # fmt: skip


@wide
def _upsample_grad(b, t, gy, size, scale, mode, align_corners):
    b.ints(gy.shape[2:])
    cubic = mode == "bicubic"
    op = "upsample2d_grad" if cubic else "upsample1d_grad"
    plain = "linear" if mode in ("bilinear", "trilinear") else mode
    for k, before in enumerate(b.ints(size)):
        factor = None if scale is None else (scale[k],)
        attrs = {"mode": plain, "align_corners": align_corners}
        if cubic:
            attrs |= {"size": (1, before), "scale": factor and (1.0, *factor)}
        else:
            attrs |= {"size": (before,), "scale": factor}
        gy = along(b, gy, 2 + k, matrix(op, gy.shape[2 + k], attrs))
    return gy


for _n in (1, 2, 3):
    RULES[f"upsample{_n}d"] = _upsample
    RULES[f"upsample{_n}d_grad"] = _upsample_grad
