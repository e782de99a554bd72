"""The body of a graph under construction, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opstep.frontends.onnx.values import Known
from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.graph import Apply, Attr, Binding, Name, same_value
from opstep.runtime.ir.op import Mismatch, Ref
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.transforms.builder import Builder, Operand, Var, written

Number = int | float


class Part(NamedTuple):
    """A graph that a body calls."""

    name: str
    results: list[TensorType]


# Makes a graph with this title and these inputs, or finds one that does the same.
MakePart = Callable[
    [str, Sequence[tuple[str, TensorType]], Callable[..., Sequence[Var]]], Part
]  # fmt: skip


class Body(Builder):
    """Statements; ``b.add(x, y)`` appends one. Of the node that is being translated: `outputs` says
    which of its results are read, `opset` is the version of its operators.
    """

    def __init__(self, used_names: set[str]):
        super().__init__("v", used_names)
        self.outputs: tuple[bool, ...] = (True,)
        self.opset = 0
        self.constant: Callable[[Known], Var]  # a value that is known, written down
        self.part: MakePart  # a graph to be called

    def apply(self, op: Any, operands: tuple, attrs: dict[str, Any], name: str = "") -> Any:
        """`Builder.apply`; attributes that have their default value anyway are left out."""
        kept = {k: v for k, v in attrs.items() if not _is_default(op, k, v)}
        return super().apply(op, operands, kept, name)

    def wants(self, result: int) -> bool:
        """Whether anything reads this result of the node."""
        return result < len(self.outputs) and self.outputs[result]

    def called(self, graph: str, operands: Sequence[Var], results: Sequence[TensorType]) -> Any:
        return self.call(graph, operands, [(f"{self.prefix}_{graph}", t) for t in results])

    def control(
        self, op: str, operands: Sequence[Operand], results: Sequence[TensorType],
        graphs: Mapping[str, str],
    ) -> list[Var]:  # fmt: skip
        """Control flow: `graphs` are the names of the graphs it calls, by attribute."""
        made = [Var(self.fresh(f"{self.prefix}_{op}"), t) for t in results]
        bindings = tuple(Binding(Name(v.name), None) for v in made)
        attrs = tuple(Attr(Name(k), Ref(g)) for k, g in graphs.items())
        self.statements.append(Apply(bindings, Name(op), written(operands), attrs, self.at))
        return made

    # --- what rules need again and again ---

    def to(self, x: Any, dtype: DType) -> Any:
        """x in that element type; numbers adapt by themselves."""
        return self.to_dtype(x, dtype)

    def reshaped(self, x: Var, shape: Sequence[Dim]) -> Var:
        return x if tuple(shape) == tuple(x.shape) else self.reshape(x, shape=list(shape))

    def broadcasted(self, x: Var, shape: Sequence[Dim]) -> Var:
        return x if tuple(shape) == tuple(x.shape) else self.broadcast(x, shape=list(shape))

    def transposed(self, x: Var, perm: Sequence[int]) -> Var:
        return x if list(perm) == list(range(x.type.rank)) else self.transpose(x, perm=list(perm))

    def filled(self, shape: Sequence[Dim], value: Number, dtype: DType) -> Var:
        value = float(value) if dtype.is_float else int(value)
        return self.full(shape=list(shape), value=value, dtype=dtype)

    def size(self, dim: Dim, dtype: DType) -> Any:
        """A size as an operand."""
        return self.extent(of=[dim], dtype=dtype) if isinstance(dim, Expr) else dim


def _is_default(op: Any, name: str, value: Any) -> bool:
    spec = next((a for a in op.attrs if a.name == name), None)
    listed = tuple(value) if isinstance(value, list) else value
    return spec is not None and not spec.required and same_value(listed, spec.default)


def axis_of(axis: int, rank: int) -> int:
    """An axis from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Mismatch(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


__all__ = ["Body", "Mismatch", "Number", "Var", "axis_of"]
