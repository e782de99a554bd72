"""Infinities that a program has of its own: constants of its text, and those that it was given, as
masks are. Whether they do harm where they come out.

Arithmetic without overflow makes infinities of infinities, and none of these is an error: a mask
that is added, a minimum that starts at infinity, the score of a path that does not exist. An error
is what loses finite numbers to them: a sum of products, a loss of which nothing else is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.rerun import SUBSTITUTES, odd_elements, replaced, rerun_of
from opstep.runtime.ir.graph import Declaration
from opstep.runtime.nan.arithmetic import INF_MINUS_INF, ZERO_TIMES
from opstep.runtime.nan.dataflow import Edge, Reach
from opstep.runtime.nan.kinds import Roles
from opstep.runtime.nan.sources import ITSELF

# Why infinities may be meant: the text writes them; an input or a param is -inf in places, as masks
# are; it has +inf, which is a fault of the data as soon as a NaN is made of it.
WRITTEN, BELOW, ABOVE = "written", "below", "above"
PRODUCTS = f"{INF_MINUS_INF} among the products"  # a rule of ops that sum products


def of_infinities(executor: Executor, producer: Producer, own: np.ndarray) -> np.ndarray:
    """Those infinities of a result that are born of zeros which an op made of infinities: the
    logarithm of a softmax of masked scores is one of them again.
    """
    found = np.zeros(own.shape, bool)
    for operand in producer.operands:
        maker = operand.producer if operand is not None else None
        if operand is None or maker is None or operand.type.shape != own.shape:
            continue
        array = executor.array(operand)
        if array.dtype.kind in "iub" or maker.op.traits.host or not (own & (array == 0)).any():
            continue
        operands = executor.arrays(maker.operands)
        odd = odd_elements(operands, np.isinf)
        if odd:
            changes = {j: replaced(operands[j], mask, SUBSTITUTES[0]) for j, mask in odd.items()}
            found |= (array == 0) & (rerun_of(executor, maker)(changes)[operand.index] != 0)
    return own & found


def meaning_of(
    name: str, description: str, values: np.ndarray, declared: Mapping[str, Declaration],
    roles: Roles,
) -> str:  # fmt: skip
    """Why the bad elements of what came from outside may be meant; "" where they are not."""
    nan = bool(np.isnan(values).any())
    tensor = declared.get(name)
    if description.startswith(("literal", "constant")):
        return WRITTEN
    if tensor is not None and (_begins_bad(tensor) or (tensor.kind == "state" and not nan)):
        return WRITTEN
    if nan or name in roles.strict:
        return ""
    return ABOVE if (values == np.inf).any() else BELOW


def _begins_bad(tensor: Declaration) -> bool:
    """Whether the text begins it with a NaN or an infinity."""
    values = [a.value for a in tensor.attrs] + [tensor.value.value if tensor.value else 0]
    return any(isinstance(v, float) and not np.isfinite(v) for v in values)


class Ways(NamedTuple):
    """Of elements that come out as what they are. `params`: ends that are params, by id."""

    reach: Reach
    executor: Executor
    params: Collection[int]

    def do_harm(self, root: Node, own: np.ndarray, meant: str) -> bool:
        """Whether these elements of `root` do: a NaN that is computed with, infinities that finite
        numbers are lost to. Of those that the text does not write no sum may be left.
        """
        edges = list(self._followed(root))
        if np.isnan(self.executor.array(root)[own]).any():
            return not all(_moves(edge.target) for _, edge in edges)
        made = self.reach.edges.get(id(root), ())
        if meant == ABOVE and any(
            not e.bits & ITSELF and e.own for e in made
        ):  # NaNs, of infinities
            return True
        if {id(root), *(id(edge.target) for _, edge in edges)} & set(self.params):
            return True
        if any(_sums_products(edge.target) for _, edge in edges):
            return True
        lost = [edge.target for source, edge in edges if self._loses(source, edge.target)]
        return bool(lost) if meant != WRITTEN else any(map(self._stands_alone, lost))

    def _followed(self, start: Node, born: bool = True) -> Iterator[tuple[Node, Edge]]:
        """The ways of its elements, as long as they stay what they are. `born`: of those that were
        born there.
        """
        seen, todo = {id(start)}, [start]
        for node in todo:
            for edge in self.reach.edges.get(id(node), ()):
                if edge.bits & ITSELF and (edge.own or node is not start or not born):
                    yield node, edge
                    if id(edge.target) not in seen:
                        seen.add(id(edge.target))
                        todo.append(edge.target)

    def between(self, root: Node, target: Node) -> list[Node]:
        """The way from elements of `root` to those of `target`, if nothing is born on it."""
        ways = {id(root): [root]}
        for way in (todo := [[root]]):
            for edge in self.reach.edges.get(id(way[-1]), ()):
                further = [*way, edge.target]
                if edge.target is target:
                    return further
                if id(edge.target) not in ways and id(edge.target) not in self.reach.births:
                    ways[id(edge.target)] = further
                    todo.append(further)
        return []

    def _loses(self, operand: Node, result: Node) -> bool:
        """Whether a result is the sum, or the product, of infinities with finite numbers."""
        producer = result.producer
        sizes: Any = (result.type.size, operand.type.size)
        if producer is None or sizes[0] >= sizes[1]:
            return False
        rules = [rule.text for rule in producer.op.faults.rules]
        mixes = any(text.endswith((INF_MINUS_INF, ZERO_TIMES)) for text in rules)
        return mixes and bool(np.isfinite(self.executor.array(operand)).any())

    def _stands_alone(self, node: Node) -> bool:
        """Whether it comes out as one number, as a loss does."""
        found = [node, *(edge.target for _, edge in self._followed(node, born=False))]
        return any(id(n) in self.reach.ends and n.type.size == 1 for n in found)


def _moves(node: Node) -> bool:
    producer = node.producer
    return producer is not None and (producer.op.traits.moves or producer.op.traits.reinterprets)


def _sums_products(node: Node) -> bool:
    producer = node.producer
    return producer is not None and any(r.text == PRODUCTS for r in producer.op.faults.rules)
