"""The body of a graph under construction, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opstep.frontends.building import GraphBuilder, Number
from opstep.frontends.onnx.values import Known, Scalar, Whole
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.transforms.builder import Var


class Part(NamedTuple):
    """A graph that a body calls."""

    name: str
    results: list[Var]


class Body(GraphBuilder):
    """Statements; ``b.add(x, y)`` appends one. Of the node that is being translated: `outputs` says
    which of its results are read, `opset` is the version of its operators.
    """

    outputs: tuple[bool, ...] = (True,)
    opset = 0
    constant: Callable[[Known], Var]  # a value that is known, written down

    def wants(self, result: int) -> bool:
        """Whether anything reads this result of the node."""
        return result < len(self.outputs) and self.outputs[result]

    def apply(self, op: Any, operands: tuple, attrs: dict[str, Any], name: str = "") -> Any:
        """`Builder.apply`, where numbers of the model keep their types."""
        attrs = {k: _plain(v) for k, v in attrs.items()}
        given = [_plain(o) for o in operands]
        for k, operand in enumerate(operands):
            if isinstance(operand, Scalar) and self._type(op, given, attrs, k) != operand.dtype:
                given[k] = self.constant(operand.known)
        return super().apply(op, tuple(given), attrs, name)

    def _type(self, op: Any, operands: list, attrs: dict[str, Any], place: int) -> DType | None:
        """The type that an operand is computed in; None where that cannot be said."""
        while operands[-1] is None:
            operands = operands[:-1]
        attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        try:
            found = self._resolved(op, operands, attrs)[1].operands[place]
        except Mismatch:
            return None
        return found and found.dtype

    def tensor(self, x: Var | Scalar) -> Var:
        """x, written down where it is a number."""
        return x if isinstance(x, Var) else self.constant(x.known)

    def call(self, graph: str, operands: Sequence[Var], results: Sequence[TensorType]) -> list[Var]:
        return super().call(graph, operands, [(f"{self.prefix}_{graph}", t) for t in results])


def _plain(value: Any) -> Any:
    """A number of the model as one of Python."""
    if isinstance(value, Scalar):
        return int(value) if isinstance(value, Whole) else float(value)
    return value


def axis_of(axis: int, rank: int) -> int:
    """An axis from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Mismatch(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


__all__ = ["Body", "Mismatch", "Number", "Scalar", "Var", "axis_of"]
