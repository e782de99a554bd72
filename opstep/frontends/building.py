"""What importers build graphs with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.graph import Apply, Attr, Binding, Name, same_value
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DType
from opstep.runtime.transforms.builder import Builder, Operand, Var, written

Number = int | float


class GraphBuilder(Builder):
    """Statements of a graph; ``b.add(x, y)`` appends one."""

    def __init__(self, used_names: set[str], reserved: set[str], seen: set[str]):
        """`reserved`: names that no value has, as tensors do; `seen`: those of all values."""
        super().__init__("v", used_names)
        self._reserved, self._seen = reserved, seen

    def fresh(self, stem: str) -> str:
        name = super().fresh(stem)
        while name in self._reserved:
            name = super().fresh(stem)
        self._seen.add(name)
        return name

    def apply(self, op: Any, operands: tuple, attrs: dict[str, Any], name: str = "") -> Any:
        """`Builder.apply`; attributes that have their default value anyway are left out."""
        kept = {k: v for k, v in attrs.items() if not _is_default(op, k, v)}
        return super().apply(op, operands, kept, name)

    def control(
        self, op: str, operands: Sequence[Operand], results: Sequence[Any],
        graphs: Mapping[str, Any],
    ) -> list[Var]:  # fmt: skip
        """Control flow: `graphs` are the names of the graphs it calls, by attribute."""
        made = [Var(self.fresh(f"{self.prefix}_{op}"), t) for t in results]
        bindings = tuple(Binding(Name(v.name), None) for v in made)
        attrs = tuple(Attr(Name(k), _graph(g)) for k, g in graphs.items())
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


def _graph(names: str | Sequence[str]) -> Any:
    return Ref(names) if isinstance(names, str) else tuple(map(Ref, names))


def _is_default(op: Any, name: str, value: Any) -> bool:
    spec = next((a for a in op.attrs if a.name == name), None)
    listed = tuple(value) if isinstance(value, list) else value
    return spec is not None and not spec.required and same_value(listed, spec.default)
