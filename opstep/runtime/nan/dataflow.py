"""The flow of bad elements through a step: which come out of it, which way, what takes in the rest,
and the first loss that led to them.

Backwards from the outputs each op is asked which elements of its operands make those of its result
that come out (`sources`): so of each root the elements are known that arrive. Forwards from a root
of which none does, ops are run with its elements and without: so it is known who makes something
finite of them, and whether that would be something else without them.

Before a NaN or an infinity an integer may have wrapped, an index may name nothing, a number may
have been rounded to 0. From the elements that made a result bad the way back is followed, element
by element, to the first op that lost something without a sign. An op's declaration says where an
element comes from; nothing is looked at but what a bad element is computed from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.rerun import (
    SUBSTITUTES,
    bad,
    is_float,
    odd_elements,
    replaced,
    rerun_of,
)
from opstep.runtime.ir.faults import Site
from opstep.runtime.ir.interfaces import outside_of
from opstep.runtime.nan.kinds import Criteria
from opstep.runtime.nan.silent import SilentLoss, silent_losses
from opstep.runtime.nan.sources import CAUSED, ITSELF, Masks, Sources, moved
from opstep.runtime.nan.verdict import Element, regions_of

INSTEAD = (SUBSTITUTES[0], -2.0, 6e4, -6e4)  # what a test or an index is given instead of a NaN
FOLLOWED = 2_000  # ops that are run again to see what becomes of a root that does not come out
TRACED = 1024  # elements, on all ways back to a loss
TOGETHER = 64  # elements of an operand that one element is computed from, at most
SEEDS = 8  # bad elements that these ways begin at


class Ends(NamedTuple):
    """Outputs, and named tensors that the step updates: their names by the id of a node, and their
    bad elements, without those that are wanted. `params`: those that are params; `kept`: infinities
    in outputs that only a backward takes.
    """

    names: dict[int, str]
    masks: dict[int, np.ndarray]
    params: set[int]
    kept: dict[int, np.ndarray]


def ends_of(
    machine: Machine, criteria: Criteria, flags: Callable[[Node], tuple[bool, bool]]
) -> Ends:
    """Those of a step that has run. `flags`: whether a node has NaNs, and infinities."""
    array, ends, roles = machine.executor.array, Ends({}, {}, set(), {}), criteria.roles

    def leaving(node: Node, name: str, before: Node | None = None) -> np.ndarray:
        """An infinity that a named tensor had, and still has, is what the program began it with."""
        if not any(flags(node)):
            return np.zeros(1, bool)
        found = array(node)
        mask, inf = (np.isnan(found) if criteria.skips_infinities else bad(found)), np.isinf(found)
        if name in criteria.wanted or name in roles.kept:
            mask = mask & ~inf
        if before is not None:
            mask = mask & ~(inf & (array(before) == found))
        return np.asarray(mask)

    for name, versions in machine.history.named.items():
        if len(versions) > 1:
            node, before = versions[-1][1], versions[0][1]
            ends.names[id(node)], ends.masks[id(node)] = name, leaving(node, name, before)
            if machine.host.tensors[name].kind == "param":
                ends.params.add(id(node))
            if node.producer is not None and node.producer.op.name == "update":
                converted = node.producer.operands[0]
                assert converted is not None
                ends.names[id(converted)], ends.masks[id(converted)] = name, ends.masks[id(node)]
    if machine.history.finished:
        last = machine.history.finished[-1][1].plan
        for v, node in zip(last.outputs, machine.outputs(), strict=True):
            name = last.values[v].name
            if name not in criteria.ignored:
                ends.names[id(node)], ends.masks[id(node)] = name, leaving(node, name)
            if name in roles.kept and flags(node)[1]:
                ends.kept[id(node)] = np.asarray(np.isinf(array(node)))
    return ends._replace(masks={i: m for i, m in ends.masks.items() if m.any()})


class Edge(NamedTuple):
    """Bad elements of a tensor make some of `target` bad. `own`: those that were born in it do."""

    target: Node
    bits: int
    own: bool


class Reach:
    """Of one step. `makers`: executions that gave bad results, in their order; `births`: masks of
    the elements that were born in a node, by its id; `ends`: masks of what leaves the step.
    """

    def __init__(
        self, executor: Executor, makers: Sequence[Producer], births: Mapping[int, np.ndarray],
        ends: Mapping[int, np.ndarray],
    ):  # fmt: skip
        self.executor = executor
        self.births = births
        self.ends = ends
        self.edges: dict[int, list[Edge]] = {}
        self.sources = Sources()
        self.only = _only(makers, births)
        both = np.uint8(ITSELF | CAUSED)
        self.arriving = {i: np.where(m, both, 0).astype(np.uint8) for i, m in ends.items()}
        for producer in reversed(makers):
            for k, node in enumerate(producer.results):
                if id(node) in self.arriving:
                    self._back(producer, node, k, self.arriving[id(node)])

    def _back(self, producer: Producer, node: Node, k: int, wanted: np.ndarray) -> None:
        if not wanted.any():
            return
        array = self.executor.array
        operands = self.executor.arrays(producer.operands)
        if self.only.get(id(node)):
            odd = odd_elements(operands, bad)
            if len(odd) == 1 or not producer.op.traits.moves:
                bits = np.bitwise_or.reduce(wanted, axis=None)
                found = {j: np.where(m, bits, 0).astype(np.uint8) for j, m in odd.items()}
                self._arrive(producer, node, found)
                return
        own = self.births.get(id(node))
        own = np.zeros(wanted.shape, bool) if own is None else own
        again = rerun_of(self.executor, producer)
        step = producer.step
        found = self.sources.of(step, again, operands, array(node), k, own, wanted)
        self._arrive(producer, node, found)

    def _arrive(self, producer: Producer, node: Node, found: Masks) -> None:
        """These elements of its operands are among those that come out."""
        for j, mask in found.items():
            source = producer.operands[j]
            if source is None or not mask.any():
                continue
            mine = self.births.get(id(source))
            edge = Edge(node, int(mask.max()) | ITSELF * bool((mask & ITSELF).any()),
                        mine is not None and bool(mask[mine].any()))  # fmt: skip
            self.edges.setdefault(id(source), []).append(edge)
            earlier = self.arriving.get(id(source))
            self.arriving[id(source)] = mask if earlier is None else earlier | mask

    def path(self, root: Node, as_itself: bool) -> list[Node]:
        """The shortest way of a root's own elements to an end; none where they do not arrive."""
        came: dict[int, Node | None] = {id(root): None}
        queue = [root]
        for node in queue:
            if id(node) in self.ends and (node is not root or self._leaves(root)):
                way: list[Node] = []
                at: Node | None = node
                while at is not None:
                    way.append(at)
                    at = came[id(at)]
                return way[::-1]
            for edge in self.edges.get(id(node), ()):
                if (as_itself and not edge.bits & ITSELF) or (node is root and not edge.own):
                    continue
                if id(edge.target) not in came:
                    came[id(edge.target)] = node
                    queue.append(edge.target)
        return []

    def _leaves(self, root: Node) -> bool:
        """Whether own elements of it are among those that it takes out itself."""
        own = self.births.get(id(root))
        return own is None or bool((self.ends[id(root)] & own).any())


def _only(makers: Sequence[Producer], births: Mapping[int, np.ndarray]) -> dict[int, bool]:
    """By the id of a node whether all that is bad in it comes from one element of one root: then
    nobody need ask which of its elements do.
    """
    # by the id of a node that of the only root; 0 of several
    root = {i: i if m.sum() == 1 else 0 for i, m in births.items()}
    for producer in makers:
        roots = {root[id(o)] for o in producer.operands if o is not None and id(o) in root}
        for node in producer.results:
            if id(node) not in births:
                root[id(node)] = next(iter(roots)) if len(roots) == 1 else 0
            elif roots:
                root[id(node)] = 0
    return {i: bool(r) and i not in births for i, r in root.items()}


class Fate(NamedTuple):
    """Of elements that do not come out: who gave finite results of them, and whose result would be
    another without them.
    """

    masked_by: list[Node]
    decided: list[Node]


def fate(
    executor: Executor, takers: Mapping[int, Sequence[Producer]], root: Node, own: np.ndarray
) -> Fate:
    """`takers`: by the id of a node with bad elements who took it in, in their order."""
    masks, found, seen = {id(root): own}, Fate([], []), set()
    queue = list(takers.get(id(root), ()))
    for producer in queue[:]:
        seen.add(id(producer))
    while queue and len(seen) <= FOLLOWED:
        producer = queue.pop(0)
        for node, mask in _passed_on(executor, producer, masks, found):
            masks[id(node)] = mask
            for taker in takers.get(id(node), ()):
                if id(taker) not in seen:
                    seen.add(id(taker))
                    queue.append(taker)
    return found


def _passed_on(
    executor: Executor, producer: Producer, masks: Mapping[int, np.ndarray], found: Fate
) -> list[tuple[Node, np.ndarray]]:
    """Results that have elements which are bad for those of the masks."""
    if producer.op.traits.reinterprets:
        (source,), (node,) = producer.operands[:1], producer.results
        return [(node, masks[id(source)].reshape(executor.array(node).shape))]
    operands = executor.arrays(producer.operands)
    odd = odd_elements(operands, bad)
    remaining = {
        j: masks[id(o)] for j, o in enumerate(producer.operands) if o is not None and id(o) in masks
    }
    again, passed = rerun_of(executor, producer), []
    dropped = {j: m & ~remaining[j] if j in remaining else m for j, m in odd.items()}
    others = {j: replaced(operands[j], m, SUBSTITUTES[0]) for j, m in dropped.items()}
    clean = again(others)
    without = [
        again(
            others | {j: replaced(others[j], m, value) for j, m in remaining.items() if j in others}
        )
        for value in (INSTEAD if any(not is_float(g) for g in clean) else SUBSTITUTES[:1])
    ]
    for k, node in enumerate(producer.results):
        there = clean[k]
        if is_float(there):
            mask = bad(there) & ~bad(without[0][k])
            if mask.any():
                passed.append((node, mask))
            else:
                found.masked_by.append(node)
            continue
        differs = [bool((w[k] != there).any()) for w in without]
        # A bool that is another whatever stands there instead only asks whether it is a NaN.
        asks = there.dtype.kind == "b" and all(differs)
        (found.decided if any(differs) and not asks else found.masked_by).append(node)
    return passed


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
    return _LossSearch(executor).run(producer, list(elements)[:SEEDS])


class _LossSearch:
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
        while todo and len(seen) < TRACED:
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
