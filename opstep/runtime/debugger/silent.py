"""What arithmetic loses without a NaN: integers that wrap, products that round to 0, indices that
name nothing. Told by computing results again in wider numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.types import dtype_of
from opstep.runtime.plan.plan import Step

COMPUTED = 1 << 22  # elements of operands up to which the oracle is asked
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}


class Lost(NamedTuple):
    """`kind`: overflow, underflow or index; `mask`: elements of the result."""

    kind: str
    text: str
    mask: np.ndarray


def lost(
    step: Step, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray], k: int,
    kinds: Collection[str],
) -> list[Lost]:  # fmt: skip
    """What result k lost, of these kinds."""
    found = []
    if "index" in kinds and step.op.outside is not None:
        mask = np.asarray(step.op.outside(operands, results[k].shape, **step.attrs))
        found.append(Lost("index", "an index that does not exist", mask))
    if results[k].dtype.kind != "b" and ("overflow" in kinds or "underflow" in kinds):
        exact = _exact(step, operands, k, results[k])
        if exact is not None:
            found += _compared(exact, results[k], kinds)
    return [f for f in found if f.mask.any()]


def _compared(exact: np.ndarray, result: np.ndarray, kinds: Collection[str]) -> list[Lost]:
    dtype = dtype_of(result.dtype)
    found = []
    if result.dtype.kind in "iu" and "overflow" in kinds:
        limits = np.iinfo(result.dtype)
        beyond = (exact > limits.max) | (exact < limits.min)
        found.append(Lost("overflow", f"{dtype.name} wraps", beyond & np.isfinite(exact)))
        found.append(Lost("overflow", "integer division by 0", ~np.isfinite(exact)))
    if result.dtype.kind not in "iu" and "underflow" in kinds:
        zero = (result == 0) & (exact != 0) & (np.abs(exact) < SMALLEST[dtype.name])
        found.append(Lost("underflow", f"underflow of {dtype.name} to 0", zero))
    return found


def _exact(step: Step, operands, k: int, result: np.ndarray) -> np.ndarray | None:
    """The result by the op's oracle, in numbers with more range than the result's; None where
    nobody knows.
    """
    op = step.op
    there = [a for a in operands if a is not None]
    if not there or sum(a.size for a in there) > COMPUTED:
        return None
    if op.moves:  # a conversion, else it loses nothing
        same = there[0].dtype == result.dtype or there[0].shape != result.shape
        return None if same else _wide(there[0])
    wide: list[Any] = [None if a is None else _wide(a) for a in operands]
    while wide and wide[-1] is None:
        wide.pop()
    try:
        with np.errstate(all="ignore"):
            given = op.oracle(*wide, **step.attrs)
    except Exception:  # an oracle that wants integers; what it is asked is not its text
        return None
    given = np.asarray(given[k] if isinstance(given, (tuple, list)) else given)
    fits = given.shape == result.shape and given.dtype.kind == "f"
    return given if fits else None


def _wide(a: np.ndarray) -> np.ndarray:
    """Numbers that hold all of them exactly, and sums and products of some; bools as they are."""
    if a.dtype.kind == "b":
        return a
    return a.astype(np.float64 if a.dtype.itemsize < 8 else np.longdouble)
