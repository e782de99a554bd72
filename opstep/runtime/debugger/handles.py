"""Tensors by name, of which nothing is copied before somebody asks: one, or the whole of those that
ranks have parts of.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import History
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType
from opstep.runtime.statistics import Statistics, together


class Handle:
    """One tensor."""

    __slots__ = ("executor", "node", "whose")

    def __init__(self, executor: Executor, node: Node):
        self.executor = executor
        self.node = node
        self.whose = ""  # behind its type: " on rank 1"

    @property
    def type(self) -> TensorType:
        return self.node.type

    @property
    def nodes(self) -> list[Node]:
        return [self.node]

    def array(self) -> np.ndarray:
        return self.executor.array(self.node)

    def statistics(self) -> Statistics:
        return self.executor.statistics(self.node)

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """``x[index]``; copies one range of elements, as short as the leading indices allow.
        Raises `IndexError`.
        """
        shape: Any = self.node.type.shape
        if len(index) > len(shape):
            raise IndexError(f"{len(index)} indices for a tensor of {len(shape)} dims")
        first, left = 0, 0
        for axis, at in enumerate(index):
            if not isinstance(at, int):
                break
            size = shape[axis]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of range: axis {axis} has {size} elements")
            first += (at % size) * prod(shape[axis + 1 :])
            left = axis + 1
        rest = tuple(index[left:])
        if left == len(shape):
            return self.executor.part(self.node, first, 1).reshape(())
        span, inner = (0, shape[left]), prod(shape[left + 1 :])
        if rest and isinstance(rest[0], slice):
            places = range(*rest[0].indices(shape[left]))
            if not len(places):
                return np.empty(shape[left:], self.node.type.dtype.numpy)[rest]
            low, high = min(places[0], places[-1]), max(places[0], places[-1]) + 1
            span, rest = (low, high), (shifted(places, low), *rest[1:])
        count = (span[1] - span[0]) * inner
        if not count:
            return np.empty(shape[left:], self.node.type.dtype.numpy)[rest]
        found = self.executor.part(self.node, first + span[0] * inner, count)
        return found.reshape(span[1] - span[0], *shape[left + 1 :])[rest]


class Whole:
    """``w`` of ``param w: f32[8, 6] over model``, put together when somebody asks. `parts`: of
    `members`, the ranks of a group, in order.
    """

    __slots__ = ("members", "parts", "shard")

    def __init__(self, shard: Shard, members: Sequence[int], parts: Sequence[Handle]):
        self.shard = shard
        self.members = members
        self.parts = parts

    @property
    def type(self) -> TensorType:
        return self.shard.whole

    @property
    def nodes(self) -> list[Node]:
        return [part.node for part in self.parts]

    @property
    def whose(self) -> str:
        """Behind its type."""
        return f" over {' and '.join(self.shard.group.axes)}"

    def array(self) -> np.ndarray:
        return np.concatenate([part.array() for part in self.parts], self.shard.axis)

    def statistics(self) -> Statistics:
        return together([part.statistics() for part in self.parts])

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """``x[index]``, of those ranks that have some of it. Raises `IndexError`."""
        axis, extents = self.shard.axis, self.shard.type.shape
        size: Any = self.type.shape[axis]
        extent: Any = extents[axis]
        if len(index) > len(extents):
            raise IndexError(f"{len(index)} indices for a tensor of {len(extents)} dims")
        index = (*index, *[slice(None)] * (axis + 1 - len(index)))
        before, at, behind = index[:axis], index[axis], index[axis + 1 :]
        if isinstance(at, int):
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of range: axis {axis} has {size} elements")
            k, own = divmod(at % size, extent)
            return self.parts[k].part((*before, own, *behind))
        places = range(*at.indices(size))
        ends = sorted((places[0], places[-1])) if places else (0, 0)
        first, last = (end // extent if extent else 0 for end in ends)
        cut = [part.part((*before, slice(None), *behind)) for part in self.parts[first : last + 1]]
        found = np.concatenate(cut, kept := sum(isinstance(i, slice) for i in before))
        own = shifted(places, first * extent) if places else slice(0)
        return found[(*[slice(None)] * kept, own)]


def shifted(places: range, low: int) -> slice:
    """The slice that takes the same places from the part that begins at `low`."""
    stop = places.stop - low
    return slice(places.start - low, None if stop < 0 else stop, places.step)


def are_of_one_time(name: str, histories: Sequence[History], nodes: Sequence[Node]) -> bool:
    """Whether versions of a named tensor, one of each rank, are those of the same update: ranks
    stand at one place, or have had theirs at one.
    """
    if len({history.location() for history in histories}) == 1:
        return True
    pairs = zip(histories, nodes, strict=True)
    updates = {history.updated_at(name, node) for history, node in pairs}
    return len(updates) == 1 and None not in updates
