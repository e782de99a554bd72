"""Special functions: the gamma function's logarithm and its derivatives, the complement and the
inverse of the error function; and functions of two numbers that are exact where a formula is not.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math import cuda_fast
from opstep.kernels.math.cuda_fast import for_gpu
from opstep.kernels.math.fastmath import exp, log, log1p
from opstep.kernels.math.float32 import erfinv32
from opstep.kernels.math.float64 import lgamma32
from opstep.kernels.pointwise.elementwise import (
    EVERY_TYPE,
    Binary,
    Unary,
    derivatives,
)
from opstep.kernels.rules.faults import OVERFLOW, elementwise
from opstep.runtime.device.source import by_dtype, pinned, vectorised
from opstep.runtime.ir.faults import NO_FAULTS, Faults, Rule

_POLE = Rule("a pole: 0 or a negative integer", lambda x: (x <= 0) & (x == np.floor(x)))
_BELOW = Rule("of minus infinity", lambda x: x == -np.inf)
_NEAR = 0.5  # up to here erfinv is refined by erf, beyond by erfc
_FAR = 10.0  # from here on the asymptotic series of digamma and trigamma have f64's precision


def each(function):
    """An oracle of a function of one number; outside it, nobody watches what is computed."""
    many = np.vectorize(function, otypes=[np.float64])
    return lambda x: np.asarray(many(np.asarray(x)))


def _gamma_log(x):
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or a large number
        return math.inf


def bell(g, x):
    """e ** -(x*x)"""
    return g.exp(g.neg(g.square(x)))


class erfc(Unary):
    """1 - erf(x), which keeps its digits for large x."""

    alone = EVERY_TYPE
    formula = "2/sqrt(pi) times the integral of e ** -(t*t) from x to infinity"
    source = "torch.special.erfc"
    faults = NO_FAULTS

    oracle = each(math.erfc)
    scalar = math.erfc

    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.mul(bell(g, x), -2.0 / math.sqrt(math.pi))))


@for_gpu(cuda_fast.erfinv, cuda_fast.erfinv_of_half)
@by_dtype(f32=erfinv32)
def inverse_erf(x):
    """Giles's approximation (2010), refined by Newton's method."""
    size = abs(x)
    if not size < 1.0:
        return math.copysign(1e999, x) if size == 1.0 else 1e999 - 1e999
    left = 1.0 - size
    w = -math.log(left * (1.0 + size))
    if w < 5.0:
        w -= 2.5
        p = 3.43273939e-07 + 2.81022636e-08 * w
        p = -3.5233877e-06 + p * w
        p = -4.39150654e-06 + p * w
        p = 0.00021858087 + p * w
        p = -0.00125372503 + p * w
        p = -0.00417768164 + p * w
        p = 0.246640727 + p * w
        p = 1.50140941 + p * w
    else:
        w = math.sqrt(w) - 3.0
        p = 0.000100950558 - 0.000200214257 * w
        p = 0.00134934322 + p * w
        p = -0.00367342844 + p * w
        p = 0.00573950773 + p * w
        p = -0.0076224613 + p * w
        p = 0.00943887047 + p * w
        p = 1.00167406 + p * w
        p = 2.83297682 + p * w
    y = p * size
    for _ in range(3):
        beyond = math.erf(y) - size if size < _NEAR else left - math.erfc(y)
        y -= beyond * 0.886226925452758 * math.exp(y * y)
    return math.copysign(y, x)


class erfinv(Unary):
    """The inverse of the error function; NaN beyond -1 … 1."""

    alone = EVERY_TYPE
    formula = "the y with erf(y) = x"
    source = "torch.special.erfinv; M. Giles, Approximating the erfinv function, 2010"
    faults = Faults(
        elementwise,
        Rule("beyond -1 … 1, where it is defined", lambda x: np.abs(x) > 1),
        Rule("infinite at -1 and 1", lambda x: np.abs(x) == 1),
    )

    oracle = each(inverse_erf)
    scalar = inverse_erf

    grad = derivatives(
        lambda g, x, y, gy: g.mul(gy, g.mul(g.exp(g.square(y)), math.sqrt(math.pi) / 2.0))
    )


@vectorised(f32=lgamma32)
def gamma_log(x):
    return math.lgamma(x)


class lgamma(Unary):
    """The logarithm of the absolute value of the gamma function."""

    alone = EVERY_TYPE
    formula = "ln |gamma(x)|"
    source = "torch.lgamma"
    faults = Faults(elementwise, _POLE)

    oracle = each(_gamma_log)
    scalar = gamma_log
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.digamma(x)))


@pinned("f64")
def gamma_slope(number):
    """From the asymptotic series (Abramowitz and Stegun 6.3.18), reflected below 0; in f64, as
    terms cancel near its zeros.
    """
    x = np.float64(number)
    mirrored = x < 0.0
    if x == 0.0:
        return math.copysign(math.inf, -x)
    if mirrored and x == np.floor(x):
        return math.nan
    at = 1.0 - x if mirrored else x
    y = 0.0
    while at < _FAR:
        y -= 1.0 / at
        at += 1.0
    z = 1.0 / (at * at)
    p = z * (0.021092796092796094 - z * 0.08333333333333333)
    p = z * (0.004166666666666667 - z * (0.007575757575757576 - p))
    p = z * (0.08333333333333333 - z * (0.008333333333333333 - z * (0.003968253968253968 - p)))
    y += math.log(at) - 0.5 / at - p
    if mirrored:
        y -= math.pi / math.tan(math.pi * (x - np.floor(x + 0.5)))
    return y


class digamma(Unary):
    """The derivative of lgamma; NaN at negative integers."""

    alone = EVERY_TYPE
    formula = "gamma'(x) / gamma(x)"
    source = "torch.digamma"
    faults = Faults(elementwise, _POLE, _BELOW)

    oracle = each(gamma_slope)
    scalar = gamma_slope
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.trigamma(x)))


@pinned("f64")
def gamma_bend(number):
    """From the asymptotic series (Abramowitz and Stegun 6.4.12), reflected below 0.5."""
    x = np.float64(number)
    if x <= 0.0 and x == np.floor(x):
        return math.inf if x > -math.inf else math.nan
    mirrored = x < 0.5
    at = 1.0 - x if mirrored else x
    y = 0.0
    while at < _FAR:
        y += 1.0 / (at * at)
        at += 1.0
    z = 1.0 / (at * at)
    p = z * (0.07575757575757576 - z * (0.2531135531135531 - z * 1.1666666666666667))
    p = z * (0.03333333333333333 - z * (0.023809523809523808 - z * (0.03333333333333333 - p)))
    y += 1.0 / at + 0.5 * z + z / at * (0.16666666666666666 - p)
    if mirrored:
        s = math.sin(math.pi * (x - np.floor(x + 0.5)))
        y = math.pi * math.pi / (s * s) - y
    return y


class trigamma(Unary):
    """The derivative of digamma; an infinity at 0 and at negative integers."""

    alone = EVERY_TYPE
    formula = "the second derivative of ln |gamma(x)|"
    source = "torch.polygamma(1, x)"
    faults = Faults(elementwise, _POLE, _BELOW)
    grad = None

    oracle = each(gamma_bend)
    scalar = gamma_bend


class hypot(Binary):
    """The length of the vector (a, b), also where its square overflows."""

    alone = EVERY_TYPE
    formula = "sqrt(a*a + b*b)"
    source = "torch.hypot, numpy.hypot"
    faults = OVERFLOW
    scalar = math.hypot
    grad = derivatives(
        lambda g, a, b, y, gy: g.div(g.mul(gy, a), y), lambda g, a, b, y, gy: g.div(g.mul(gy, b), y)
    )


class copysign(Binary):
    """a with the sign of b, which may be that of a zero."""

    formula = "|a| where b >= 0, else -|a|"
    source = "torch.copysign, numpy.copysign"
    faults = NO_FAULTS
    scalar = math.copysign

    grad = derivatives(
        lambda g, a, b, y, gy: g.mul(gy, g.where(g.equal(a, 0.0), 0.0, g.div(y, a))),
        lambda g, a, b, y, gy: g.zeros_like(gy),
    )


class xlogy(Binary):
    """a * log(b), which is 0 where a is 0, whatever b is, other than NaN."""

    formula = "a * ln(b) where a is not 0 or b is NaN, else 0"
    source = "torch.xlogy, torch.special.xlogy"
    faults = Faults(
        elementwise,
        Rule("log of a negative number", lambda a, b: (None, b < 0)),
        Rule("log of 0", lambda a, b: (None, b == 0)),
    )

    def oracle(a, b):
        return np.where((a == 0) & ~np.isnan(b), 0.0, a * np.log(b))

    def scalar(a, b):
        y = a * log(b)
        return 0.0 if a == 0.0 and b == b else y

    def by_a(g, a, b, y, gy):
        none = g.logical_and(g.equal(a, 0.0), g.less_equal(b, 0.0))
        return g.mul(gy, g.where(none, 0.0, g.log(b)))

    grad = derivatives(by_a, lambda g, a, b, y, gy: g.div(g.mul(gy, a), b))


class logaddexp(Binary):
    """log(e**a + e**b), without overflow."""

    formula = "max(a, b) + ln(1 + e**-|a - b|)"
    source = "torch.logaddexp, numpy.logaddexp"
    faults = NO_FAULTS

    def scalar(a, b):
        top = a if a > b or a != a else b
        further = log1p(exp(-abs(a - b)))
        return a + 0.6931471805599453 if a == b else top + further

    grad = derivatives(
        lambda g, a, b, y, gy: g.mul(gy, g.sigmoid(g.sub(a, b))),
        lambda g, a, b, y, gy: g.mul(gy, g.sigmoid(g.sub(b, a))),
    )
