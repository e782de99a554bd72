"""Integers in place of fractions: quantised layers, computed in integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.layers import matmul
from opstep.frontends.onnx.rules.pointwise import dtype_of
from opstep.frontends.onnx.rules.registry import MICROSOFT, rule
from opstep.frontends.onnx.rules.spatial import axes_count, conv, windows_of
from opstep.frontends.onnx.values import number
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.types import DType, f32, i8, i32, u8


def along(b: Body, v: Any, x: Var, axis: int, block: int = 0) -> Any:
    """A scale or a zero point as it meets x: one, one for each part of an axis, or of a block."""
    v = _alone(b, v)
    if not isinstance(v, Var) or v.type.rank == 0:
        return v
    if block:
        axis = axis_of(axis, x.type.rank)
        wide = b.unsqueeze(v, axes=[axis + 1])
        shape = [*v.shape[: axis + 1], block, *v.shape[axis + 1 :]]
        merged = [*v.shape[:axis], v.shape[axis] * block, *v.shape[axis + 1 :]]
        found = b.reshape(b.broadcast(wide, shape=shape), shape=merged)
        if found.shape[axis] != x.shape[axis]:
            found = b.slice(found, starts=[0], ends=[x.shape[axis]], axes=[axis])
        return found
    if v.type.rank > 1:
        return v
    axis = axis_of(axis, x.type.rank)
    return b.reshaped(v, [*[1] * axis, v.shape[0], *[1] * (x.type.rank - axis - 1)])


def rounded(b: Body, x: Var, scale: Any, zero: Any, dtype: DType) -> Var:
    """x / scale + zero, as the nearest integer of that type."""
    y = b.div(x, scale if isinstance(scale, Var) else float(scale))
    return _as_integers(b, y, zero, dtype)


def _as_integers(b: Body, y: Var, zero: Any, dtype: DType) -> Var:
    """The nearest integers, beside a zero point."""
    low, high = limits(dtype)
    y = b.round(y)
    if not _is_zero(zero):
        y = b.add(y, b.to(zero, y.dtype) if isinstance(zero, Var) else float(zero))
    return b.cast(b.clip(y, low=float(low), high=float(high)), dtype=dtype)


def _alone(b: Body, v: Any) -> Any:
    """The number that a row of one has."""
    is_row = isinstance(v, Var) and v.type.rank == 1 and v.shape[0] == 1
    return b.reshape(v, shape=[]) if is_row else v


def _is_zero(zero: Any) -> bool:
    return zero is None or (not isinstance(zero, Var) and zero == 0)


def shifted(b: Body, x: Var, zero: Any) -> Var:
    """x - zero in i32."""
    wide = b.to(x, i32)
    if _is_zero(zero):
        return wide
    return b.sub(wide, b.to(zero, i32) if isinstance(zero, Var) else int(zero))


@rule("QuantizeLinear", same=(1, 2))
@rule("QuantizeLinear", domain=MICROSOFT, same=(1, 2))
def quantize(
    b: Body, x, scale, zero=None, *, axis=1, saturate=1, block_size=0, output_dtype=0, precision=0
):
    dtype = zero.dtype if zero is not None else dtype_of(output_dtype) if output_dtype else u8
    x = b.to(x, f32) if x.dtype.is_half or not x.dtype.is_float else x
    scale = along(b, scale, x, axis, block_size)
    scale = b.to(scale, x.dtype) if isinstance(scale, Var) else scale
    return rounded(b, x, scale, along(b, zero, x, axis, block_size), dtype)


@rule("DequantizeLinear", same=(1, 2))
@rule("DequantizeLinear", domain=MICROSOFT, same=(1, 2))
def dequantize(b: Body, x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0):
    zero = along(b, zero, x, axis, block_size)
    if x.dtype.itemsize < 4 and not isinstance(zero, Var):  # exact in f32
        y = b.to(x, f32)
        y = y if _is_zero(zero) else b.sub(y, float(zero))
    else:
        y = b.to(x if _is_zero(zero) else shifted(b, x, zero), f32)
    dtype = dtype_of(output_dtype) if output_dtype else scale.dtype
    scale = along(b, scale, x, axis, block_size)
    return b.to(b.mul(y, b.to(scale, f32) if isinstance(scale, Var) else float(scale)), dtype)


def _row(b: Body, zero: Var | None) -> Any:
    """Zero points of the rows of the left of a product."""
    zero = _alone(b, zero)
    return b.unsqueeze(zero, axes=[1]) if isinstance(zero, Var) and zero.type.rank == 1 else zero


def _as_bytes(b: Body, *sides: tuple[Var, Any, int]) -> list[Any] | None:
    """Zero points as ops of bytes take them, of operands with at most so many axes of them; None
    where they do not.
    """
    zeros: list[Any] = []
    for x, zero, axes in sides:
        zero = _alone(b, zero)
        apart = isinstance(zero, Var) and (zero.type.rank > axes or zero.dtype is not x.dtype)
        if apart or x.dtype not in (i8, u8):
            return None
        zeros.append(0 if _is_zero(zero) else zero if isinstance(zero, Var) else int(zero))
    return zeros


def _given(*operands: Any) -> list[Any]:
    """Without zeros behind the last operand that is there."""
    found = list(operands)
    while found and (found[-1] is None or _is_zero(found[-1])):
        found.pop()
    return [0 if v is None else v for v in found]


@rule("MatMulInteger", same=(2, 3))
def matmul_integer(b: Body, x, y, x_zero=None, y_zero=None):
    zeros = _as_bytes(b, (x, x_zero, 0), (y, y_zero, min(1, y.type.rank - 1)))
    if zeros is not None:
        return b.matmul_integer(x, y, *_given(*zeros))
    left = shifted(b, x, _row(b, x_zero))
    return matmul(b, left, shifted(b, y, _alone(b, y_zero)))


@rule("QLinearMatMul", same=(1, 2, 4, 5, 6, 7))
def qlinear_matmul(b: Body, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero):
    product = matmul_integer(b, x, y, x_zero, y_zero)
    factor = _factor(b, _scale(b, x_scale, True), _scale(b, y_scale), _scale(b, scale))
    return _requantised(b, product, factor, zero)


def _scale(b: Body, scale: Any, rows: bool = False) -> Any:
    if not isinstance(scale, Var):
        return float(scale)
    scale = b.to(_alone(b, scale), f32)
    return b.unsqueeze(scale, axes=[1]) if rows and scale.type.rank == 1 else scale


def _factor(b: Body, x: Any, y: Any, of: Any = 1.0) -> Any:
    """x * y / of, each step in f32."""
    if not isinstance(y, Var) and y == 1:
        both = x
    elif isinstance(x, Var) or isinstance(y, Var):
        both = b.mul(x, y)
    else:
        both = number(np.float32(x) * np.float32(y))
    if not isinstance(of, Var) and of == 1:
        return both
    if isinstance(both, Var) or isinstance(of, Var):
        return b.div(both, of)
    return number(np.float32(both) / np.float32(of))


def _requantised(b: Body, total: Var, factor: Any, zero: Any) -> Var:
    y = b.mul(b.to(total, f32), factor)
    return _as_integers(b, y, _alone(b, zero), zero.dtype)


def _convolved(b: Body, x, w, x_zero, w_zero, bias, window: dict[str, Any]) -> Var:
    """Padding is the zero point, which is 0 once it is taken off."""
    zeros = _as_bytes(b, (x, x_zero, 0), (w, w_zero, 1))
    if zeros is not None:
        op = getattr(b, f"conv{axes_count(x)}d_integer")
        return op(x, w, *_given(bias, *zeros), **windows_of(x, w, **window))
    inner = shifted(b, x, along(b, x_zero, x, 1))
    return conv(b, inner, shifted(b, w, along(b, w_zero, w, 0)), bias, **window)


@rule("ConvInteger", same=(2, 3))
def conv_integer(b: Body, x, w, x_zero=None, w_zero=None, **window):
    return _convolved(b, x, w, x_zero, w_zero, None, window)


@rule("QLinearConv", same=(1, 2, 4, 5, 6, 7))
def qlinear_conv(b: Body, x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias=None, **window):
    total = _convolved(b, x, w, x_zero, w_zero, bias, window)
    by_channel = along(b, _scale(b, w_scale), total, 1)
    factor = _factor(b, _scale(b, x_scale), by_channel, _scale(b, scale))
    return _requantised(b, total, factor, zero)


def _qlinear(op: str):
    def translated(b: Body, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero=None):
        wide = [dequantize(b, *t) for t in ((x, x_scale, x_zero), (y, y_scale, y_zero))]
        return quantize(b, getattr(b, op)(*wide), scale, zero)

    return translated


SCALES = [k for k in range(1000) if k < 2 or k % 3 != 2]  # behind each value
PAIR = (1, 2, 4, 5, 6, 7)
rule("QLinearAdd", domain=MICROSOFT, same=PAIR)(_qlinear("add"))
rule("QLinearMul", domain=MICROSOFT, same=PAIR)(_qlinear("mul"))


@rule("QLinearSigmoid", domain=MICROSOFT, same=range(1, 5))
def qlinear_sigmoid(b: Body, x, x_scale, x_zero, scale, zero=None):
    return quantize(b, b.sigmoid(dequantize(b, x, x_scale, x_zero)), scale, zero)


@rule("QLinearLeakyRelu", domain=MICROSOFT, same=range(1, 5))
def qlinear_leaky_relu(b: Body, x, x_scale, x_zero, scale, zero=None, *, alpha=0.01):
    return quantize(b, b.leaky_relu(dequantize(b, x, x_scale, x_zero), slope=alpha), scale, zero)


@rule("QLinearSoftmax", domain=MICROSOFT, same=range(1, 5))
def qlinear_softmax(b: Body, x, x_scale, x_zero, scale, zero=None, *, axis=-1, opset=13):
    if opset < 13 and axis_of(axis, x.type.rank) != x.type.rank - 1:
        raise Untranslatable("a softmax over several axes")
    return quantize(b, b.softmax(dequantize(b, x, x_scale, x_zero), axis=axis), scale, zero)


@rule("QLinearGlobalAveragePool", domain=MICROSOFT, same=range(1, 5))
def qlinear_global_average_pool(b: Body, x, x_scale, x_zero, scale, zero, *, channels_last=0):
    if channels_last:
        raise Untranslatable("channels behind the image")
    wide = dequantize(b, x, x_scale, x_zero)
    return quantize(b, b.mean(wide, axes=list(range(2, x.type.rank)), keepdims=True), scale, zero)


@rule("QLinearConcat", domain=MICROSOFT, same=SCALES)
def qlinear_concat(b: Body, scale, zero, *parts, axis):
    wide = [dequantize(b, *parts[k : k + 3]) for k in range(0, len(parts), 3)]
    return quantize(b, b.concat(*wide, axis=axis_of(axis, wide[0].type.rank)), scale, zero)


@rule("MatMulIntegerToFloat", domain=MICROSOFT, same=range(2, 6))
def matmul_integer_to_float(b: Body, x, y, x_scale, y_scale, x_zero=None, y_zero=None, bias=None):
    product = b.to(matmul_integer(b, x, y, x_zero, y_zero), f32)
    scaled = b.mul(product, _factor(b, _scale(b, x_scale), _scale(b, y_scale)))
    return scaled if bias is None else b.add(scaled, bias)


@rule("DynamicQuantizeMatMul", domain=MICROSOFT, same=(2, 3))
def dynamic_quantize_matmul(b: Body, x, y, y_scale, y_zero=None, bias=None):
    quantised, scale, zero = dynamic_quantize(b, x)
    return matmul_integer_to_float(b, quantised, y, scale, y_scale, zero, y_zero, bias)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(b: Body, x):
    """To bytes from the smallest to the largest element, 0 among them."""
    low, high = b.minimum(b.min(x), 0.0), b.maximum(b.max(x), 0.0)
    scale = b.div(b.sub(high, low), 255.0)
    zero = b.cast(b.clip(b.round(b.div(b.neg(low), scale)), low=0.0, high=255.0), dtype=u8)
    return rounded(b, x, scale, zero, u8), scale, zero


@rule("QGemm", domain=MICROSOFT, same=(1, 2, 4, 5, 7, 8))
def qgemm(
    b: Body, x, x_scale, x_zero, w, w_scale, w_zero, bias=None, scale=None, zero=None, *,
    alpha=1.0, transA=0, transB=0,
):  # fmt: skip
    """Biases are integers of the product's scale; without a scale the result is a fraction."""
    sides = {"transpose_a": bool(transA), "transpose_b": bool(transB)}
    zeros = _as_bytes(b, (x, x_zero, 0), (w, w_zero, 1))
    if zeros is not None:
        total = b.matmul_integer(x, w, *_given(*zeros), **sides)
    else:
        left = shifted(b, x, along(b, x_zero, x, 0))
        right = shifted(b, w, along(b, w_zero, w, 0 if transB else 1))
        total = b.matmul(left, right, **sides)
    total = total if bias is None else b.add(total, bias)
    factor = _factor(b, _scale(b, x_scale), _scale(b, w_scale))
    factor = factor if alpha == 1 else _factor(b, factor, alpha)
    if scale is None or zero is None:
        return b.mul(b.to(total, f32), factor)
    return _requantised(b, total, _factor(b, factor, 1.0, _scale(b, scale)), zero)
