"""Elementwise functions in the GPU's own terms, for f32: its exponential of base 2 and reciprocal.

`for_gpu` marks a scalar function with bodies that stand in for it on CUDA. Those for halves are as
exact as a half can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opstep.runtime.device.builtin import pick
from opstep.runtime.device.cuda.compiling.names import exp2_approx, log2_approx, reciprocal_approx
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.types import f32


def for_gpu(single: Callable | None = None, half: Callable | None = None):
    """`single`: computes an element of f32. `half`: one that is stored as f16 or bf16."""

    def mark(function):
        function.for_gpu = (single, half or single)
        return function

    return mark


def faster(f: Callable, x: Arg, y: Arg) -> Callable:
    """What computes y = f(x) on CUDA."""
    single, half = getattr(f, "for_gpu", (None, None))
    if x.dtype is not f32 or y.dtype is not f32:
        return f
    return (half if y.stored.is_half else single) or f


def sigmoid(x):
    return reciprocal_approx(1.0 + exp2_approx(-1.44269504 * x))


def silu(x):
    return x * sigmoid(x)


def tanh(x):
    """Near 0, where the quotient loses its digits, x itself."""
    far = 1.0 - 2.0 * reciprocal_approx(exp2_approx(2.88539008 * x) + 1.0)
    return pick(np.abs(x) < 0.015625, x, far)


def gelu(x):
    """x times the normal distribution up to x, by half of erfc(z) = t*P(t)*e**(-z*z), where z is
    |x| / sqrt(2) and t = 1/(1 + p*z), as in Abramowitz and Stegun 7.1.26; P fitted anew, 7e-9 off.
    """
    t = reciprocal_approx(1.0 + 0.240416306 * np.abs(x))
    p = 0.538400705 + t * -0.1223502705
    p = -0.614905185 + t * p
    p = 0.594616945 + t * p
    p = -0.136668831 + t * p
    p = 0.1505872455 + t * p
    p = 0.090319376 + t * p
    tail = t * p * exp2_approx(x * (x * -0.72134752))
    return x * pick(x > 0.0, 1.0 - tail, tail)


def gelu_of_half(x):
    """The same with a shorter polynomial, 8e-7 off."""
    t = reciprocal_approx(1.0 + 0.339411255 * np.abs(x))
    p = 0.3307957775 + t * -0.1056904915
    p = -0.04000359535 + t * p
    p = 0.185725568 + t * p
    p = 0.129172354 + t * p
    tail = t * p * exp2_approx(x * (x * -0.72134752))
    return x * pick(x > 0.0, 1.0 - tail, tail)


def gelu_by_tanh(x):
    """x * sigmoid(2u), for (1 + tanh(u)) / 2 is the logistic function of 2u."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


def mish(x):
    """x * tanh(ln(1 + e)) = x * n / (n + 2), with n = e*(e + 2), e = e**x; above 20 it is x."""
    e = exp2_approx(1.44269504 * pick(x > 20.0, 20.0, x))
    n = e * (e + 2.0)
    return x * (n * reciprocal_approx(n + 2.0))


def erfinv(x):
    """x times a polynomial of log2(1 - x*x), or near 1 of its root (after M. Giles, "Approximating
    the erfinv function", 2010; fitted anew, 8e-8 off).
    """
    size = np.abs(x)
    bits = log2_approx((1.0 - size) * (1.0 + size))
    if bits > -7.2:
        t = bits + 3.6
        p = 1.26249933e-09 + t * 3.22331967e-10
        p = -3.57086201e-08 + t * p
        p = -3.85833033e-07 + t * p
        p = 7.78087099e-07 + t * p
        p = 5.04288364e-05 + t * p
        p = 0.000418554118 + t * p
        p = -0.00199859333 + t * p
        p = -0.170985013 + t * p
        p = 1.50025737 + t * p
        return x * p
    t = math.sqrt(-bits) - 3.7
    p = -5.3036160e-06 + t * -3.7586047e-05
    p = 0.00043764786 + t * p
    p = -0.00121096149 + t * p
    p = 0.0021232010 + t * p
    p = -0.00345884333 + t * p
    p = 0.00540680112 + t * p
    p = 0.835098505 + t * p
    p = 2.91362119 + t * p
    return pick(size == 1.0, x * 1e999, x * p)


def erfinv_of_half(x):
    """The same by one polynomial, as far as halves come near 1, 2e-5 off."""
    size = np.abs(x)
    t = log2_approx((1.0 - size) * (1.0 + size)) + 5.0
    p = 1.46422008e-06 + t * -1.36638862e-07
    p = 3.89521192e-05 + t * p
    p = 0.00018049842 + t * p
    p = -0.00321605918 + t * p
    p = -0.163495585 + t * p
    p = 1.73477495 + t * p
    return pick(size == 1.0, x * 1e999, x * p)
