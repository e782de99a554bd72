"""Collectives in a replay that all ranks make together: what was bad on the others.

Where a NaN comes from is asked by running ops again, and a collective cannot be: the others are
elsewhere. So ranks tell each other once, behind each collective, which elements of its operand were
bad; from then on it is computed here, of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Producer
from opstep.runtime.debugger.rerun import Rerun, on_device
from opstep.runtime.device.ranks import connected
from opstep.runtime.ir.effects import is_shared

_BAD = np.array([0.0, np.nan, np.inf, -np.inf])  # what is told of an element: its number here
_told: WeakKeyDictionary[Executor, dict[int, list[np.ndarray]]] = WeakKeyDictionary()


def is_of_ranks(producer: Producer) -> bool:
    return is_shared(producer.op, producer.step.attrs)


def again_of(executor: Executor, producer: Producer) -> Rerun:
    """Of an op that a machine has run; of a collective with what others had."""
    return _again(executor, producer) if is_of_ranks(producer) else on_device(executor, producer)


def _again(executor: Executor, producer: Producer) -> Rerun:
    (node,) = producer.operands
    assert node is not None
    step, own = producer.step, executor.array(node)
    op: Any = step.op  # a collective

    def rerun(changes: Mapping[int, np.ndarray]) -> Sequence[np.ndarray]:
        operand = changes.get(0, own)
        if "source" in step.attrs:  # what was received, whatever stands here
            return [executor.array(producer.results[0])]
        if "to" in step.attrs:
            return [operand]
        over = step.attrs["over"]
        known = _told.get(executor, {}).get(id(producer))
        parts = [_BAD[k] for k in known] if known else [np.zeros(own.shape)] * over.size
        parts = [part.astype(operand.dtype) for part in parts]
        index = connected().ranks(over).index
        parts[index] = operand
        return [np.asarray(op.together(parts, **step.attrs)[index])]

    return rerun


def came_over(executor: Executor, producer: Producer) -> list[tuple[int, np.ndarray]]:
    """Ranks tell each other what was bad. Gives those that bad elements of the result came from,
    and which: not those that this rank had itself. All ranks of the group call this.
    """
    (node,), (result,) = producer.operands, producer.results
    assert node is not None
    attrs = dict(producer.step.attrs)
    op: Any = producer.op
    if not node.type.dtype.is_float:
        return []
    over = attrs["over"]
    rank = connected().rank
    array, members = executor.array(node), over.members(rank)
    odd = ~np.isfinite(executor.array(result))
    if "to" in attrs:
        return []
    if "source" in attrs:
        return [(members[attrs["source"]], odd)] if odd.any() else []
    told = np.where(np.isnan(array), 1, np.where(array == np.inf, 2, 3 * (array == -np.inf)))
    known = connected().ranks(over).gather(told.astype(np.uint8))
    _told.setdefault(executor, {})[id(producer)] = known
    if "reduction" in attrs:
        attrs["reduction"] = "max"
    index = over.index(rank)
    none = np.zeros(known[0].shape)

    def reached(k: int) -> np.ndarray:
        mark = np.asarray(known[k] > 0, np.float64)  # of a scalar, too
        marks = [mark if i == k else none for i in range(over.size)]
        return np.asarray(op.together(marks, **attrs)[index]) > 0

    found = []
    left = odd & ~reached(index) if odd.any() else odd
    for k in range(over.size):
        if k != index and left.any() and (mask := left & reached(k)).any():
            found.append((members[k], mask))
            left = left & ~mask
    return found
