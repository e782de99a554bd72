"""The first loss that led to a NaN or an infinity: an integer that wrapped, an index that names
nothing, a number that was rounded to 0.

From the elements that made a result bad the way back is followed, element by element, through the
ops that gave them, to the first that lost something without a sign. An op's declaration says where
an element comes from; nothing is looked at but what a bad element is computed from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.ir.faults import Site
from opstep.runtime.ir.interfaces import outside_of
from opstep.runtime.nan.silent import SilentLoss, silent_losses
from opstep.runtime.nan.sources import moved
from opstep.runtime.nan.verdict import Element, regions_of

FOLLOWED = 1024  # elements, on all ways back
TOGETHER = 64  # elements of an operand that one element is computed from, at most
SEEDS = 8  # bad elements that ways begin at


class Cause(NamedTuple):
    """The element of `node` that was lost first, and how."""

    node: Node
    place: tuple[int, ...]
    value: float
    text: str


class _At(NamedTuple):
    node: Node
    place: tuple[int, ...]
    zero: bool  # all elements between it and the bad one are 0


def cause_of(executor: Executor, producer: Producer, elements: Iterable[Element]) -> Cause | None:
    """Of elements of a result of `producer`; None where nothing was lost before."""
    return _Search(executor).run(producer, list(elements)[:SEEDS])


class _Search:
    def __init__(self, executor: Executor):
        self.executor = executor
        self.losses: dict[int, list[SilentLoss]] = {}  # by id of a node

    def run(self, producer: Producer, elements: list[Element]) -> Cause | None:
        todo: deque[_At] = deque()
        for element in elements:
            for blamed in element.blamed:
                operand = producer.operands[blamed.operand]
                if operand is not None:
                    todo.append(_At(operand, blamed.place, blamed.value == 0))
        seen: set[tuple[int, tuple[int, ...]]] = set()
        while todo and len(seen) < FOLLOWED:
            at = todo.popleft()
            if (id(at.node), at.place) in seen or at.node.producer is None:
                continue
            seen.add((id(at.node), at.place))
            telling = at.zero or at.node.type.dtype.is_integer
            telling = telling or outside_of(at.node.producer.op) is not None
            for one in self.losses_of(at.node) if telling else ():
                there = one.mask if one.mask.shape != at.node.type.shape else one.mask[at.place]
                if bool(np.all(there)) and (one.kind != "underflow" or at.zero):
                    value = float(self.executor.array(at.node)[at.place])
                    return Cause(at.node, at.place, value, one.text)
            todo.extend(self._sources(at))
        return None

    def losses_of(self, node: Node) -> list[SilentLoss]:
        if id(node) not in self.losses:
            producer, found = node.producer, []
            assert producer is not None
            if producer.op.family != "internal":
                results = self.executor.arrays(producer.results)
                kinds = ("index", "overflow", "underflow")
                operands = self.executor.operands(producer)
                found = silent_losses(producer.step, operands, results, node.index, kinds)
            self.losses[id(node)] = found
        return self.losses[id(node)]

    def _sources(self, at: _At) -> Iterator[_At]:
        """The elements that one is computed from: of zeros the zeros among floats."""
        producer = at.node.producer
        assert producer is not None
        operands = self.executor.operands(producer)
        for j, mask in self._parts(producer, at, operands):
            operand, array = producer.operands[j], operands[j]
            if operand is None or array is None:
                continue
            floats = array.dtype.kind not in "iub"
            mask = mask & (array == 0) if at.zero and floats else mask
            for flat in np.flatnonzero(mask)[:TOGETHER]:
                index = tuple(map(int, np.unravel_index(flat, array.shape)))
                yield _At(operand, index, at.zero and bool(array[index] == 0))

    def _parts(self, producer: Producer, at: _At, operands) -> Iterator[tuple[int, np.ndarray]]:
        """By operand a mask of the elements that count; none of those that are too many."""
        step = producer.step
        if step.op.family == "internal" or step.op.traits.reinterprets:
            mask = np.zeros(self.executor.array(at.node).shape, bool)
            mask[at.place] = True
            yield 0, mask.reshape(operands[0].shape)
            return
        results = self.executor.arrays(producer.results)
        bits = np.zeros(results[at.node.index].shape, np.uint8)
        bits[at.place] = 1
        if step.op.traits.moves and (found := moved(step, operands, at.node.index, bits, True)):
            yield from ((j, marked != 0) for j, marked in found.items())
            return
        site = Site(at.place, at.node.index, operands, results, step.attrs)
        for j, (array, region) in enumerate(zip(operands, regions_of(step, site), strict=False)):
            if array is None or region is None:
                continue
            mask = np.zeros(array.shape, bool)
            mask[tuple(region)] = True
            if mask.sum() <= TOGETHER:
                yield j, mask
