"""Text for elements that are picked, and for places in a row, in kernels of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opstep.kernels.pointwise.fused import Element
from opstep.kernels.schedules.row_graph import Place, RowGraph, Table, picked_of


class RowElement(Element):
    """`spot`: gives a pointer to the row of an operand and the place of its element at an index."""

    def __init__(self, graph: RowGraph, on_gpu: bool, spot: Callable[[int, str], tuple[str, str]]):
        super().__init__(graph.body, on_gpu)
        self.leaves, self.spot = graph.leaves, spot

    def value(self, k: int) -> str:
        member = self.body.members[k]
        if (of := picked_of(member)) is None:
            return super().value(k)
        leaf, index = self.leaves[of], f"r{member.operands[0]}"
        table = isinstance(leaf, Table)
        pointer, place = (f"p{leaf.slot}", index) if table else self.spot(of, index)
        word, stored = f"{pointer}[{place}]", self.types[of]
        return word if self.on_gpu or not stored.is_half else f"from_{stored.name}({word})"


def places(graph: RowGraph, registers: Iterable[int]) -> list[int]:
    """Those registers that are places in a row."""
    count = len(graph.leaves)
    return [r for r in registers if r < count and isinstance(graph.leaves[r], Place)]


def tables(graph: RowGraph, members: Iterable[int]) -> list[str]:
    """The names of the tables of which these members pick elements."""
    count = len(graph.leaves)
    found = (picked_of(graph.body.members[r - count]) for r in members)
    leaves = (graph.leaves[of] for of in found if of is not None)
    return sorted({f"p{leaf.slot}" for leaf in leaves if isinstance(leaf, Table)})
