"""What signs between values mean: by their types, element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.values import (
    NUMBERS,
    Evaluation,
    combined,
    converted,
    elements,
    type_of,
    unwrap_scalar,
)

Operator = Callable[[Evaluation, Any, Any], Any]
_INT_MOST = 2**63
_QUICK = frozenset((np.float32, np.float64, np.int32, np.int64))


def number(sign: str, a: Any, b: Any) -> int | float:
    """Of two written numbers: integers stay exact as far as 64 bits hold them."""
    integral = isinstance(a, int) and isinstance(b, int)
    if integral and (sign in "+-*" or (b and sign in ("//", "%"))):
        result = _PYTHON[sign](int(a), int(b))
        return result if -_INT_MOST <= result < _INT_MOST else float(result)
    if integral and sign == "**" and b >= 0 and abs(int(a)).bit_length() * b <= 128:
        result = int(a) ** int(b)
        return result if -_INT_MOST <= result < _INT_MOST else float(result)
    return float(_FLOATS[sign](np.float64(a), np.float64(b)))


_PYTHON: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip
_FLOATS: dict[str, Any] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide,
    "//": np.floor_divide, "%": np.remainder, "**": np.power,
}  # fmt: skip
_COMPARED: dict[str, Any] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def arithmetic(sign: str) -> Operator:
    """``a + b`` and so on. Bools count as 0 and 1."""
    apply = _FLOATS[sign]

    def compute(env: Evaluation, a: Any, b: Any) -> Any:
        a, b = elements(env, a), elements(env, b)
        if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
            return number(sign, a, b)
        a, b = combined(env, _bool_as_integer(env, a), _bool_as_integer(env, b))
        if sign == "/":
            a, b = _integer_as_float(env, a), _integer_as_float(env, b)
        elif sign == "**" and _is_integer(a) and _is_integer(b) and np.less(b, 0).any():
            a = np.float64(a) if isinstance(a, NUMBERS) else converted(env, a, np.float64)
        try:
            return apply(a, b)
        except ValueError:
            raise mismatch(a, b) from None

    return compute


def _bool_as_integer(env: Evaluation, value: Any) -> Any:
    """Bools as integers."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, NUMBERS) or value.dtype != np.bool_:
        return value
    return converted(env, value, np.int64)


def _integer_as_float(env: Evaluation, value: Any) -> Any:
    """Integers are divided in f64."""
    if isinstance(value, NUMBERS) or value.dtype.kind in "fV":
        return value
    return converted(env, value, np.float64)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or (not isinstance(value, float) and value.dtype.kind in "iu")


def comparison(sign: str) -> Operator:
    """``a < b`` and so on."""
    apply = _COMPARED[sign]

    def compute(env: Evaluation, a: Any, b: Any) -> Any:
        if type(a) in _QUICK and type(b) in NUMBERS and -65504 <= b <= 65504:
            return apply(a, b)
        if isinstance(a, str | tuple) or isinstance(b, str | tuple):
            return _compare_tuples(sign, a, b)
        with np.errstate(all="ignore"):  # NumPy warns of NaNs of bf16
            a, b = combined(env, elements(env, a), elements(env, b))
            if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape != b.shape:
                try:
                    return apply(a, b)
                except ValueError:
                    raise mismatch(a, b) from None
            return apply(a, b)

    return compute


def _compare_tuples(sign: str, a: Any, b: Any) -> bool:
    """Shapes and texts are equal or not."""
    if sign not in ("==", "!="):
        raise ExpressionError(f"shapes and texts are not ordered by {sign}")
    sides = [tuple(v.tolist()) if isinstance(v, np.ndarray) and v.ndim == 1 else v for v in (a, b)]
    same = type(sides[0]) is type(sides[1]) and sides[0] == sides[1]
    return same if sign == "==" else not same


def mismatch(a: Any, b: Any) -> ExpressionError:
    return ExpressionError(f"{type_of(a)} and {type_of(b)} do not broadcast")


def product(env: Evaluation, a: Any, b: Any) -> Any:
    """``a @ b``, of matrices, of stacks of them, or with a vector; halves in f32."""
    a, b = elements(env, a), elements(env, b)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        raise ExpressionError("@ takes tensors of rank 1 or more", hint="write * for numbers")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ExpressionError(f"{type_of(a)} @ {type_of(b)}: {a.shape[-1]} columns, {inner} rows")
    rows, columns = a.shape[:-1], b.shape[-1:] if b.ndim > 1 else ()
    try:
        stack = np.broadcast_shapes(rows[:-1], b.shape[:-2])
    except ValueError:
        raise mismatch(a, b) from None
    size = int(np.prod((*stack, *rows[-1:], *columns), dtype=object))
    fast = a.dtype.kind in "fV" or b.dtype.kind in "fV"
    if size * inner > env.limits.work // (1 if fast else 64):
        raise ExpressionError(
            f"the product would take {size * inner:,} multiplications",
            hint="take parts: a[:64] @ b[:, :64]",
        )
    env.charge_elements(size, 8)
    a, b = combined_halves(env, a), combined_halves(env, b)
    if a.dtype != b.dtype:
        common = np.float64 if np.float64 in (a.dtype, b.dtype) else np.result_type(a, b)
        a, b = converted(env, a, common), converted(env, b, common)
    return unwrap_scalar(np.matmul(a, b))


def combined_halves(env: Evaluation, array: Any) -> Any:
    """Two-byte floats as f32; bools as integers."""
    if array.dtype == np.bool_:
        return converted(env, array, np.int64)
    return converted(env, array, np.float32) if _is_half(array) else array


def _is_half(array: Any) -> bool:
    return array.dtype.kind in "fV" and array.dtype.itemsize == 2


def negative(env: Evaluation, value: Any) -> Any:
    value = _bool_as_integer(env, elements(env, value))
    return -value


def positive(env: Evaluation, value: Any) -> Any:
    return elements(env, value)


def inverted(env: Evaluation, value: Any) -> Any:
    """``not x``, element by element."""
    value = elements(env, value)
    return not value if isinstance(value, NUMBERS) else np.logical_not(_true(env, value))


def both(env: Evaluation, a: Any, b: Any) -> Any:
    """``a and b``, element by element."""
    return _logical(np.logical_and, env, a, b)


def either(env: Evaluation, a: Any, b: Any) -> Any:
    """``a or b``, element by element."""
    return _logical(np.logical_or, env, a, b)


def _logical(apply: Any, env: Evaluation, a: Any, b: Any) -> Any:
    a, b = _true(env, elements(env, a)), _true(env, elements(env, b))
    a, b = combined(env, a, b)
    try:
        return apply(a, b)
    except ValueError:
        raise mismatch(a, b) from None


def _true(env: Evaluation, value: Any) -> Any:
    """Which elements are true: those that are not 0."""
    if isinstance(value, NUMBERS):
        return bool(value)
    return value if value.dtype == np.bool_ else np.not_equal(value, 0)


def truth(env: Evaluation, value: Any) -> bool:
    """Whether a condition holds: whether any element is true."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    value = elements(env, value)
    return bool(value) if isinstance(value, NUMBERS) else bool(np.not_equal(value, 0).any())


BINARY: dict[str, Operator] = {sign: arithmetic(sign) for sign in _FLOATS}
BINARY |= {"@": product, "and": both, "or": either}
UNARY = {"-": negative, "+": positive, "not": inverted}
COMPARE: dict[str, Operator] = {sign: comparison(sign) for sign in _COMPARED}
