"""Arithmetic, powers, exponentials, and the activation functions."""

from __future__ import annotations

from math import inf, log, pi

from opstep.frontends.onnx.export_rules import RULES, node, rule, wide
from opstep.runtime.ir.types import f64

_SAME = {
    "abs": "Abs", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max",
    "minimum": "Min", "reciprocal": "Reciprocal", "sign": "Sign", "acos": "Acos",
    "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "log": "Log", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh", "pow": "Pow",
    "sigmoid": "Sigmoid", "mish": "Mish", "hard_swish": "HardSwish", "prelu": "PRelu",
    "where": "Where", "identity": "Identity", "stop_gradient": "Identity",
}  # fmt: skip
RULES.update({name: node(op_type) for name, op_type in _SAME.items()})
RULES["elu"] = node("Elu", alpha="alpha")
RULES["gelu"] = node("Gelu", approximate="approximate")
RULES["hard_sigmoid"] = node("HardSigmoid", alpha="alpha", beta="beta")
RULES["leaky_relu"] = node("LeakyRelu", slope="alpha")


@rule("cast")
def _cast(b, t, x, dtype):
    return b.to(x, dtype)


@rule("neg")
def _neg(b, t, x):
    return b.sub(b.like(0, x), x) if x.dtype.kind == "u" else b.onnx("Neg", x, out=t)


@rule("relu")
def _relu(b, t, x):
    return x if x.dtype.kind == "u" else b.onnx("Relu", x, out=t)


@rule("clip")
def _clip(b, t, x, low, high):
    if x.dtype.is_integer:
        bits = x.dtype.bits - (x.dtype.kind == "i")
        least, most = (0 if x.dtype.kind == "u" else -(2**bits)), 2**bits - 1
        low = None if low is None else max(least, int(max(low, least)))
        high = None if high is None else min(most, int(min(high, most)))
    limits = [None if v is None else b.like(v, x) for v in (low, high)]
    return b.onnx("Clip", x, *limits, out=t)


def _rounding(op_type):
    def write(b, t, x):
        return b.onnx(op_type, x, out=t) if x.dtype.is_float else x

    return write


RULES.update(ceil=_rounding("Ceil"), floor=_rounding("Floor"), round=_rounding("Round"))


@rule("trunc")
@wide
def _trunc(b, t, x):
    return b.mul(b.sign(x), b.floor(b.abs(x))) if x.dtype.is_float else x


@rule("square")
def _square(b, t, x):
    return b.mul(x, x)


# --- divisions with a rest ---


def _fmod(b, t, x, y):
    return b.onnx("Mod", x, y, out=t, fmod=1)


@rule("fmod")
@wide
def _fmod_safely(b, t, x, y):
    if t.dtype.is_float:
        return _fmod(b, t, x, y)
    none = b.equal(y, 0)
    return b.where(none, 0, _fmod(b, t, x, b.where(none, 1, y)))


@rule("rem")
@wide
def _rem(b, t, x, y):
    rest = _fmod_safely(b, t, x, y)
    if x.dtype.kind == "u":
        return rest
    moves = b.logical_and(
        b.not_equal(rest, 0), b.not_equal(b.less(y, 0), b.less(rest, 0))
    )
    found = b.where(moves, b.add(rest, y), rest)
    return found if x.dtype.is_integer else b.where(b.equal(rest, 0), b.copysign(found, y), found)


@rule("floor_div")
@wide
def _floor_div(b, t, x, y):
    if t.dtype.is_float:
        quotient = b.round(b.div(b.sub(x, b.rem(x, y)), y))
        signed = b.where(b.equal(quotient, 0), b.copysign(quotient, b.div(x, y)), quotient)
        return b.where(b.equal(y, 0), b.div(x, y), signed)
    none = b.equal(y, 0)
    divisor = b.where(none, 1, y)
    # ONNX's Div of integers rounds towards zero
    quotient = b.onnx("Div", b.sub(x, b.rem(x, divisor)), divisor, out=t)
    return b.where(none, 0, quotient)


# --- powers and exponentials ---


@rule("rsqrt")
@wide
def _rsqrt(b, t, x):
    return b.reciprocal(b.sqrt(x))


@rule("exp2")
@wide
def _exp2(b, t, x):
    return b.pow(2.0, x)


@rule("expm1")
@wide
def _expm1(b, t, x):
    half = b.tanh(b.mul(x, 0.5))
    near = b.div(b.mul(half, 2.0), b.sub(1.0, half))
    return b.where(b.less(b.abs(x), 0.5), near, b.sub(b.exp(x), 1.0))


@rule("log1p")
@wide
def _log1p(b, t, x):
    """What 1 + x is rounded to says by how much its logarithm is off."""
    sum_ = b.add(x, 1.0)
    scaled = b.mul(b.log(sum_), b.div(x, b.sub(sum_, 1.0)))
    found = b.where(b.equal(sum_, 1.0), x, scaled)
    return b.where(b.equal(x, inf), x, found)


@rule("log2")
@wide
def _log2(b, t, x):
    return b.div(b.log(x), log(2))


@rule("log10")
@wide
def _log10(b, t, x):
    return b.div(b.log(x), log(10))


@rule("atan2")
@wide
def _atan2(b, t, y, x):
    """The quadrant is that of the point; zeros have signs."""
    quotient = b.div(y, x)
    equal = b.logical_or(
        b.logical_and(b.equal(x, 0.0), b.equal(y, 0.0)), b.logical_and(b.isinf(x), b.isinf(y))
    )
    signs = b.div(b.copysign(1.0, y), b.copysign(1.0, x))
    zero = b.equal(y, 0.0)
    of_equals = b.where(zero, b.mul(signs, 0.0), signs)
    angle = b.atan(b.where(equal, of_equals, quotient))
    behind = b.less(b.copysign(1.0, x), 0.0)
    return b.where(behind, b.add(angle, b.copysign(pi, y)), angle)


# --- activations ---


@rule("silu")
@wide
def _silu(b, t, x):
    return b.mul(x, b.sigmoid(x))


@rule("softplus")
def _softplus(b, t, x, beta, threshold):
    if beta == 1 and threshold >= 20 and x.dtype not in (f64,):
        return b.onnx("Softplus", x, out=t)
    return _softplus_of(b, t, x, beta, threshold)


@wide
def _softplus_of(b, t, x, beta, threshold):
    scaled = b.mul(x, beta)
    found = b.div(b.onnx("Softplus", scaled, out=scaled.type), beta)
    return b.where(b.greater(scaled, threshold), x, found)


