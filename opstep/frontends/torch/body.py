"""The body of a graph under construction, as rules see it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from opstep.frontends.building import GraphBuilder
from opstep.frontends.torch.errors import Disagreement, Untranslatable
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.calls import literal_fault
from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.graph import (
    Apply,
    Attr,
    Binding,
    Name,
    Provenance,
    names_read,
)
from opstep.runtime.ir.op import OPS, Mismatch
from opstep.runtime.ir.types import DType, TensorType, boolean, f32
from opstep.runtime.transforms.builder import Var

Number = int | float | bool
BOOLEAN = {  # what arithmetic of bools is
    "add": "logical_or", "maximum": "logical_or", "mul": "logical_and", "minimum": "logical_and",
}  # fmt: skip


class Body(GraphBuilder):
    """Statements whose values are numbered (``%3``): two bodies that do the same are equal, and
    names are given at the end (`naming`). ``b.add(x, y)`` appends a statement, as in `Builder`.

    Of the ATen op that is being translated: `expected` are the types of its results, `used` which
    of them are read, `seeds` numbers that no other op has, `memory_order` the axes of its first
    operand as they lie in memory, None where its elements have gaps or overlap. `part` makes a
    graph to be called. `stems`: what a value would be called after the op that made it. `repeated`:
    what was broadcast, by the name of the result.
    """

    def __init__(self) -> None:
        super().__init__(set(), set(), set())
        self.expected: tuple[TensorType | None, ...] = ()
        self.used: tuple[bool, ...] = ()
        self.seeds: Iterator[int] = count()
        self.memory_order: list[int] | None = None
        self.stems: dict[str, str] = {}
        self.repeated: dict[str, Var] = {}
        self._numbers = count()

    def fresh(self, stem: str) -> str:
        name = f"%{next(self._numbers)}"
        self.stems[name] = stem.removeprefix(self.prefix + "_")
        return name

    def value(self, type: TensorType, stem: str) -> Var:
        """A value that no statement here makes: an input, or the result of a call."""
        return Var(self.fresh(stem), type)

    def call(self, graph: str, operands: Sequence[Var], results: Sequence[TensorType]) -> list[Var]:
        return super().call(graph, operands, [(graph, t) for t in results])

    def foreign(
        self, op: str, operands: Sequence[Var], attrs: Mapping[str, Any], stems: Sequence[str],
        types: Sequence[TensorType],
    ) -> list[Var]:  # fmt: skip
        """An op of another library, whose results have these types."""
        made = [self.value(t, stem) for t, stem in zip(types, stems, strict=True)]
        bindings = tuple(Binding(Name(v.name), v.type) for v in made)
        listed = tuple(Attr(Name(k), v) for k, v in attrs.items())
        named = tuple(Name(v.name) for v in operands)
        self.statements.append(Apply(bindings, Name(op), named, listed, self.at))
        return made

    def titled(self, name: str, value: Var) -> Var:
        """A value that is to have this name, or nearly."""
        self.stems[value.name] = name
        return value

    def cut(self, statements: int, values: int) -> None:
        """Drops what was written since there were so many statements and values."""
        del self.statements[statements:]
        for name in list(self.stems)[values:]:
            del self.stems[name]

    def merge_reshapes(self, kept: Collection[str]) -> None:
        """Writes reshapes of one Python line in a row, of which nothing else uses what is between
        them, as one. `kept`: values that the graph returns.
        """
        uses = Counter(n for s in self.statements for n in names_read(s))
        uses.update(kept)
        merged: dict[str, int] = {}  # by value: the place of the reshape that makes it
        dropped: set[int] = set()
        for k, s in enumerate(self.statements):
            if not isinstance(s, Apply) or s.callee.text != "reshape":
                continue
            (source,) = s.operands
            place = merged.get(source.text) if isinstance(source, Name) else None
            inner = None if place is None else self.statements[place]
            if isinstance(inner, Apply) and _alike(s.at, inner.at) and uses[source.text] == 1:  # pyright: ignore
                self.statements[k] = replace(s, operands=inner.operands)
                dropped.add(place)  # pyright: ignore[reportArgumentType]
                del self.stems[inner.results[0].name.text]
            merged[s.results[0].name.text] = k
        self.statements = [s for k, s in enumerate(self.statements) if k not in dropped]

    # --- what rules need again and again ---

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        (first, *_) = self.expected
        assert first is not None
        return first

    @property
    def seed(self) -> int:
        return next(self.seeds)

    def is_used(self, result: int) -> bool:
        return self.used[result]

    def number(self, x: Any) -> Any:
        """An operand: a size, or minus one, becomes a scalar tensor, a bool 0 or 1."""
        if isinstance(x, Expr):
            less = {size: -count for size, count in x.terms.items() if size and count < 0}
            if less:
                return self.sub(self.number(x + Expr(less)), self.extent(of=[Expr(less)]))
            return self.extent(of=[x])
        return int(x) if isinstance(x, bool) else x

    def fitting(self, number: Number, dtype: DType) -> Number:
        """A number as that element type has it: integers wrap around."""
        if dtype.is_float:
            return float(number)
        if not math.isfinite(number):
            raise Untranslatable(f"{number} as an integer")
        if dtype is boolean:
            return int(bool(number))
        low, high = limits(dtype)
        return (int(number) - low) % (high - low + 1) + low

    def scalar(self, x: Any, dtype: DType) -> Any:
        """A tensor, a number or a size as an operand of that element type."""
        x = self.number(x)
        return self.to(x, dtype) if isinstance(x, Var) else self.fitting(x, dtype)

    def rounded(self, x: Any, dtype: DType) -> Any:
        """A number as a float of that type; infinite where it is beyond the largest."""
        if isinstance(x, int | float) and dtype.is_float and literal_fault(x, dtype):
            return math.copysign(math.inf, x)
        return x

    def binary(self, op: str, a: Any, b: Any, dtype: DType | None = None) -> Var:
        """An op of two operands computed in `dtype`, by default that of the result, whatever ours
        would be: PyTorch lets a scalar tensor adapt to one with dims.
        """
        a, b = self.number(a), self.number(b)
        dtype = dtype or self.out.dtype
        op = BOOLEAN.get(op, op) if dtype is boolean else op
        a, b = (x if isinstance(x, Var | float) else self.fitting(x, dtype) for x in (a, b))
        if not isinstance(a, Var) and not isinstance(b, Var):
            a = self.full(shape=[], value=a, dtype=dtype)
        numbers = [x for x in (a, b) if isinstance(x, float)]
        if dtype.is_half and any(literal_fault(x, dtype) for x in numbers):
            made = self.binary(op, a, b, f32)  # PyTorch does not round the number
            return self.to(made, dtype) if made.dtype == f32 else made
        a, b = self.rounded(a, dtype), self.rounded(b, dtype)
        return self.apply(OPS[op], (self.to(a, dtype), self.to(b, dtype)), {})

    def unary(self, op: str, x: Var, **attrs: Any) -> Var:
        """An op of one operand, in the result's element type."""
        return self.apply(OPS[op], (self.to(x, self.out.dtype),), attrs)

    def broadcasted(self, x: Var, shape: Sequence[Dim]) -> Var:
        y = super().broadcasted(x, shape)
        if y is not x:
            self.repeated[y.name] = x
        return y

    def filled(self, type: TensorType, value: Any) -> Var:
        """Elements that all are a number, a size or a scalar tensor."""
        value = self.scalar(value, type.dtype)
        if isinstance(value, Var):
            return self.broadcasted(value, type.shape)
        return self.full(shape=list(type.shape), value=value, dtype=type.dtype)

    def conformed(self, x: Var, expected: TensorType | None) -> Var:
        """x with the element type that PyTorch gives it. Raises where its shape is another."""
        if expected is None:
            return x
        if x.type.rank != expected.rank or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(x.shape, expected.shape, strict=True)
        ):
            raise Disagreement(f"our result is {x.type}, PyTorch's {expected}")
        return self.to(x, expected.dtype)


def _alike(a: Provenance | None, b: Provenance | None) -> bool:
    """Whether two origins are of one Python line, called from the same lines."""
    return (a and a.frames) == (b and b.frames)


__all__ = ["Body", "Mismatch", "Number", "Var"]


def axis_of(axis: int, rank: int) -> int:
    """An axis from the front; a scalar counts as having one."""
    return axis + max(rank, 1) if axis < 0 else axis


def axes_of(axes: Sequence[int] | int | None, rank: int) -> list[int]:
    """Axes from the front, in order; none or an empty list are all."""
    if axes is None or axes == []:
        return list(range(rank))
    listed = [axes] if isinstance(axes, int) else axes
    return sorted(axis_of(a, rank) for a in listed) if rank else []
