"""Shape arithmetic: what becomes of values that are known at import.

Only what decides shapes and attributes is computed here: small values, mostly integers. Elements
may be dims with symbols; where those leave a question open, the node runs with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opstep.frontends.onnx.types import DTYPES
from opstep.frontends.onnx.values import Known, known
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.types import DType, i64

PARTS = "parts"  # how many results a node has
MOST = 4096  # elements that are computed here
Arrays = list[Any]
Fold = Callable[[Arrays, Mapping[str, Any]], Any]


class Open(Exception):
    """Symbols leave the answer open."""


def folded(op: str, inputs: list[Known | None], attrs: Mapping[str, Any]) -> list[Known] | None:
    """The results of a node; None where it is not computed here."""
    rule = FOLDS.get(op)
    if rule is None or any(v is not None and (v.is_weight or v.size > MOST) for v in inputs):
        return None
    arrays = [None if v is None else v.elements for v in inputs]
    is_symbolic = any(a is not None and a.dtype == object for a in arrays)
    if is_symbolic and op not in SYMBOLIC:
        return None
    try:
        with np.errstate(all="ignore"):
            found = rule(arrays, attrs)
    except Open:
        return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # its rule says what is wrong
    if sum(np.size(a) for a in found) > MOST:
        return None
    dtype = _dtype(op, inputs, attrs)
    return [known(a, dtype if np.asarray(a).dtype == object else None) for a in found]


def _dtype(op: str, inputs: list[Known | None], attrs: Mapping[str, Any]) -> DType:
    """Of results that are dims."""
    if op == "Cast":
        return DTYPES[attrs["to"]]
    kept = next((v for v in inputs if v is not None and v.is_symbolic), None)
    return i64 if kept is None else kept.dtype


def _element(function: Callable[..., Any]) -> Fold:
    """A function of elements, as NumPy has it; of dims one by one."""

    def fold(arrays: Arrays, _: Mapping[str, Any]) -> Any:
        if any(a.dtype == object for a in arrays):
            return [np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)]
        first = arrays[0].dtype
        found = function(*arrays)
        return [np.asarray(found, first) if np.asarray(found).dtype != bool else found]

    return fold


def _divided(a: Any, b: Any) -> Any:
    """ONNX's division rounds to zero; dims are never negative."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return a // b
    if np.asarray(a).dtype.kind in "iu":
        return _whole(a, b)
    return np.divide(a, b)


def _whole(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if (b == 0).any():
        raise Open
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _compared(test: Callable[[Any], bool], plain: Callable[..., Any]) -> Fold:
    """Comparisons: of dims where their difference is a number, or its sign is known."""

    def one(a: Any, b: Any) -> bool:
        difference = a - b
        if isinstance(difference, Expr):
            sign = _sign(difference)
            if sign == 0:
                raise Open
            return test(sign)
        return test(difference)

    def fold(arrays: Arrays, _: Mapping[str, Any]) -> Any:
        if any(a.dtype == object for a in arrays):
            return [np.asarray(np.frompyfunc(one, 2, 1)(*arrays)).astype(bool)]
        return [plain(*arrays)]

    return fold


def _sign(difference: Expr) -> int:
    """Of what is never 0: sizes are not negative. 0 where that is not enough to know."""
    constant = difference.terms.get((), 0)
    others = [c for monomial, c in difference.terms.items() if monomial]
    if constant > 0 and all(c > 0 for c in others):
        return 1
    return -1 if constant < 0 and all(c < 0 for c in others) else 0


def _axes(arrays: Arrays, attrs: Mapping[str, Any], place: int = 1) -> tuple[int, ...] | None:
    if len(arrays) > place and arrays[place] is not None:
        return tuple(int(a) for a in arrays[place])
    found = attrs.get("axes")
    return None if found is None else tuple(found)


def _unsqueeze(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    axes = _axes(arrays, attrs)
    assert axes is not None
    return [np.expand_dims(arrays[0], axes)]


def _squeeze(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    return [np.squeeze(arrays[0], _axes(arrays, attrs))]


def _gather(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    if arrays[1].dtype == object:
        raise Open
    return [np.asarray(np.take(arrays[0], arrays[1].astype(np.int64), attrs.get("axis", 0)))]


def _slice(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    x = arrays[0]
    starts: Any
    ends: Any
    axes: Any
    steps: Any
    if len(arrays) == 1:  # before opset 10
        starts, ends = attrs["starts"], attrs["ends"]
        axes, steps = attrs.get("axes"), None
    else:
        starts, ends, axes, steps = (*arrays[1:], None, None)[:4]
        if any(a is not None and a.dtype == object for a in arrays[1:]):
            raise Open
    chosen = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size, start, end = x.shape[axis], int(start), int(end)
        if step < 0 and end < -size:
            end = None
        chosen[int(axis)] = slice(start, end, int(step))
    return [x[tuple(chosen)]]


def _concat(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    return [np.concatenate(arrays, attrs["axis"])]


def _reshape(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    shape = arrays[1] if len(arrays) > 1 else np.asarray(attrs["shape"])
    if shape.dtype == object:
        raise Open
    sizes = [int(d) for d in shape]
    if not attrs.get("allowzero"):
        sizes = [arrays[0].shape[k] if d == 0 else d for k, d in enumerate(sizes)]
    return [arrays[0].reshape(sizes)]


def _cast(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    dtype = DTYPES.get(attrs["to"])
    if dtype is None or (arrays[0].dtype == object and not dtype.is_integer):
        raise Open
    return [arrays[0] if arrays[0].dtype == object else arrays[0].astype(dtype.numpy)]


def _filled(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    value = attrs.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    if arrays[0].dtype == object:
        raise Open
    shape = tuple(int(d) for d in arrays[0])
    if np.prod(shape, dtype=object) > MOST:
        raise Open
    return [np.full(shape, value.reshape(-1)[0], value.dtype)]


def _range(arrays: Arrays, _: Mapping[str, Any]) -> Any:
    if any(a.dtype == object for a in arrays):
        raise Open
    start, limit, delta = (a.reshape(-1)[0] for a in arrays)
    if delta == 0 or abs((limit - start) / delta) > MOST:
        raise Open
    return [np.arange(start, limit, delta, dtype=arrays[0].dtype)]


def _where(arrays: Arrays, _: Mapping[str, Any]) -> Any:
    return [np.where(*arrays)]


def _expand(arrays: Arrays, _: Mapping[str, Any]) -> Any:
    if arrays[1].dtype == object:
        raise Open
    shape = np.broadcast_shapes(arrays[0].shape, tuple(int(d) for d in arrays[1]))
    if np.prod(shape, dtype=object) > MOST:
        raise Open
    return [np.broadcast_to(arrays[0], shape)]


def _reduced(function: Callable[..., Any]) -> Fold:
    def fold(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
        axes, keep = _axes(arrays, attrs), bool(attrs.get("keepdims", 1))
        if axes == () and attrs.get("noop_with_empty_axes"):
            return [arrays[0]]
        found = function(arrays[0], axis=axes or None, keepdims=keep)
        return [np.asarray(found, arrays[0].dtype)]

    return fold


def _split(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    sizes = arrays[1] if len(arrays) > 1 and arrays[1] is not None else attrs.get("split")
    if sizes is None:
        return np.array_split(arrays[0], attrs[PARTS], attrs.get("axis", 0))
    if np.asarray(sizes).dtype == object:
        raise Open
    return np.split(arrays[0], np.cumsum(sizes)[:-1], attrs.get("axis", 0))


def _modulo(arrays: Arrays, attrs: Mapping[str, Any]) -> Any:
    a, b = arrays
    if not attrs.get("fmod") and (b != 0).all():
        return [np.asarray(a % b, a.dtype)]
    raise Open


FOLDS: dict[str, Fold] = {
    "Add": _element(lambda a, b: a + b), "Sub": _element(lambda a, b: a - b),
    "Mul": _element(lambda a, b: a * b), "Div": _element(_divided),
    "Neg": _element(lambda a: -a), "Abs": _element(np.abs), "Sqrt": _element(np.sqrt),
    "Pow": _element(np.power), "Floor": _element(np.floor), "Ceil": _element(np.ceil),
    "Max": lambda a, _: [_among(np.maximum, a)], "Min": lambda a, _: [_among(np.minimum, a)],
    "Not": lambda a, _: [~a[0]], "And": lambda a, _: [a[0] & a[1]],
    "Or": lambda a, _: [a[0] | a[1]], "Mod": _modulo,
    "Equal": _compared(lambda d: d == 0, np.equal), "Less": _compared(lambda d: d < 0, np.less),
    "LessOrEqual": _compared(lambda d: d <= 0, np.less_equal),
    "Greater": _compared(lambda d: d > 0, np.greater),
    "GreaterOrEqual": _compared(lambda d: d >= 0, np.greater_equal),
    "Identity": lambda a, _: [a[0]], "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Gather": _gather, "Slice": _slice, "Concat": _concat, "Reshape": _reshape, "Cast": _cast,
    "Transpose": lambda a, t: [np.transpose(a[0], t.get("perm"))],
    "ConstantOfShape": _filled, "Range": _range, "Where": _where, "Expand": _expand,
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum), "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min), "Split": _split,
    "Relu": lambda a, _: [np.maximum(a[0], 0)],
    "NonZero": lambda a, _: [np.array(np.nonzero(a[0]))],
    "Shape": lambda a, t: [np.array(a[0].shape, np.int64)[t.get("start") : t.get("end")]],
    "Size": lambda a, _: [np.array(a[0].size)],
}  # fmt: skip
SYMBOLIC = {
    "Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "Identity", "Unsqueeze", "Squeeze", "Gather", "Slice", "Concat", "Reshape", "Cast", "Where",
    "ReduceProd", "ReduceSum", "Split", "Shape", "Size", "Mod",
}  # fmt: skip


def _among(function: Any, arrays: Arrays) -> Any:
    found = arrays[0]
    for a in arrays[1:]:
        found = function(found, a)
    return found
