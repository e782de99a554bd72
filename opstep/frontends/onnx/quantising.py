"""What quantised nodes compute before they round, in f64: the op of fractions on dequantised
operands, in steps of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, helper

STEP = 2.0**-20  # how far from a tie, of all that the type holds, an f32 may be off

Arrays = Mapping[str, np.ndarray]
Alone = Callable[[NodeProto, Arrays], np.ndarray]  # runs a node in f64

# The op without its quantisation, how many operands it has, where the scale of the result stands,
# and axes that rows of scales lie along.
QLINEAR = {
    "QLinearConv": ("Conv", 2, 6, (1, 0)),
    "QLinearMatMul": ("MatMul", 2, 6, (-2, -1)),
    "QGemm": ("Gemm", 2, 7, (0, 1)),
    "QLinearAdd": ("Add", 2, 6, (0, 0)),
    "QLinearMul": ("Mul", 2, 6, (0, 0)),
    "QLinearSigmoid": ("Sigmoid", 1, 3, (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", 1, 3, (0,)),
    "QLinearSoftmax": ("Softmax", 1, 3, (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1, 3, (0,)),
}
BIAS = {"QLinearConv": 8, "QGemm": 6}  # where biases stand, which are in steps of the product


def unrounded(
    node: NodeProto, operands: Arrays, results: Arrays, got: np.ndarray, alone: Alone
) -> np.ndarray | None:
    """The numbers that `got` has rounded; None where the node quantises nothing."""
    values = [operands.get(n) for n in node.input]
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "QuantizeLinear":
        x, scale, zero = (*values, None)[:3]
        how = attrs.get("axis", 1), attrs.get("block_size", 0)
        return _wide(x) / along(scale, x, *how) + along(zero, x, *how)
    if node.op_type == "DynamicQuantizeLinear":
        _, scale, zero = (results[n] for n in node.output)
        x = _wide(values[0])
        if got is zero:
            return np.asarray(-min(float(x.min(initial=0.0)), 0.0) / _wide(scale))
        return x / _wide(scale) + _wide(zero)
    if node.op_type == "QLinearConcat":
        triples = [values[k : k + 3] for k in range(2, len(values), 3)]
        parts = [dequantised(x, scale, zero) for x, scale, zero in triples]
        return np.concatenate(parts, attrs["axis"]) / _wide(values[0]) + _wide(values[1])
    if node.op_type not in QLINEAR:
        return None
    inner, count, place, axes = QLINEAR[node.op_type]
    if attrs.get("transB"):
        axes = (0, 0)
    scales = [values[3 * k + 1] for k in range(count)]
    names = [f"x{k}" for k in range(count)]
    given = {n: dequantised(*values[3 * k : 3 * k + 3], axis=axes[k]) for k, n in enumerate(names)}
    attrs = {k: v for k, v in attrs.items() if k not in ("channels_last", "opset")}
    y = alone(helper.make_node(inner, names, ["y"], **attrs), given)
    bias = values[BIAS[node.op_type]] if BIAS.get(node.op_type, 99) < len(values) else None
    if bias is not None:
        y = y + along(_wide(bias) * _wide(scales[0]) * _wide(scales[1]), y, 1)
    zero = values[place + 1] if place + 1 < len(values) else None
    return y / _wide(values[place]) + (0.0 if zero is None else _wide(zero))


def dequantised(
    x: Any, scale: Any, zero: Any = None, axis: int = 0, block: int = 0
) -> np.ndarray:  # fmt: skip
    return (_wide(x) - along(zero, x, axis, block)) * along(scale, x, axis, block)


def along(v: Any, x: Any, axis: int, block: int = 0) -> np.ndarray:
    """Scales or zero points so that they go with x: those of rows lie along an axis, or are of so
    many elements of it.
    """
    wide = _wide(0.0 if v is None else v)
    if wide.size == 1:
        return wide.reshape(())
    if block:
        return np.repeat(wide, block, axis).take(range(x.shape[axis]), axis)
    if wide.ndim > 1:
        return wide
    shape = [1] * x.ndim
    shape[axis] = wide.size
    return wide.reshape(shape)


def _wide(v: Any) -> np.ndarray:
    return np.asarray(v).astype(np.float64)
