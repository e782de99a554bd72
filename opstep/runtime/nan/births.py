"""Which NaNs and infinities of a result its op made itself: of all elements, by running it again.

An element is the op's own where nothing that it is computed from has the same: a NaN of operands
without NaN, an infinity of finite ones. So it stays as it is when what is bad in the operands is
replaced; and where that alone does not tell (a norm of a row that is one value all over), it is no
NaN when NaNs stand in the same places among values that make none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opstep.runtime.debugger.rerun import (
    LOWEST,
    SUBSTITUTES,
    Rerun,
    distinct_values,
    is_float,
    replaced,
)

Test = Callable[[Any], Any]


def odd_elements(operands: Sequence[np.ndarray | None], test: Test) -> dict[int, np.ndarray]:
    """By operand the elements for which the test holds; those without one are left out."""
    found = {j: test(a) for j, a in enumerate(operands) if is_float(a)}
    return {j: mask for j, mask in found.items() if mask.any()}


def bad(a: np.ndarray) -> np.ndarray:
    return ~np.isfinite(a)


def born(
    again: Rerun, operands: Sequence[np.ndarray | None], result: np.ndarray, k: int
) -> np.ndarray:
    """A mask of the elements of result k that are NaN or infinite by the op's own doing."""
    nan, own = np.isnan(result), bad(result)
    nan_in = odd_elements(operands, np.isnan)
    inf = own & ~nan
    if nan_in and nan.any():
        nan = _stay(again, operands, nan_in, np.isnan, nan, k)
    if inf.any():
        inf = _stay(again, operands, odd_elements(operands, bad), np.isinf, inf, k)
    return nan | inf


def _stay(again: Rerun, operands, odd: Mapping[int, Any], test: Test, mask, k: int) -> np.ndarray:
    """What of the mask is there without the odd elements, and is not reached by them."""
    if not odd:
        return mask
    for value in SUBSTITUTES:
        changes = {j: replaced(operands[j], m, value) for j, m in odd.items()}
        mask = mask & test(again(changes)[k])
        if not mask.any():
            return mask
    return mask & ~reached(again, operands, odd, k)


def reached(again: Rerun, operands, odd: Mapping[int, Any], k: int) -> np.ndarray:
    """Elements of the result that become NaN for NaNs in these places among made-up values."""
    found = None
    for low in LOWEST:
        plain = {j: distinct_values(a, low) for j, a in enumerate(operands) if is_float(a)}
        marked = plain | {j: replaced(plain[j], m, np.nan) for j, m in odd.items()}
        there = np.isnan(again(marked)[k]) & ~np.isnan(again(plain)[k])
        found = there if found is None else found | there
    assert found is not None
    return found


def carriers(
    again: Rerun, operands: Sequence[np.ndarray | None], result: np.ndarray, own: np.ndarray, k: int
) -> tuple[int, ...]:
    """Operands that elements of the result which are not its own came through."""
    carried = bad(result) & ~own
    odd = odd_elements(operands, bad)
    if not carried.any() or not odd:
        return ()
    if len(odd) == 1:
        return tuple(odd)
    found = []
    for j in odd:
        others = {i: replaced(operands[i], m, SUBSTITUTES[0]) for i, m in odd.items() if i != j}
        if (bad(again(others)[k]) & carried).any():
            found.append(j)
    return tuple(found) or tuple(odd)  # only together
