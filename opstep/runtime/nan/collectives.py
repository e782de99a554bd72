"""Collectives in a replay that all ranks make together: what was bad on the others.

Where a NaN comes from is asked by running ops again, and a collective cannot be: the others are
elsewhere. So ranks send each other once, after each collective, which elements of its operand were
bad. From then on it is computed here, with what makes no difference in place of what others had.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.device.ranks import connected
from opstep.runtime.nan.silent import SilentLoss


def came_over(
    executor: Executor, producer: Producer
) -> tuple[list[tuple[int, np.ndarray]], np.ndarray]:
    """Ranks send each other what was bad. Gives those that bad elements of the result came from,
    and which: not those that this rank had itself; and the elements that no rank brought, which are
    the collective's own. All ranks of the group call this.
    """
    (node,), (result,) = producer.operands, producer.results
    assert node is not None
    attrs, over = dict(producer.step.attrs), producer.step.attrs["over"]
    op: Any = producer.op
    made = executor.array(result)
    none = np.zeros(made.shape, bool)
    if not node.type.dtype.is_float or "to" in attrs:
        return [], none
    array, members = executor.array(node), over.members(connected().rank)
    nan, inf = np.isnan(made), np.isinf(made)
    if "source" in attrs:
        odd = np.asarray(nan | inf)
        return [(members[attrs["source"]], odd)] if odd.any() else [], none
    sent = np.where(np.isnan(array), 2, np.isinf(array)).astype(np.uint8)
    known = connected().ranks(over).gather(sent)
    index = over.index(connected().rank)
    if "reduction" in attrs:
        attrs["reduction"] = "max"

    def reached(k: int, least: int) -> np.ndarray:
        marks = [np.zeros(array.shape)] * over.size
        marks[k] = np.asarray(known[k] >= least, np.float64)  # of a scalar, too
        return np.asarray(op.together(marks, **attrs)[index]) > 0

    def brought(k: int) -> np.ndarray:
        """A NaN comes of a NaN: of infinities the collective makes one itself."""
        return np.asarray(nan & reached(k, 2) | inf & reached(k, 1))

    left = np.asarray(nan | inf)
    found = []
    for k in (index, *(k for k in range(over.size) if k != index)):
        if left.any() and (mask := np.asarray(left & brought(k))).any():
            found += [(members[k], mask)] if k != index else []
            left = np.asarray(left & ~mask)
    return found, left


def lost_over_ranks(producer: Producer, result: np.ndarray, own: np.ndarray) -> SilentLoss:
    """The cause of these elements of a collective's result: no rank knows what all of them had."""
    if not (own & np.isnan(result)).any():
        return SilentLoss("inf", f"overflow of {producer.results[0].type.dtype}, over ranks", own)
    is_product = producer.step.attrs.get("reduction") == "prod"
    return SilentLoss(
        "nan", f"{'0 times infinity' if is_product else 'inf - inf'}, over ranks", own
    )
