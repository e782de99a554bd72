"""Arithmetic, powers, exponentials, and the activation functions."""

from __future__ import annotations

from math import inf, log, pi, sqrt

from opstep.frontends.onnx.export_rules import RULES, node, rule, wide
from opstep.runtime.ir.types import boolean, f64

_SAME = {
    "abs": "Abs", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max",
    "minimum": "Min", "reciprocal": "Reciprocal", "sign": "Sign", "acos": "Acos",
    "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "log": "Log", "sin": "Sin",
    "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "sigmoid": "Sigmoid", "mish": "Mish", "prelu": "PRelu",
    "identity": "Identity", "stop_gradient": "Identity",
}  # fmt: skip
RULES.update({name: node(op_type) for name, op_type in _SAME.items()})


# Where ONNX has no op; halves are computed in f32.
_FORMULAS = {
    "rsqrt": lambda b, t, x: b.reciprocal(b.sqrt(x)),
    "exp2": lambda b, t, x: b.pow(2.0, x), "log2": lambda b, t, x: b.div(b.log(x), log(2)),
    "log10": lambda b, t, x: b.div(b.log(x), log(10)), "erfc": lambda b, t, x: b.sub(1.0, b.erf(x)),
    "silu": lambda b, t, x: b.mul(x, b.sigmoid(x)),
}  # fmt: skip
RULES.update({name: wide(formula) for name, formula in _FORMULAS.items()})
RULES["square"] = lambda b, t, x: b.mul(x, x)


def _of_floats(op_type):
    """Integers, or numbers without a sign, are as they are."""

    def write(b, t, x):
        is_there = x.dtype.is_float if op_type != "Relu" else x.dtype.kind != "u"
        return b.onnx(op_type, x, out=t) if is_there else x

    return write


for _name in ("Ceil", "Floor", "Round", "Relu"):
    RULES[_name.lower()] = _of_floats(_name)


@rule("cast")
def _cast(b, t, x, dtype):
    return b.to(x, dtype)


@rule("neg")
def _neg(b, t, x):
    return b.sub(b.like(0, x), x) if x.dtype.kind == "u" else b.onnx("Neg", x, out=t)


@rule("clip")
def _clip(b, t, x, low, high):
    if x.dtype.is_integer:
        bits = x.dtype.bits - (x.dtype.kind == "i")
        least, most = (0 if x.dtype.kind == "u" else -(2**bits)), 2**bits - 1
        low = None if low is None else max(least, int(max(low, least)))
        high = None if high is None else min(most, int(min(high, most)))
    limits = [None if v is None else b.like(v, x) for v in (low, high)]
    return b.onnx("Clip", x, *limits, out=t)


@rule("trunc")
@wide
def _trunc(b, t, x):
    return b.mul(b.sign(x), b.floor(b.abs(x))) if x.dtype.is_float else x


# --- divisions with a rest ---


def _fmod(b, t, x, y):
    return b.onnx("Mod", x, y, out=t, fmod=1)


@rule("fmod")
@wide
def _fmod_safely(b, t, x, y):
    if t.dtype.is_float:
        return _fmod(b, t, x, y)
    return _fmod(b, t, x, _divisor(b, y))  # by 1 nothing is left over, nor by 0 and -1


def _divisor(b, y):
    """y, with 1 for 0 and -1, by which processors cannot divide all integers."""
    impossible = b.equal(y, 0)
    if y.dtype.kind == "i":
        impossible = b.logical_or(impossible, b.equal(y, -1))
    return b.where(impossible, 1, y)


@rule("rem")
@wide
def _rem(b, t, x, y):
    rest = _fmod_safely(b, t, x, y)
    if x.dtype.kind == "u":
        return rest
    found = b.where(_opposed(b, rest, y), b.add(rest, y), rest)
    return found if x.dtype.is_integer else b.where(b.equal(rest, 0), b.copysign(found, y), found)


def _opposed(b, rest, y):
    """Whether something is left over, with the other sign."""
    return b.logical_and(b.not_equal(rest, 0), b.not_equal(b.less(y, 0), b.less(rest, 0)))


@rule("floor_div")
@wide
def _floor_div(b, t, x, y):
    if t.dtype.is_float:
        rest = _fmod(b, t, x, y)
        quotient = b.div(b.sub(x, rest), y)
        quotient = b.round(b.where(_opposed(b, rest, y), b.sub(quotient, 1), quotient))
        signed = b.where(b.equal(quotient, 0), b.copysign(quotient, b.div(x, y)), quotient)
        return b.where(b.equal(y, 0), b.div(x, y), signed)
    divisor = _divisor(b, y)
    quotient = b.onnx("Div", x, divisor, out=t)  # ONNX's rounds integers towards zero
    if x.dtype.kind == "i":
        below = _opposed(b, _fmod(b, t, x, divisor), divisor)
        quotient = b.sub(quotient, b.cast(below, dtype=t.dtype))
        quotient = b.where(b.equal(y, -1), b.neg(x), quotient)
    return b.where(b.equal(y, 0), 0, quotient)


# --- powers and exponentials ---


@rule("where")
def _where(b, t, flag, x, y):
    if t.dtype is not boolean:
        return b.onnx("Where", flag, x, y, out=t)
    # ONNX Runtime has none of bools
    return b.logical_or(b.logical_and(flag, x), b.logical_and(b.logical_not(flag), y))


@rule("pow")
def _pow(b, t, x, y):
    if t.dtype.is_float or t.dtype.kind == "u":
        return b.onnx("Pow", x, y, out=t)
    below = b.less(y, 0)
    sign = b.sub(1, b.mul(b.rem(y, 2), 2))
    inverse = b.where(b.equal(x, 1), 1, b.where(b.equal(x, -1), sign, 0))
    return b.where(below, inverse, b.onnx("Pow", x, b.where(below, 0, y), out=t))


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


# ONNX's attributes are f32, so in f64 these are written by their formulas


def _exactly(name, one_node):
    def register(function):
        def write(b, t, x, **attrs):
            return function(b, x, **attrs) if t.dtype is f64 else one_node(b, t, x, **attrs)

        rule(name)(write)
        return function

    return register


@_exactly("elu", node("Elu", alpha="alpha"))
def _elu(b, x, alpha):
    return b.where(b.greater(x, 0.0), x, b.mul(b.expm1(x), alpha))


@_exactly("leaky_relu", node("LeakyRelu", slope="alpha"))
def _leaky_relu(b, x, slope):
    return b.where(b.greater(x, 0.0), x, b.mul(x, slope))


@_exactly("hard_sigmoid", node("HardSigmoid", alpha="alpha", beta="beta"))
def _hard_sigmoid(b, x, alpha, beta):
    return b.clip(b.add(b.mul(x, alpha), beta), low=0.0, high=1.0)


@_exactly("hard_swish", node("HardSwish"))
def _hard_swish(b, x):
    return b.div(b.mul(x, b.clip(b.add(x, 3.0), low=0.0, high=6.0)), 6.0)


@_exactly("gelu", node("Gelu", approximate="approximate"))
def _gelu(b, x, approximate):
    half = b.mul(x, 0.5)
    if approximate == "none":
        return b.mul(half, b.add(b.erf(b.mul(x, sqrt(0.5))), 1.0))
    inner = b.add(x, b.mul(b.mul(b.square(x), x), 0.044715))
    return b.mul(half, b.add(b.tanh(b.mul(inner, sqrt(2 / pi))), 1.0))


@rule("softplus")
def _softplus(b, t, x, beta, threshold):
    if beta == 1 and threshold >= 20 and x.dtype not in (f64,):
        return b.onnx("Softplus", x, out=t)
    return _softplus_of(b, t, x, beta=beta, threshold=threshold)


@wide
def _softplus_of(b, t, x, beta, threshold):
    scaled = b.mul(x, beta)
    found = b.add(b.maximum(scaled, 0.0), b.log1p(b.exp(b.neg(b.abs(scaled)))))
    found = b.div(found, beta)
    return b.where(b.greater(scaled, threshold), x, found)
