"""The body of a graph under construction, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opstep.frontends.building import GraphBuilder, Number
from opstep.frontends.onnx.values import Known
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var


class Part(NamedTuple):
    """A graph that a body calls."""

    name: str
    results: list[TensorType]


# Makes a graph with this title and these inputs, or finds one that does the same.
MakePart = Callable[
    [str, Sequence[tuple[str, TensorType]], Callable[..., Sequence[Var]]], Part
]  # fmt: skip


class Body(GraphBuilder):
    """Statements; ``b.add(x, y)`` appends one. Of the node that is being translated: `outputs` says
    which of its results are read, `opset` is the version of its operators.
    """

    outputs: tuple[bool, ...] = (True,)
    opset = 0
    constant: Callable[[Known], Var]  # a value that is known, written down
    part: MakePart  # a graph to be called

    def wants(self, result: int) -> bool:
        """Whether anything reads this result of the node."""
        return result < len(self.outputs) and self.outputs[result]

    def called(self, graph: str, operands: Sequence[Var], results: Sequence[TensorType]) -> Any:
        return self.call(graph, operands, [(f"{self.prefix}_{graph}", t) for t in results])


def axis_of(axis: int, rank: int) -> int:
    """An axis from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Mismatch(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


__all__ = ["Body", "Mismatch", "Number", "Var", "axis_of"]
