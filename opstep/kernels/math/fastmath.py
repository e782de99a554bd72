"""The functions that kernels call: plainly written here, with bodies that vectorise for f32 and
f64.

LLVM has no vector versions of the C library's functions, and a loop that calls one runs element by
element. What stands here is the meaning, and what other devices compile.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math import cuda_fast, float32, float64
from opstep.kernels.math.cuda_fast import for_gpu
from opstep.runtime.device.source import by_dtype, vectorised


@vectorised(f32=float32.exp32, f64=float64.exp64)
def exp(x):
    return math.exp(x)


@vectorised(f32=float32.exp2_32)
def exp2(x):
    return math.pow(2.0, x)


@vectorised(f32=float32.expm1_32, f64=float64.expm1_64)
def expm1(x):
    return math.expm1(x)


@vectorised(f32=float32.log32, f64=float64.log64)
def log(x):
    return math.log(x)


@vectorised(f32=float32.log2_32)
def log2(x):
    return math.log2(x)


@vectorised(f32=float32.log1p32, f64=float64.log1p64)
def log1p(x):
    return math.log1p(x)


@for_gpu(half=cuda_fast.tanh)
@vectorised(f32=float32.tanh32, f64=float64.tanh64)
def tanh(x):
    return math.tanh(x)


@for_gpu(half=cuda_fast.sigmoid)
@vectorised(f32=float32.sigmoid32, f64=float64.sigmoid64)
def sigmoid(x):
    e = math.exp(-np.abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@vectorised(f32=float32.erf32)
def erf(x):
    return math.erf(x)


@vectorised(f32=float32.atan32)
def atan(x):
    return math.atan(x)


@vectorised(f32=float32.atan2_32)
def atan2(y, x):
    return math.atan2(y, x)


@vectorised(f32=float32.fmod32)
def fmod(x, y):
    return np.fmod(x, y)


@vectorised(f32=float32.pow32)
def pow(x, y):
    """Squares and cubes are products, as in PyTorch: the general one costs ten times as much."""
    if y == 2.0:
        return x * x
    if y == 3.0:
        return x * x * x
    return math.pow(x, y)


def sin(x):
    return math.sin(x)


def cos(x):
    return math.cos(x)


@vectorised(f32=float32.sin32, f64=float64.sin64)
def near_sin(x):
    """sin for |x| up to 1e6."""
    return math.sin(x)


@vectorised(f32=float32.cos32, f64=float64.cos64)
def near_cos(x):
    """cos for |x| up to 1e6."""
    return math.cos(x)


@by_dtype(f32=float32.turn_sin32)
def turn_sin(u):
    """The sine of u turns, for |u| up to 1e6."""
    return near_sin(6.283185307179586 * u)


@by_dtype(f32=float32.turn_cos32)
def turn_cos(u):
    """The cosine of u turns, for |u| up to 1e6."""
    return near_cos(6.283185307179586 * u)


REACH = 1e6  # of near_sin and near_cos
