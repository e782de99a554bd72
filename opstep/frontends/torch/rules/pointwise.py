"""Element by element: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule
from opstep.runtime.ir.graph import Assert, Name
from opstep.runtime.ir.types import DType, TensorType, boolean, f32, i64, promote

# By the name of ours, ATen's names. Ops of one operand in the result's element type:
UNARY = """abs:abs,absolute acos:acos,arccos acosh asin:asin,arcsin asinh atan:atan,arctan atanh
    ceil cos cosh digamma erf erfc erfinv exp exp2 expm1:expm1,special_expm1 floor lgamma log
    log10 log1p log2 mish neg:neg,negative reciprocal relu rsqrt sigmoid silu sin sinh sqrt square
    tan tanh trunc:trunc,fix hard_sigmoid:hardsigmoid hard_swish:hardswish identity:positive"""
BINARY = """atan2 bitwise_and:bitwise_and,__and__ bitwise_or:bitwise_or,__or__
    bitwise_xor:bitwise_xor,__xor__ copysign div:div,true_divide,divide fmod hypot logaddexp maximum
    minimum mul:mul,multiply pow xlogy floor_div:floor_divide rem:remainder
    shift_left:bitwise_left_shift,__lshift__ shift_right:bitwise_right_shift,__rshift__"""
COMPARISONS = "equal:eq not_equal:ne less:lt less_equal:le greater:gt greater_equal:ge"
OVERLOADS = "Tensor Scalar Scalar_Tensor default Scalar_Self Scalar_Other Tensor_Tensor"


def _register(table: str, overloads: str, made: Callable[[str], Callable[..., Any]]) -> None:
    for entry in table.split():
        ours, _, names = entry.partition(":")
        rule(*(f"{n}.{o}" for n in (names or ours).split(",") for o in overloads.split()))(
            made(ours)
        )


_register(UNARY, "default", lambda op: lambda b, x: b.unary(op, x))
_register(BINARY, OVERLOADS, lambda op: lambda b, x, other: b.binary(op, x, other))
_register(
    COMPARISONS, "Tensor Scalar",
    lambda op: lambda b, x, other: b.binary(op, x, other, _common(x, other)),
)  # fmt: skip
_register(
    "logical_and logical_or logical_xor logical_not bitwise_not", "default",
    lambda op: lambda b, *operands: getattr(b, op)(*operands),
)  # fmt: skip


@rule("pow.Tensor_Scalar")
def power(b: Body, x, exponent):
    """As PyTorch computes roots: of -inf they are NaN."""
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)
    return b.unary(root, x) if root else b.binary("pow", x, exponent)


def _common(x: Any, y: Any) -> DType:
    """The element type in which PyTorch compares: a scalar adapts, unless its kind is higher."""
    if not isinstance(y, Var):
        return _with_number(x.dtype, y)
    if not isinstance(x, Var):
        return _with_number(y.dtype, x)
    if bool(x.type.rank) != bool(y.type.rank):
        whole, scalar = (x, y) if x.type.rank else (y, x)
        if _order(scalar.dtype) <= _order(whole.dtype):
            return whole.dtype
    return promote(x.dtype, y.dtype)


def _with_number(dtype: DType, number: Any) -> DType:
    kind = f32 if isinstance(number, float) else boolean if isinstance(number, bool) else i64
    return dtype if _order(kind) <= _order(dtype) else kind


def _order(dtype: DType) -> int:
    return {"b": 0, "i": 1, "u": 1, "f": 2}[dtype.kind]


@rule("polygamma.default", "special_polygamma.default")
def polygamma(b: Body, order, x):
    if order > 1:
        raise Untranslatable(f"polygamma of order {order}")
    return b.unary("trigamma" if order else "digamma", x)


def _times(b: Body, x, alpha):
    if alpha == 1:
        return x
    if b.out.dtype is boolean:
        return x if alpha else 0
    return b.binary("mul", x, alpha) if isinstance(x, Var) else x * alpha


@rule("add.Tensor", "add.Scalar")
def add(b: Body, x, other, *, alpha=1):
    other = _times(b, other, alpha)
    if not isinstance(other, Var) and other == 0 and x.type == b.out:
        return x  # as in `arange(n) + past_length`
    return b.binary("add", x, other)


@rule("sub.Tensor", "sub.Scalar")
def sub(b: Body, x, other, *, alpha=1):
    return b.binary("sub", x, _times(b, other, alpha))


@rule("rsub.Tensor", "rsub.Scalar")
def rsub(b: Body, x, other, *, alpha=1):
    return b.binary("sub", other, _times(b, x, alpha))


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Body, x, other, *, rounding_mode=None):
    if rounding_mode == "floor":
        return b.binary("floor_div", x, other)
    if rounding_mode is None or b.out.dtype.is_float:
        quotient = b.binary("div", x, other)
        return quotient if rounding_mode is None else b.trunc(quotient)
    x, other = b.to(x, b.out.dtype), b.to(b.number(other), b.out.dtype)
    return b.floor_div(b.sub(x, b.fmod(x, other)), other)  # what is left over is taken off first


@rule("clamp.default", "clamp.Tensor", "clip.default")
def clamp(b: Body, x, low=None, high=None, **_):
    limits = {k: v for k, v in (("low", low), ("high", high)) if v is not None}
    x = b.to(x, b.out.dtype)
    if all(isinstance(v, int | float) for v in limits.values()):
        return b.clip(x, **limits) if limits else x
    for k, bound in limits.items():  # tensors and sizes
        x = b.binary("maximum" if k == "low" else "minimum", x, bound)
    return x


@rule("hardtanh.default")
def hardtanh(b: Body, x, low=-1, high=1):
    return clamp(b, x, b.scalar(low, x.dtype), b.scalar(high, x.dtype))


RULES["relu6.default"] = lambda b, x: clamp(b, x, 0, 6)
RULES["clamp_min.default"] = lambda b, x, low: clamp(b, x, low)
RULES["clamp_max.default"] = lambda b, x, high: clamp(b, x, None, high)


@rule("sign.default", "sgn.default")
def sign(b: Body, x):
    if x.dtype is boolean:
        return b.identity(x)
    if not x.dtype.is_float:
        return b.unary("sign", x)
    return b.where(b.greater(b.abs(x), 0.0), b.sign(x), 0.0)  # ours keeps NaN and -0


@rule("signbit.default")
def signbit(b: Body, x):
    if x.dtype.is_float:  # that of -0, too
        x = b.copysign(1.0, x)
    return b.filled(b.out, 0) if x.dtype is boolean else b.less(x, 0)


def _passing_numbers(op: str, wins: str):
    """The larger or smaller, the first of equals; a number where the other is NaN."""

    def translated(b: Body, x, y):
        if not b.out.dtype.is_float:
            return b.binary(op, x, y)
        x, y = b.to(x, b.out.dtype), b.to(y, b.out.dtype)
        return b.where(b.logical_or(getattr(b, wins)(x, y), b.isnan(y)), x, y)

    return translated


RULES["fmax.default"] = _passing_numbers("maximum", "greater_equal")
RULES["fmin.default"] = _passing_numbers("minimum", "less_equal")


@rule("round.default", "round.decimals")
def round_(b: Body, x, *, decimals=0):
    if decimals == 0:
        return b.round(x)
    return b.div(b.round(b.mul(x, 10.0**decimals)), 10.0**decimals)


def _classified(op: str):
    return lambda b, x: (
        b.filled(b.out, op == "isfinite") if x.dtype is boolean else getattr(b, op)(x)
    )


_register("isnan isinf isfinite", "default", _classified)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(b: Body, cond, x, y):
    dtype = b.out.dtype
    cond = b.to(cond, boolean)
    x, y = (b.to(b.rounded(b.number(v), dtype), dtype) for v in (x, y))
    if not isinstance(x, Var) and not isinstance(y, Var) and dtype is not f32:
        x = b.filled(TensorType(dtype, ()), x)  # numbers alone would be f32 or i32
    return b.where(cond, x, y)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Body, x, mask, value):
    return b.where(mask, b.scalar(value, x.dtype), x)


@rule("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default")
def to_copy(b: Body, x, *_, **__):
    return b.to(x, b.out.dtype) if x.dtype is not b.out.dtype else x


@rule("prims::convert_element_type.default")
def convert_element_type(b: Body, x, dtype):
    return b.to(x, dtype_of(dtype))


@rule(
    "clone.default", "alias.default", "detach.default", "contiguous.default", "lift_fresh.default",
    "lift_fresh_copy.default", "detach_copy.default", "alias_copy.default", "_conj.default",
    "resolve_conj.default", "resolve_neg.default",
)  # fmt: skip
def same(b: Body, x, *_, **__):
    return x


@rule("copy.default")
def copy(b: Body, x, source, *_):
    return b.broadcasted(b.to(source, x.dtype), x.shape)


@rule("gelu.default")
def gelu(b: Body, x, *, approximate="none"):
    return b.gelu(x, approximate=approximate)


@rule("leaky_relu.default")
def leaky_relu(b: Body, x, slope=0.01):
    return b.leaky_relu(x, slope=float(slope))


@rule("elu.default")
def elu(b: Body, x, alpha=1.0, scale=1.0, input_scale=1.0):
    """The scale of the input is for what is not above 0 only."""
    if input_scale == 1:
        y = b.elu(x, alpha=float(alpha))
    else:
        above = b.greater(x, 0.0)
        below = b.expm1(b.mul(b.where(above, 0.0, x), float(input_scale)))
        y = b.where(above, x, b.mul(below, float(alpha)))
    return b.mul(y, float(scale)) if scale != 1 else y


@rule("softplus.default")
def softplus(b: Body, x, beta=1, threshold=20):
    return b.softplus(x, beta=float(beta), threshold=float(threshold))


@rule("celu.default")
def celu(b: Body, x, alpha=1.0):
    """PyTorch's own definition has NaN for the derivative where e**x overflows."""
    return elu(b, x, alpha, 1.0, 1.0 / alpha)


@rule("prelu.default", "_prelu_kernel.default")
def prelu(b: Body, x, slope):
    if slope.type.rank == 1 and x.type.rank > 2 and slope.shape[0] != 1:
        slope = b.reshape(slope, shape=[slope.shape[0], *[1] * (x.type.rank - 2)])
    return b.prelu(x, slope)


@rule("prims::fma.default")
def fma(b: Body, x, y, z):
    return b.binary("add", b.binary("mul", x, y), z)


@rule("_assert_async.msg", "_assert_async.default")
def assertion(b: Body, condition, message=""):
    condition = b.reshaped(b.to(condition, boolean), ())
    b.statements.append(Assert(Name(condition.name), message, b.at))
