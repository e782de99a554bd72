"""The body of a graph under construction, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opstep.frontends.building import GraphBuilder, Number
from opstep.frontends.jax.values import Known
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.graph import Apply, Name
from opstep.runtime.ir.op import OPS, Mismatch
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.transforms.builder import Var

# Makes a graph with this title and these inputs, or finds it, and calls it with the operands.
CallPart = Callable[
    [str, Sequence[tuple[str, Var]], Callable[..., Sequence[Var]]], list[Var]
]  # fmt: skip


class Body(GraphBuilder):
    """Statements. Of the equation that is being translated: `ins` and `outs` are what JAX says of
    its operands and results, `out` is the type of its first result.
    """

    ins: Sequence[Any]
    outs: Sequence[Any]
    types: Sequence[TensorType]
    types_in: Sequence[TensorType]
    used: Sequence[bool]  # which results are read
    part: CallPart
    constant: Callable[[Known], Var]  # a value that is known, written down

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.stems: dict[str, str] = {}  # names without the number that makes them unique
        self.known_types = {}

    def fresh(self, stem: str) -> str:
        stem = stem.removeprefix(f"{self.prefix}_")
        name = super().fresh(stem)
        self.stems[name] = stem
        return name

    def apply(self, op: Any, operands: tuple, attrs: dict[str, Any], name: str = "") -> Any:
        found = super().apply(op, operands, attrs, name)
        for value in found if type(found) is tuple else (found,):
            if isinstance(value, Var):
                self.known_types[value.name] = value
        return found

    @property
    def out(self) -> TensorType:
        return self.types[0]

    def source(self, x: Any, op: str) -> tuple[Var, dict[str, Any]] | None:
        """The first operand and the attributes of the statement that makes x, where it is `op`."""
        if not isinstance(x, Var):
            return None
        made = self.made_by(x)
        if made is None or made.callee.text != op:
            return None
        (first, *_) = made.operands
        if not isinstance(first, Name) or first.text not in self.known_types:
            return None
        return self.known_types[first.text], {a.name.text: a.value for a in made.attrs}

    def made_by(self, x: Var) -> Apply | None:
        """The statement that makes x, in this graph."""
        for s in reversed(self.statements[-200:]):
            if isinstance(s, Apply) and any(r.name.text == x.name for r in s.results):
                return s
        return None

    known_types: dict[str, Var]  # values of this graph by name

    # --- what rules need again and again ---

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        return self.apply(OPS[name], operands, attrs)

    def of_dtype(self, x: Any, dtype: DType) -> Var:
        """A number or tensor as a tensor of that element type."""
        return self.to(x, dtype) if isinstance(x, Var) else self.filled([], x, dtype)

    def index(self, x: Any) -> Any:
        """What selects: indices are i32 or i64."""
        return x if not isinstance(x, Var) or x.dtype.itemsize >= 4 else self.to(x, i64)

    def reshaped(self, x: Var, shape: Sequence[Dim]) -> Var:
        if tuple(shape) == tuple(x.shape):
            return x
        source = self.source(x, "reshape")
        return super().reshaped(source[0] if source else x, shape)

    def transposed(self, x: Var, perm: Sequence[int]) -> Var:
        source = self.source(x, "transpose")
        if source is not None and "perm" in source[1]:
            x, first = source[0], source[1]["perm"]
            perm = [first[p] for p in perm]
        return super().transposed(x, perm)

    def cropped(self, x: Var, starts: Sequence[Dim], sizes: Sequence[Dim]) -> Var:
        """A part of x; x itself where it is all of it."""
        axes = [k for k, n in enumerate(sizes) if starts[k] != 0 or n != x.shape[k]]
        if not axes:
            return x
        return self.slice(
            x, starts=[starts[k] for k in axes], ends=[starts[k] + sizes[k] for k in axes],
            axes=axes,
        )  # fmt: skip


__all__ = ["Body", "Dim", "Mismatch", "Number", "Var"]
