"""Fourier transforms as products with matrices, and what draws random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.pointwise import dtype_of
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import known, listed
from opstep.runtime.ir.types import f32

MOST = 4096  # of points


@rule("DFT", since=20, known=[1, 2])
def dft(b: Body, x, length=None, axis=None, *, inverse=0, onesided=0):
    axis = -2 if axis is None else int(listed(axis)[0])
    return _transformed(
        b, x, None if length is None else listed(length)[0], axis, inverse, onesided
    )


@rule("DFT", known=[1])
def dft_by_attribute(b: Body, x, length=None, *, axis=1, inverse=0, onesided=0):
    return _transformed(
        b, x, None if length is None else listed(length)[0], axis, inverse, onesided
    )


def _transformed(b: Body, x: Var, points: Any, axis: int, inverse: int, onesided: int) -> Var:
    """x [..., n, ..., 1 or 2]: real parts, then imaginary ones."""
    rank = x.type.rank
    axis = axis_of(axis, rank)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Untranslatable("a transform of a length that is not known")
    half = inverse and onesided  # the other half of the spectrum is its mirror image
    points = int(points or (2 * (size - 1) if half else size))
    if points > MOST:
        raise Untranslatable(f"a transform of more than {MOST} points")
    wanted = points // 2 + 1 if onesided and not inverse else points
    used = min(size, points)
    if used < size:
        x = b.slice(x, starts=[0], ends=[used], axes=[axis])
    angles = 2 * np.pi * np.outer(np.arange(wanted), np.arange(used)) / points
    cos, sin = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    if inverse:
        cos, sin = cos / points, sin / points
    if half:
        twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == points), 1.0, 2.0)
        cos, sin = cos * twice, sin * twice
    perm = [k for k in range(rank - 1) if k != axis] + [rank - 1, axis]
    last = b.transposed(x, perm)
    real = _part(b, last, 0)
    if x.shape[-1] == 1:
        found = [_product(b, real, cos), _product(b, real, sin)]
    else:
        other = _part(b, last, 1)
        found = [
            b.sub(_product(b, real, cos), _product(b, other, sin)),
            b.add(_product(b, real, sin), _product(b, other, cos)),
        ]
    y = found[0] if half else b.stack(*found, axis=rank - 2)
    y = b.unsqueeze(y, axes=[rank - 2]) if half else y
    back = [perm.index(k) for k in range(rank)]
    return b.transposed(y, back)


def _part(b: Body, x: Var, index: int) -> Var:
    return b.select(x, index=index, axis=x.type.rank - 2)


def _product(b: Body, x: Var, matrix: np.ndarray) -> Var:
    w = known(matrix.astype(np.float32), name=f"{b.prefix}_waves")
    return b.linear(x, b.to(b.constant(w), x.dtype))


@rule("STFT", known=[1, 3])
def stft(b: Body, x, step, window=None, length=None, *, onesided=1):
    """Transforms of frames of a signal [N, T, 1], `step` apart."""
    if x.shape[-1] != 1 or not isinstance(x.shape[1], int):
        raise Untranslatable("the transform of a complex signal, or of a length that is not known")
    step = int(listed(step)[0])
    points = int(listed(length)[0]) if length is not None else 0
    if not points and window is None:
        raise Untranslatable("frames without a length")
    points = points or window.shape[0]  # pyright: ignore[reportOptionalMemberAccess]
    count = (x.shape[1] - points) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(points)
    flat = b.squeeze(x, axes=[2])
    frames = b.gather(flat, b.constant(known(places, name=f"{b.prefix}_frames")), axis=1)
    if window is not None:
        frames = b.mul(frames, window)
    return _transformed(b, b.unsqueeze(frames, axes=[3]), points, 2, 0, onesided)


@rule("MelWeightMatrix", known=[0, 1, 2, 3, 4])
def mel_weights(b: Body, bins, length, rate, low, high, *, output_datatype=1):
    """Triangles over frequencies, which are known at import."""
    bins, length, rate = (int(listed(v)[0]) for v in (bins, length, rate))
    if bins * length > 2**26:
        raise Untranslatable("a matrix of so many elements")
    edges = [float(listed(v)[0]) for v in (low, high)]
    first, last = (2595 * np.log10(1 + e / 700) for e in edges)
    mels = np.arange(bins + 2) * ((last - first) / (bins + 2)) + first
    places = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(int)
    found = np.zeros((length // 2 + 1, bins))
    for k in range(bins):
        left, middle, right = places[k : k + 3]
        if middle == left:
            found[middle, k] = 1
        else:
            found[left : middle + 1, k] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            found[middle:right, k] = np.arange(right - middle, 0, -1) / (right - middle)
    return known(found, dtype_of(output_datatype))


# --- random numbers -------------------------------------------------------------------------------


def _seed(b: Body, seed: Any) -> int:
    """Of the node; without one, a number that its place gives."""
    return int(seed) & 0x7FFF_FFFF if seed is not None else len(b.statements) + 1


@rule("RandomNormal")
def random_normal(b: Body, *, shape, dtype=1, mean=0.0, scale=1.0, seed=None):
    how = {"mean": mean, "std": scale, "dtype": dtype_of(dtype), "seed": _seed(b, seed)}
    return b.normal(shape=shape, **how)


@rule("RandomUniform")
def random_uniform(b: Body, *, shape, dtype=1, low=0.0, high=1.0, seed=None):
    how = {"low": low, "high": high, "dtype": dtype_of(dtype), "seed": _seed(b, seed)}
    return b.uniform(shape=shape, **how)


@rule("RandomNormalLike")
def random_normal_like(b: Body, x, *, dtype=None, mean=0.0, scale=1.0, seed=None):
    kind = x.dtype if dtype is None else dtype_of(dtype)
    return b.normal(shape=list(x.shape), mean=mean, std=scale, dtype=kind, seed=_seed(b, seed))


@rule("RandomUniformLike")
def random_uniform_like(b: Body, x, *, dtype=None, low=0.0, high=1.0, seed=None):
    kind = x.dtype if dtype is None else dtype_of(dtype)
    return b.uniform(shape=list(x.shape), low=low, high=high, dtype=kind, seed=_seed(b, seed))


@rule("Bernoulli")
def bernoulli(b: Body, x, *, dtype=None, seed=None):
    kind = x.dtype if dtype is None else dtype_of(dtype)
    drawn = b.uniform(shape=list(x.shape), dtype=f32, seed=_seed(b, seed))
    return b.to(b.less(drawn, b.to(x, f32)), kind)
