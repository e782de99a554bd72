"""Binary arithmetic, sign, absolute value, limits, rounding.

Integers wrap around; integer division by 0 gives 0.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from opstep.kernels.math.fastmath import fmod as float_fmod
from opstep.kernels.pointwise.elementwise import EVERY_TYPE, Binary, Unary, derivatives, same
from opstep.kernels.rules.faults import OVERFLOW, REMAINDER, elementwise
from opstep.kernels.rules.literals import check_value, limits
from opstep.runtime.device.launch import Clamp
from opstep.runtime.ir.faults import NO_FAULTS, Faults, Rule, infinite
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import DType


class add(Binary):
    """a + b."""

    signature = "add(a: N, b: N)"
    formula = "a + b"
    source = "torch.add, ONNX Add"
    faults = Faults(
        elementwise, Rule("inf - inf", lambda a, b: infinite(a) & infinite(b) & (a == -b))
    )
    scalar = operator.add
    grad = derivatives(lambda g, a, b, y, gy: gy, lambda g, a, b, y, gy: gy)


class sub(Binary):
    """a - b."""

    signature = "sub(a: N, b: N)"
    formula = "a - b"
    source = "torch.sub, numpy.subtract, ONNX Sub"
    faults = Faults(elementwise, Rule("inf - inf", lambda a, b: infinite(a) & (a == b)))
    oracle = np.subtract
    scalar = operator.sub
    grad = derivatives(lambda g, a, b, y, gy: gy, lambda g, a, b, y, gy: g.neg(gy))


class mul(Binary):
    """a * b."""

    signature = "mul(a: N, b: N)"
    formula = "a * b"
    source = "torch.mul, numpy.multiply, ONNX Mul"
    faults = Faults(
        elementwise,
        Rule("0 times infinity", lambda a, b: (a == 0) & infinite(b) | infinite(a) & (b == 0)),
    )
    oracle = np.multiply
    scalar = operator.mul
    grad = derivatives(lambda g, a, b, y, gy: g.mul(gy, b), lambda g, a, b, y, gy: g.mul(gy, a))


class div(Binary):
    """a / b, true division: integers are divided as f32."""

    formula = "a / b"
    source = "torch.div, numpy.divide and true_divide, ONNX Div (of floats)"
    faults = Faults(
        elementwise,
        Rule("0 / 0", lambda a, b: (a == 0) & (b == 0)),
        Rule("division by 0", lambda a, b: (None, b == 0)),
        Rule("inf / inf", lambda a, b: infinite(a) & infinite(b)),
    )
    oracle = np.true_divide
    scalar = operator.truediv
    grad = derivatives(
        lambda g, a, b, y, gy: g.div(gy, b), lambda g, a, b, y, gy: g.neg(g.mul(gy, g.div(y, b)))
    )


class floor_div(Binary):
    """The largest integer not above a / b; integers divided by 0 give 0.

    A zero has the sign of a / b, as in NumPy and PyTorch. The gradient is 0 almost everywhere.
    """

    signature = "floor_div(a: N, b: N)"
    alone = EVERY_TYPE
    formula = "floor(a / b), exact where a / b itself would be rounded up to a whole number"
    source = "torch.floor_divide, numpy.floor_divide"
    faults = div.faults
    oracle = np.floor_divide

    def scalar(a, b):
        if b == 0.0:
            return a / b
        rest = float_fmod(a, b)
        quotient = (a - rest) / b
        quotient = np.rint(
            quotient - 1.0 if (b < 0.0) != (rest < 0.0) and rest != 0.0 else quotient
        )
        return math.copysign(quotient, a / b) if quotient == 0.0 else quotient

    @staticmethod
    def integer(a, b):
        if b == 0:
            return b
        return -a if b == -1 else a // b

    def grad(g, operands, results, grads):
        return None, None


class rem(Binary):
    """The remainder of floor_div, with the sign of b. For integers, 0 if b is 0."""

    signature = "rem(a: N, b: N)"
    alone = EVERY_TYPE
    formula = "a - b*floor(a / b)"
    source = "torch.remainder, numpy.mod, ONNX Mod (fmod=0)"
    faults = REMAINDER
    oracle = np.mod

    def scalar(a, b):
        rest = float_fmod(a, b)
        if rest == 0.0:
            return math.copysign(rest, b)
        return rest + b if (b < 0.0) != (rest < 0.0) else rest

    @staticmethod
    def integer(a, b):
        return a - a if b == 0 or b == -1 else a % b

    grad = derivatives(
        lambda g, a, b, y, gy: gy, lambda g, a, b, y, gy: g.neg(g.mul(gy, g.floor_div(a, b)))
    )


class fmod(Binary):
    """The remainder of a division rounded towards zero, with the sign of a. For integers, 0 if b is
    0.
    """

    signature = "fmod(a: N, b: N)"
    alone = EVERY_TYPE
    formula = "a - b*trunc(a / b)"
    source = "torch.fmod, C fmod, ONNX Mod (fmod=1)"
    faults = REMAINDER
    scalar = float_fmod

    @staticmethod
    def integer(a, b):
        if b == 0 or b == -1:
            return a - a
        rest = a % b
        return rest - b if rest != 0 and (a < 0) != (b < 0) else rest

    grad = derivatives(
        lambda g, a, b, y, gy: gy, lambda g, a, b, y, gy: g.neg(g.mul(gy, g.trunc(g.div(a, b))))
    )


def _share(g, x, other, gy, loses):
    """What x gets of the gradient of an extreme."""
    kept = g.where(loses(x, other), 0.0, gy)  # both, where one is NaN
    return g.where(g.equal(x, other), g.mul(gy, 0.5), kept)


class maximum(Binary):
    """The larger of two; NaN if either is NaN. Equal operands share the gradient."""

    signature = "maximum(a: N, b: N)"
    formula = "max(a, b)"
    source = "torch.maximum, ONNX Max"
    faults = NO_FAULTS

    def scalar(a, b):
        return a if a > b or a != a else b

    grad = derivatives(
        lambda g, a, b, y, gy: _share(g, a, b, gy, g.less),
        lambda g, a, b, y, gy: _share(g, b, a, gy, g.less),
    )


class minimum(Binary):
    """The smaller of two; NaN if either is NaN. Equal operands share the gradient."""

    signature = "minimum(a: N, b: N)"
    formula = "min(a, b)"
    source = "torch.minimum, ONNX Min"
    faults = NO_FAULTS

    def scalar(a, b):
        return a if a < b or a != a else b

    grad = derivatives(
        lambda g, a, b, y, gy: _share(g, a, b, gy, g.greater),
        lambda g, a, b, y, gy: _share(g, b, a, gy, g.greater),
    )


class neg(Unary):
    """-x."""

    signature = "neg(x: N)"
    formula = "-x"
    source = "torch.neg, numpy.negative, ONNX Neg"
    faults = NO_FAULTS
    oracle = np.negative
    scalar = operator.neg
    grad = derivatives(lambda g, x, y, gy: g.neg(gy))


class abs(Unary):
    """|x|; the gradient at 0 is 0."""

    signature = "abs(x: N)"
    formula = "x where x >= 0, else -x"
    source = "torch.abs, numpy.absolute, ONNX Abs"
    faults = NO_FAULTS
    scalar = np.abs
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.sign(x)))


class sign(Unary):
    """-1, 0 or 1; NaN for NaN (PyTorch gives 0). -0 stays -0 (PyTorch and NumPy give 0)."""

    signature = "sign(x: N)"
    formula = "-1 where x < 0, 0 where x = 0, 1 where x > 0"
    source = "torch.sign, ONNX Sign"
    faults = NO_FAULTS

    def scalar(x):
        if x > 0.0:
            return 1.0
        return -1.0 if x < 0.0 else x

    @staticmethod
    def integer(x):
        return (1 if x > 0 else 0) - (1 if x < 0 else 0)

    grad = derivatives(lambda g, x, y, gy: g.zeros_like(x))


class square(Unary):
    """x * x."""

    signature = "square(x: N)"
    formula = "x * x"
    source = "torch.square"
    faults = OVERFLOW

    def scalar(x):
        return x * x

    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.mul(x, 2.0)))


class reciprocal(Unary):
    """1 / x."""

    formula = "1 / x"
    source = "torch.reciprocal, ONNX Reciprocal"
    faults = Faults(elementwise, Rule("1 / 0", lambda x: x == 0))

    def oracle(x):
        return 1.0 / x

    def scalar(x):
        return 1.0 / x

    grad = derivatives(lambda g, x, y, gy: g.neg(g.mul(gy, g.square(y))))


class clip(Unary):
    """x, limited to the range from `low` to `high` (both optional); NaN stays NaN.

    The gradient passes where low <= x <= high, which excludes NaN.
    """

    signature = "clip(x: N, *, low: number = none, high: number = none)"
    formula = "min(max(x, low), high)"
    source = "torch.clamp, ONNX Clip, torch.nn.functional.hardtanh and relu6"
    faults = NO_FAULTS

    def infer(x, *, low, high):
        if low is None and high is None:
            raise Mismatch("clip needs low, high or both", hint="write low=0.0, for instance")
        for name, limit in (("low", low), ("high", high)):
            if limit is None:
                continue
            if x.dtype.is_integer and limit % 1 != 0:
                raise Mismatch(
                    f"{name}={limit} is no {x.dtype}", name, hint="cast x to f32 before clip"
                )
            if limit != limit:
                raise Mismatch(f"{name}={limit} limits nothing", name)
            if x.dtype.is_float:
                check_value(limit, x.dtype, name)
        if x.dtype.is_integer:
            least, most = limits(x.dtype)
            if low is not None and low > most:
                raise Mismatch(f"low={low} is above all {x.dtype}", "low")
            if high is not None and high < least:
                raise Mismatch(f"high={high} is below all {x.dtype}", "high")
        return x

    def oracle(x, *, low, high):
        if low is not None:
            x = np.where(x < low, np.asarray(low).astype(x.dtype), x)
        return x if high is None else np.where(x > high, np.asarray(high).astype(x.dtype), x)

    @staticmethod
    def low_scalar(x, low):
        return low if x < low else x

    @staticmethod
    def high_scalar(x, high):
        return high if x > high else x

    def scalar(x, low, high):
        x = low if x < low else x
        return high if x > high else x

    def clamp(dtype, *, low, high):
        number = dtype.numpy.type
        with np.errstate(all="ignore"):
            low = number(-math.inf if low is None else low)
            high = number(math.inf if high is None else high)
            below = np.nextafter(low, number(-math.inf))  # a limit of 0 leaves -0 as it is
        return Clamp(float(below), float(low), float(high))

    @classmethod
    def function(cls, x, *, low, high):
        bounds = [_in_type(v, x.dtype) for v in (low, high) if v is not None]
        f = cls.low_scalar if high is None else cls.high_scalar if low is None else cls.scalar
        return f, bounds

    def grad(g, operands, results, grads, *, low, high):
        (x,), (gy,) = operands, grads
        if low is not None:
            gy = g.where(g.greater_equal(x, low), gy, 0.0)
        if high is not None:
            gy = g.where(g.less_equal(x, high), gy, 0.0)
        return (gy,)


def _in_type(limit: float, dtype: DType) -> float | int:
    """A limit as a kernel takes it; what lies beyond an integer type limits like its end."""
    if dtype.is_float:
        return float(limit)
    least, most = limits(dtype)
    return max(least, min(most, int(limit)))


class _Rounding(Unary):
    """To a whole number; integers stay as they are. The gradient is 0 almost everywhere."""

    faults = NO_FAULTS
    integer = staticmethod(same)
    grad = derivatives(lambda g, x, y, gy: g.zeros_like(x))


class floor(_Rounding):
    """The largest integer not above x, in x's type."""

    signature = "floor(x: N)"
    source = "torch.floor, ONNX Floor"
    scalar = np.floor


class ceil(_Rounding):
    """The smallest integer not below x, in x's type."""

    signature = "ceil(x: N)"
    source = "torch.ceil, ONNX Ceil"
    scalar = np.ceil


class round(_Rounding):
    """The nearest integer, in x's type; ties go to the even one."""

    signature = "round(x: N)"
    source = "torch.round, ONNX Round"
    oracle = scalar = np.rint


class trunc(_Rounding):
    """x without its fraction, rounded towards zero."""

    signature = "trunc(x: N)"
    source = "torch.trunc"
    scalar = np.trunc
