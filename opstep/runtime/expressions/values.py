"""Values while an expression is evaluated, and what keeps them within limits.

Numbers that are written are Python's, and take the dtype of what they are combined with. All other
elements are NumPy's, so that each operation is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from time import monotonic
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError, Limits
from opstep.runtime.expressions.tree import Tree
from opstep.runtime.ir.types import DTYPES, DType, TensorType, dtype_of, promote
from opstep.runtime.statistics import Statistics


class ValueTable:
    """`columns` name what stands in `rows`; `text` says all in a line; `fields` can be asked for by
    name: ``stats(x).std``.
    """

    __slots__ = ("columns", "fields", "kind", "rows", "text")

    def __init__(
        self,
        kind: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        text: str,
        fields: Mapping[str, Any],
    ):
        self.kind = kind
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]
        self.text = text
        self.fields = dict(fields)

    def __repr__(self) -> str:
        return f"<{self.kind}: {self.text}>"


SMALL = 1 << 14  # elements: so many are looked at on the host, of more the device takes statistics
FREE = 1 << 16  # elements of a result that is too small to be counted

NUMBERS = (int, float, bool)
_PLAIN = frozenset(
    (np.ndarray, int, float, bool, np.bool_, *(np.dtype(c).type for c in "bhilBefd"))
)
_HANDLES: dict[type, bool] = {}  # whether values of a type are handles
_DTYPES: dict[np.dtype, DType] = {}
_GREATEST = {("f", 2): 65504.0, ("f", 4): 3.4028234663852886e38, ("V", 2): 3.3895313892515355e38}
_INF = float("inf")


class Evaluation:
    """One evaluation: where it takes place, and what is left of its limits. `at`: the part of the
    tree that is computed, which errors without a column are about.
    """

    __slots__ = ("at", "deadline", "left", "limits", "scope")

    def __init__(self, scope: Any, limits: Limits, at: Tree):
        self.scope = scope
        self.at = at
        self.limits = limits
        self.left = limits.bytes
        self.deadline = monotonic() + limits.seconds

    def charge(self, nbytes: int) -> None:
        """So many bytes are about to be copied or computed."""
        self.left -= nbytes
        if self.left < 0:
            raise ExpressionError(
                f"more than {self.limits.bytes:,} bytes would be copied or computed",
                hint="look at a part: x[0], or at its statistics: stats(x)",
            )
        if monotonic() > self.deadline:
            raise ExpressionError(f"not done after {self.limits.seconds:g} seconds")

    def charge_elements(self, count: int, nbytes: int) -> None:
        """So many elements of so many bytes are about to be computed; a few are not counted."""
        if count > FREE:
            self.charge(count * nbytes)

    def within(self, scope: Any, code: Callable[[Evaluation], Any]) -> Any:
        """What an expression is in another scope."""
        here, at = self.scope, self.at
        self.charge(0)
        self.scope = scope
        try:
            found = code(self)
        finally:
            self.scope = here
        self.at = at
        return found


def is_handle(value: Any) -> bool:
    """Whether a value is a tensor of which nothing was copied yet."""
    kind = type(value)
    found = _HANDLES.get(kind)
    if found is None:
        others = np.ndarray | np.generic | bool | int | float | ValueTable | str | tuple
        found = _HANDLES[kind] = not issubclass(kind, others)
    return found


def elements(env: Evaluation, value: Any) -> Any:
    """A value as what NumPy computes with: an array, an element or a number."""
    if type(value) in _PLAIN:
        return value
    if is_handle(value):
        t = value.type
        if t.size > FREE:
            env.charge(t.nbytes)
        array = value.array()
        return array if array.ndim else array[()]
    if isinstance(value, np.generic):
        return value
    if isinstance(value, tuple):
        return np.array(value, np.int64)
    what = "a table" if isinstance(value, ValueTable) else f'the text "{value[:40]}"'
    hint = "take a field of it: stats(x).mean" if isinstance(value, ValueTable) else ""
    raise ExpressionError(f"nothing can be computed with {what}", hint=hint)


def dtype_named(array: Any) -> DType:
    """The element type of the language that an array has."""
    found = _DTYPES.get(array.dtype)
    if found is None:
        found = _DTYPES[array.dtype] = dtype_of(array.dtype)
    return found


def type_of(value: Any) -> TensorType:
    """Of any value that has one: handles, arrays, elements, numbers."""
    if isinstance(value, bool):
        return TensorType(DTYPES["bool"], ())
    if isinstance(value, int | float):
        return TensorType(DTYPES["i64" if isinstance(value, int) else "f64"], ())
    if isinstance(value, np.ndarray | np.generic):
        return TensorType(dtype_named(value), value.shape)
    if isinstance(value, tuple):
        return TensorType(DTYPES["i64"], (len(value),))
    if isinstance(value, ValueTable | str):
        raise ExpressionError(
            "a table has no type" if isinstance(value, ValueTable) else "no tensor"
        )
    return value.type


def converted(env: Evaluation, array: Any, to: Any) -> Any:
    """In another NumPy dtype."""
    target = np.dtype(to)
    if array.dtype == target:
        return array
    env.charge_elements(array.size, target.itemsize)
    return array.astype(target)


def combined(env: Evaluation, a: Any, b: Any, factor: int = 1) -> tuple[Any, Any]:
    """Two operands in their common dtype, once it is known that their result is not too large:
    `factor` times the bytes of one element for each.
    """
    plain_a, plain_b = isinstance(a, NUMBERS), isinstance(b, NUMBERS)
    if plain_a and plain_b:
        return a, b
    if not plain_a and not plain_b:
        if a.ndim and b.ndim:
            bound(env, a, b, factor)
        if a.dtype != b.dtype:
            common = promote(dtype_named(a), dtype_named(b)).numpy
            return converted(env, a, common), converted(env, b, common)
        return a, b
    if plain_a:
        b, a = combined(env, b, a, factor)
        return a, b
    env.charge_elements(a.size, 8 * factor)
    return a, like(a, b)


def like(array: Any, number: Any) -> Any:
    """A written number as it is combined with an array: in its dtype where that holds it."""
    dtype = array.dtype
    kind = dtype.kind
    if kind in "fV":
        most = _GREATEST.get((kind, dtype.itemsize))
        if most is not None and not -most <= number <= most and abs(number) != _INF:
            return np.float64(number) if number == number else number
        return dtype.type(number) if kind == "V" else number  # bf16 with a float would be f32
    if kind in "iu" and not isinstance(number, float):
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            return np.int64(number) if -(2**63) <= number < 2**63 else float(number)
    return number


def bound(env: Evaluation, a: Any, b: Any, factor: int = 1) -> None:
    """Refuses two arrays whose broadcast result would be too large."""
    if a.size * b.size <= FREE:
        return
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ExpressionError(f"{type_of(a)} and {type_of(b)} do not broadcast") from None
    size = prod(shape)
    env.charge_elements(size, max(a.dtype.itemsize, b.dtype.itemsize) * factor)


def unwrap_scalar(value: Any) -> Any:
    """An array of rank 0 is its element."""
    return value[()] if type(value) is np.ndarray and value.ndim == 0 else value


def as_f64(env: Evaluation, array: Any) -> Any:
    """In f64, for what is computed over many elements."""
    return converted(env, np.asarray(array), np.float64)


def array_statistics(env: Evaluation, value: Any) -> Statistics:
    """Statistics of an array, an element or a number, by the kernel that takes them of tensors.
    Floats that hold the payload of `fill=nan` count as never written.
    """
    from opstep.runtime.device.cpu.device import statistics_of

    array = np.asarray(value)
    env.charge(array.nbytes)
    return statistics_of(array, filled=True)


def as_float(env: Evaluation, array: Any) -> Any:
    """For a function of real numbers: floats as they are, all else in f64."""
    if isinstance(array, NUMBERS):
        return float(array)
    return array if array.dtype.kind in "fV" else converted(env, array, np.float64)


def as_integer(value: Any, what: str) -> int:
    """A value that has to be an integer."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iu":
            return int(value.reshape(())[()])
        raise ExpressionError(f"{what} is an integer")
    return int(value)
