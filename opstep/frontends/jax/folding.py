"""What becomes of numbers that are known at import: only what decides places and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opstep.frontends.jax.values import Known, Spread, Value
from opstep.runtime.ir.types import TensorType

# These give elements of the first operand, and no others.
PARTS = {"slice", "dynamic_slice", "rev", "transpose"}
MOVED = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient"}
FOLDS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "max": np.maximum,
    "min": np.minimum, "div": np.divide, "sqrt": np.sqrt, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert, "square": np.square,
}  # fmt: skip
OF_BITS = {"add", "sub", "mul", "and", "or", "not", "eq", "ne", "select_n"}
EXACT = {"div", "sqrt"}  # of floats alone


def folded(
    primitive: str, values: Sequence[Value], types: Sequence[TensorType],
    params: Mapping[str, Any], unsigned: bool,
) -> list[Value] | None:  # fmt: skip
    """The results of an equation; None where it runs with the program. `unsigned`: whether operands
    are unsigned integers, held as signed ones.
    """
    if unsigned and primitive not in MOVED | PARTS | OF_BITS:
        return None
    first = values[0] if values else None
    if primitive in PARTS and isinstance(first, Known) and first.is_uniform and not first.is_weight:
        return [Known(first.elements, types[0].shape)]
    if not values or not all(isinstance(v, Known) and not v.is_weight for v in values):
        return _moved_spread(primitive, values, types)
    arrays = [v.elements for v in values if isinstance(v, Known)]
    if not all(v.is_uniform for v in values if isinstance(v, Known)):
        return None
    (type,) = types if len(types) == 1 else (None,)
    if type is None:
        return None
    if primitive in MOVED:
        found: Any = arrays[0]
    elif primitive == "convert_element_type":
        found = arrays[0]
        is_cut = found.dtype.kind == "f" or found.dtype.itemsize > type.dtype.itemsize or found < 0
        if type.dtype.is_integer and found.dtype != type.dtype.numpy and is_cut:
            return None
    elif primitive == "integer_pow" and arrays[0].dtype.kind == "f":
        found = arrays[0] ** arrays[0].dtype.type(params["y"])
    elif primitive == "select_n":
        found = arrays[1 + int(arrays[0])]
    elif primitive in FOLDS and not (primitive in EXACT and arrays[0].dtype.kind != "f"):
        with np.errstate(all="ignore"):
            found = FOLDS[primitive](*arrays)
    else:
        return None
    return [Known(np.asarray(found).astype(type.dtype.numpy), type.shape)]


def _moved_spread(
    primitive: str, values: Sequence[Value], types: Sequence[TensorType]
) -> list[Value] | None:  # fmt: skip
    """Of what is broadcast, other types of the same shape."""
    if primitive in ("copy", "copy_p") and isinstance(values[0], Spread):
        return [values[0]]
    return None
