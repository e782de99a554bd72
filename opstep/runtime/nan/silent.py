"""Losses of arithmetic without a NaN: integers that wrap, products that round to 0, indices that
name nothing. Told by computing results again in wider numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.interfaces import outside_of
from opstep.runtime.ir.types import dtype_of
from opstep.runtime.nan.arithmetic import Arithmetic
from opstep.runtime.plan.plan import Step

COMPUTED = 1 << 22  # elements of operands up to which the oracle is asked
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}


class SilentLoss(NamedTuple):
    """`kind`: overflow, underflow or index; `mask`: elements of the result."""

    kind: str
    text: str
    mask: np.ndarray


def silent_losses(
    step: Step, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray], k: int,
    kinds: Collection[str],
) -> list[SilentLoss]:  # fmt: skip
    """The losses of result k, of these kinds."""
    found = []
    if "index" in kinds and outside_of(step.op) is not None:
        mask = np.asarray(outside_of(step.op)(operands, results[k].shape, **step.attrs))
        found.append(SilentLoss("index", "an index that does not exist", mask))
    if results[k].dtype.kind != "b" and ("overflow" in kinds or "underflow" in kinds):
        exact = exact_result(step, operands, k, results[k])
        if exact is not None:
            found += _compared(step, operands, exact, results[k], kinds)
            found += _on_the_way(step, operands, exact, results[k], kinds)
    return [f for f in found if f.mask.any()]


def _compared(
    step: Step, operands, exact: np.ndarray, result: np.ndarray, kinds: Collection[str]
) -> list[SilentLoss]:
    dtype = dtype_of(result.dtype)
    found = []
    if result.dtype.kind in "iu" and "overflow" in kinds:
        limits = np.iinfo(result.dtype)
        beyond = (exact > limits.max) | (exact < limits.min)
        t = next(iter(step.operand_types), None)
        clips = step.op.traits.moves and t is not None and t.dtype.is_float
        text = f"beyond what {dtype.name} holds" if clips else f"{dtype.name} wraps"
        divided = ~np.isfinite(exact) & _of_zero(operands, exact.shape)
        found.append(SilentLoss("overflow", text, beyond & ~divided))
        found.append(SilentLoss("overflow", "integer division by 0", divided))
    if result.dtype.kind not in "iu" and "underflow" in kinds:
        zero = (result == 0) & (exact != 0) & (np.abs(exact) < SMALLEST[dtype.name])
        found.append(SilentLoss("underflow", f"underflow of {dtype.name} to 0", zero))
    return found


def _of_zero(operands, shape: Sequence[int]) -> np.ndarray:
    """A mask of where an operand of an op that goes by elements is 0."""
    found = np.zeros(shape, bool)
    for a in operands:
        with suppress(ValueError):  # it does not go by elements
            found |= False if a is None else np.broadcast_to(a == 0, shape)
    return found


def _on_the_way(
    step: Step, operands, exact: np.ndarray, result: np.ndarray, kinds: Collection[str]
) -> list[SilentLoss]:
    """Numbers that are altogether wrong, because something in between was too large or became 0."""
    if result.dtype.kind in "iu" or step.op.traits.moves:
        return []
    wrong = wrong_elements(exact, result)
    if not wrong.any():
        return []
    computed, arithmetic = np.float64 if result.dtype.itemsize == 8 else np.float32, Arithmetic()
    arrays = [a if a is None or a.dtype.kind in "iub" else a.astype(computed) for a in operands]
    while arrays and arrays[-1] is None:
        arrays.pop()
    with np.errstate(all="ignore"), suppress(Exception):
        step.op.oracle(*map(arithmetic.watch, arrays), **step.attrs)
    kind = "underflow" if arithmetic.underflow_first else "overflow"
    if kind not in kinds or (kind == "overflow" and "" not in arithmetic.infinities):
        return []
    name = "f64" if computed is np.float64 else "f32"
    return [SilentLoss(kind, f"{kind} of {name} on the way to the result", wrong)]


def wrong_elements(exact: np.ndarray, result: np.ndarray) -> np.ndarray:
    """A mask of the finite elements of a result of floats that are wrong by more than half."""
    with np.errstate(all="ignore"):
        wide = result.astype(np.float64)
        wrong = np.isfinite(wide) & np.isfinite(exact) & (np.abs(wide - exact) > abs(exact) / 2)
    return wrong & (np.abs(exact) >= SMALLEST[dtype_of(result.dtype).name])


def exact_result(
    step: Step, operands, k: int, result: np.ndarray, most: int = COMPUTED
) -> np.ndarray | None:
    """The result by the op's oracle, in numbers with more range than the result's; None where
    nobody knows, and of operands of more than `most` elements.
    """
    op = step.op
    there = [a for a in operands if a is not None]
    if op.family == "creation" and result.size <= COMPUTED:
        return _counted(step)
    if not there or op.traits.bits or sum(a.size for a in there) > most:
        return None
    if op.traits.moves:  # a conversion, else it loses nothing
        same = there[0].dtype == result.dtype or there[0].shape != result.shape
        return None if same else _wide(there[0])
    wide: list[Any] = [None if a is None else _wide(a) for a in operands]
    while wide and wide[-1] is None:
        wide.pop()
    value: Any = None
    try:
        with np.errstate(all="ignore"):
            value = op.oracle(*wide, **step.attrs)
    except Exception:  # an oracle that wants integers; what it is asked is not its text
        with np.errstate(all="ignore"), suppress(Exception):
            longer = [a if a is None or a.dtype.kind not in "iu" else a.astype(np.int64)
                      for a in operands[: len(wide)]]  # fmt: skip
            value = op.oracle(*longer, **step.attrs)
    value = np.asarray(value[k] if isinstance(value, (tuple, list)) else value)
    if value.shape != result.shape or value.dtype.kind not in "fi":
        return None
    # a complement of unsigned integers is negative here
    negative = (value < 0) & (value.dtype.kind == "i") & (result.dtype.kind == "u")
    return np.where(negative, result, value)


def _counted(step: Step) -> np.ndarray:
    """The result of an op of attributes alone: its numbers, and those that it gives, are wider."""
    types = {a.name: a.type for a in step.op.attrs}
    wide = SimpleNamespace(is_float=False, numpy=np.longdouble)
    attrs = {n: np.longdouble(v) if types[n] == "number" else v for n, v in step.attrs.items()}
    with np.errstate(all="ignore"):
        return np.asarray(step.op.oracle(**{**attrs, "dtype": wide}))


def _wide(a: np.ndarray) -> np.ndarray:
    """Numbers that hold all of them exactly, and sums and products of some; bools as they are."""
    if a.dtype.kind == "b":
        return a
    return a.astype(np.float64 if a.dtype.itemsize < 8 else np.longdouble)
