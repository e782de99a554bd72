"""What importers build graphs with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.graph import Attr, Name, same_value
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DType, TensorType, i32
from opstep.runtime.transforms.builder import Builder, Operand, Var

Number = int | float
INDEX = TensorType(i32, ())  # of a loop's turns


class Part(Protocol):
    """A graph that a body calls."""

    @property
    def name(self) -> str: ...

    @property
    def results(self) -> Sequence[Var]: ...


# Makes a graph with this title and these inputs, or finds one that does the same.
MakePart = Callable[
    [str, Sequence[tuple[str, TensorType]], Callable[..., Sequence[Var]]], Part
]  # fmt: skip
# From a body, the number of a turn and what is carried: what of it changes.
Turn = Callable[[Any, Var, dict[str, Var]], dict[str, Var]]


class GraphBuilder(Builder):
    """Statements of a graph; ``b.add(x, y)`` appends one. `part` makes a graph to be called."""

    part: MakePart

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
        self, op: str, operands: Sequence[Operand], results: Sequence[TensorType],
        graphs: Mapping[str, Any],
    ) -> list[Var]:  # fmt: skip
        """Control flow: `graphs` are the names of the graphs it calls, by attribute."""
        attrs = tuple(Attr(Name(k), _graph(g)) for k, g in graphs.items())
        stem = f"{self.prefix}_{op}"
        return Builder.call(self, op, operands, [(stem, t) for t in results], attrs)

    def titled(self, name: str, value: Var) -> Var:
        """A value that is to have this name, where names are given at the end."""
        return value

    def over_time(
        self, title: str, length: Dim, carried: Mapping[str, Var], turn: Turn, down: bool
    ) -> dict[str, Var]:
        """What is carried, at the end of a loop over the steps. `turn` gives what changes; `down`:
        from the last step to the first.
        """
        inputs = [("t", INDEX), *((n, v.type) for n, v in carried.items())]

        def goes_on(b: Any, t: Var, *_: Var) -> list[Var]:
            op, limit = ("greater_equal", 0) if down else ("less", b.size(length, i32))
            return [b.named("more", op, t, limit)]

        def body(b: Any, t: Var, *values: Var) -> list[Var]:
            known = dict(zip(carried, values, strict=True))
            known |= turn(b, t, known)
            return [b.named("next", "sub" if down else "add", t, 1), *known.values()]

        test = self.part(f"{title}_more", inputs, goes_on)
        inner = self.part(f"{title}_turn", inputs, body)
        last = self.size(length - 1, i32) if down else 0
        types = [v.type for v in inner.results]
        graphs = {"test": test.name, "body": inner.name}
        t, *found = self.control("while", [last, *carried.values()], types, graphs)
        self.titled("t", t)
        return {n: self.titled(n, v) for n, v in zip(carried, found, strict=True)}

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
