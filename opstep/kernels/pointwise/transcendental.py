"""Powers, exponentials, logarithms, trigonometric and hyperbolic functions.

Outside its domain, a function gives NaN (log of a negative number) or an infinity (log of 0), as in
IEEE 754.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math import fastmath
from opstep.kernels.pointwise.elementwise import (
    EVERY_TYPE,
    INTEGERS,
    Binary,
    Unary,
    derivatives,
    guarded_loop,
    onto,
)
from opstep.kernels.rules.faults import LOGARITHM, OUT_OF_DOMAIN, OVERFLOW, WAVE, elementwise
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.faults import NO_FAULTS, Faults, Rule
from opstep.runtime.ir.op import Traits


class pow(Binary):
    """a to the power b. Integers wrap around; to a negative power, they are 0 except for 1 and
    -1.
    """

    signature = "pow(a: N, b: N)"
    alone = ("f64", *INTEGERS)
    formula = "a ** b"
    source = "torch.pow, numpy.power, ONNX Pow"
    faults = Faults(
        elementwise,
        Rule("0 to a negative power", lambda a, b: (a == 0) & (b < 0)),
        Rule("negative number to a fractional power", lambda a, b: (a < 0) & (b != np.trunc(b))),
    )

    def oracle(a, b):
        if a.dtype.kind == "f":
            return np.power(a, b)
        inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b % 2), 0))
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))

    scalar = fastmath.pow

    @staticmethod
    def integer(a, b):
        if b < 0:
            odd = b % 2 == 1
            return (-1 if odd else 1) if a == -1 else (1 if a == 1 else 0)
        y = np.int64(1)
        factor = np.int64(a)
        left = np.int64(b)
        while left > 0:
            if left & 1:
                y *= factor
            factor *= factor
            left >>= 1
        return y

    def grad(g, operands, results, grads):
        (a, b), (y,), (gy,) = operands, results, grads

        def by_base():
            if not isinstance(b, int | float):
                slope = g.mul(b, g.pow(a, g.sub(b, 1.0)))
                return g.mul(gy, g.where(g.equal(b, 0.0), 0.0, slope))
            if b == 0:
                return g.zeros_like(y)
            if b == 1.5:  # as PyTorch takes it: NaN for -inf
                return g.mul(gy, g.mul(g.sqrt(a), b))
            return g.mul(gy, g.mul(a, 2.0) if b == 2 else g.mul(g.pow(a, b - 1.0), float(b)))

        def by_exponent():
            slope = g.mul(y, g.log(a))
            if isinstance(a, int | float) and a != 0:
                return g.mul(gy, slope)
            none = g.greater_equal(b, 0.0)
            if not isinstance(a, int | float):
                none = g.logical_and(g.equal(a, 0.0), none)
            return g.mul(gy, g.where(none, 0.0, slope))

        return onto(g, a, by_base), onto(g, b, by_exponent)


class atan2(Binary):
    """The angle of the point (x, y) = (b, a), from -pi to pi."""

    alone = EVERY_TYPE
    formula = "the angle t with a = r*sin(t), b = r*cos(t)"
    source = "torch.atan2, numpy.arctan2"
    faults = NO_FAULTS
    scalar = fastmath.atan2

    def grad(g, operands, results, grads):
        a, b = operands
        (gy,) = grads

        def over_square(x):
            square = g.add(g.square(a), g.square(b))
            return g.mul(g.mul(gy, x), g.reciprocal(g.where(g.equal(square, 0.0), 1.0, square)))

        return onto(g, a, lambda: over_square(b)), onto(g, b, lambda: g.neg(over_square(a)))


class sqrt(Unary):
    """The square root; NaN for a negative number."""

    formula = "x ** 0.5"
    source = "torch.sqrt, ONNX Sqrt"
    faults = Faults(elementwise, Rule("square root of a negative number", lambda x: x < 0))
    scalar = np.sqrt
    grad = derivatives(lambda g, x, y, gy: g.div(g.mul(gy, 0.5), y))


class rsqrt(Unary):
    """1 / sqrt(x)."""

    formula = "x ** -0.5"
    source = "torch.rsqrt"
    faults = Faults(
        elementwise,
        Rule("square root of a negative number", lambda x: x < 0),
        Rule("1 / sqrt(0)", lambda x: x == 0),
    )

    def oracle(x):
        return 1.0 / np.sqrt(x)

    def scalar(x):
        return 1.0 / np.sqrt(x)

    grad = derivatives(lambda g, x, y, gy: g.mul(g.mul(gy, -0.5), g.mul(y, g.square(y))))


class exp(Unary):
    """e to the power x."""

    formula = "e ** x"
    source = "torch.exp, ONNX Exp"
    faults = OVERFLOW
    scalar = fastmath.exp
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, y))


class exp2(Unary):
    """2 to the power x."""

    alone = ("f64",)
    formula = "2 ** x"
    source = "torch.exp2"
    faults = OVERFLOW
    scalar = fastmath.exp2
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.mul(y, math.log(2.0))))


class expm1(Unary):
    """e to the power x, minus 1; accurate near 0."""

    formula = "e ** x - 1"
    source = "torch.expm1"
    faults = OVERFLOW
    scalar = fastmath.expm1
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.add(y, 1.0)))


class log(Unary):
    """The natural logarithm; -inf for 0, NaN for a negative number."""

    formula = "ln(x)"
    source = "torch.log, ONNX Log"
    faults = LOGARITHM
    scalar = fastmath.log
    grad = derivatives(lambda g, x, y, gy: g.div(gy, x))


class log2(Unary):
    """The logarithm to base 2."""

    alone = ("f64",)
    formula = "ln(x) / ln(2)"
    source = "torch.log2"
    faults = LOGARITHM
    scalar = fastmath.log2
    grad = derivatives(lambda g, x, y, gy: g.div(g.mul(gy, 1.0 / math.log(2.0)), x))


class log10(Unary):
    """The logarithm to base 10."""

    alone = EVERY_TYPE
    formula = "ln(x) / ln(10)"
    source = "torch.log10"
    faults = LOGARITHM
    scalar = math.log10
    grad = derivatives(lambda g, x, y, gy: g.div(g.mul(gy, 1.0 / math.log(10.0)), x))


class log1p(Unary):
    """The natural logarithm of 1 + x; accurate near 0."""

    formula = "ln(1 + x)"
    source = "torch.log1p"
    faults = Faults(
        elementwise,
        Rule("log of a negative number, 1 + x", lambda x: x < -1),
        Rule("log of 0, 1 + x", lambda x: x == -1),
    )
    scalar = fastmath.log1p
    grad = derivatives(lambda g, x, y, gy: g.div(gy, g.add(x, 1.0)))


class _Wave(Unary):
    """sin and cos: a vectorised body up to `REACH`, and beyond that the C library's."""

    faults = WAVE
    traits = Traits()  # beyond it, halves are computed in f32 by the C library

    @classmethod
    def cpu(cls, x, y):
        kernel = guarded_loop(cls.near, cls.scalar, fastmath.REACH, cls.name)
        return Launch(kernel, x, y, units=y.size, each=True)


class sin(_Wave):
    """The sine of x in radians."""

    alone = EVERY_TYPE
    source = "torch.sin, ONNX Sin"
    scalar = fastmath.sin
    near = staticmethod(fastmath.near_sin)
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.cos(x)))


class cos(_Wave):
    """The cosine of x in radians."""

    alone = EVERY_TYPE
    source = "torch.cos, ONNX Cos"
    scalar = fastmath.cos
    near = staticmethod(fastmath.near_cos)
    grad = derivatives(lambda g, x, y, gy: g.neg(g.mul(gy, g.sin(x))))


class tan(Unary):
    """The tangent of x in radians."""

    alone = EVERY_TYPE
    formula = "sin(x) / cos(x)"
    source = "torch.tan, ONNX Tan"
    faults = WAVE
    scalar = math.tan
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.add(g.square(y), 1.0)))


class asin(Unary):
    """Inverse sine, in radians; NaN if |x| > 1."""

    alone = EVERY_TYPE
    source = "torch.asin, ONNX Asin"
    faults = OUT_OF_DOMAIN
    scalar = math.asin
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, _one_less_square(g, x)))


class acos(Unary):
    """Inverse cosine, in radians; NaN if |x| > 1."""

    alone = EVERY_TYPE
    source = "torch.acos, ONNX Acos"
    faults = OUT_OF_DOMAIN
    scalar = math.acos
    grad = derivatives(lambda g, x, y, gy: g.neg(g.mul(gy, _one_less_square(g, x))))


def _one_less_square(g, x):
    """1 / sqrt(1 - x²)"""
    return g.rsqrt(g.sub(1.0, g.square(x)))


class atan(Unary):
    """Inverse tangent, in radians."""

    alone = EVERY_TYPE
    source = "torch.atan, ONNX Atan"
    faults = NO_FAULTS
    scalar = fastmath.atan
    grad = derivatives(lambda g, x, y, gy: g.div(gy, g.add(g.square(x), 1.0)))


class sinh(Unary):
    """The hyperbolic sine."""

    alone = EVERY_TYPE
    formula = "(e ** x - e ** -x) / 2"
    source = "torch.sinh, ONNX Sinh"
    faults = OVERFLOW
    scalar = math.sinh
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.cosh(x)))


class cosh(Unary):
    """The hyperbolic cosine."""

    alone = EVERY_TYPE
    formula = "(e ** x + e ** -x) / 2"
    source = "torch.cosh, ONNX Cosh"
    faults = OVERFLOW
    scalar = math.cosh
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.sinh(x)))


class tanh(Unary):
    """The hyperbolic tangent."""

    formula = "(e ** x - e ** -x) / (e ** x + e ** -x)"
    source = "torch.tanh, ONNX Tanh"
    faults = NO_FAULTS
    scalar = fastmath.tanh
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.sub(1.0, g.square(y))))


class asinh(Unary):
    """Inverse hyperbolic sine."""

    alone = EVERY_TYPE
    formula = "ln(x + sqrt(x*x + 1))"
    source = "torch.asinh, ONNX Asinh"
    faults = NO_FAULTS
    scalar = math.asinh
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.rsqrt(g.add(g.square(x), 1.0))))


class acosh(Unary):
    """Inverse hyperbolic cosine (not negative); NaN if x < 1."""

    alone = EVERY_TYPE
    formula = "ln(x + sqrt(x*x - 1))"
    source = "torch.acosh, ONNX Acosh"
    faults = Faults(elementwise, Rule("less than 1, where it is defined", lambda x: x < 1))
    scalar = math.acosh
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.rsqrt(g.sub(g.square(x), 1.0))))


class atanh(Unary):
    """Inverse hyperbolic tangent; NaN if |x| > 1."""

    alone = EVERY_TYPE
    formula = "ln((1 + x) / (1 - x)) / 2"
    source = "torch.atanh, ONNX Atanh"
    faults = Faults(
        elementwise,
        Rule("atanh of 1 or -1", lambda x: np.abs(x) == 1),
        *OUT_OF_DOMAIN.rules,
    )
    scalar = math.atanh
    grad = derivatives(lambda g, x, y, gy: g.div(gy, g.sub(1.0, g.square(x))))


class erf(Unary):
    """The error function."""

    alone = ("f64",)
    formula = "2/sqrt(pi) times the integral of e ** -(t*t) from 0 to x"
    source = "torch.erf, ONNX Erf"
    faults = NO_FAULTS

    oracle = np.vectorize(math.erf, otypes=[np.float64])
    scalar = fastmath.erf

    def grad(g, operands, results, grads):
        bell = g.exp(g.neg(g.square(operands[0])))
        return (g.mul(grads[0], g.mul(bell, 2.0 / math.sqrt(math.pi))),)
