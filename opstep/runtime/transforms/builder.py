"""Builds IR from Python: one method call an op, names made up as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Binding,
    DerivedFrom,
    Literal,
    Name,
    Provenance,
)
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.op import OPS, Op, Ref, Resolved, complete, resolve
from opstep.runtime.ir.types import DependsOnType, DType, GenericDType, TensorType, TypeVariable


class Var(NamedTuple):
    """A value of the graph under construction."""

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self):
        return self.type.shape


Operand = Var | int | float


def written(operands: Sequence[Operand]) -> tuple[Name | Literal, ...]:
    """Operands as a statement has them."""
    return tuple([Name(o.name) if isinstance(o, Var) else Literal(o) for o in operands])


def named(value: Any) -> Any:
    """An attribute's value as a statement has it. Raises `DependsOnType` where it is an element
    type that has no name.
    """
    if isinstance(value, Group):
        refs = tuple(map(Ref, value.axes))
        return None if not value.mesh.declared else refs[0] if len(refs) == 1 else refs
    if not isinstance(value, DType) or isinstance(value, TypeVariable):
        return value
    if isinstance(value, GenericDType):
        raise DependsOnType(value)
    return Ref(value.name)


class TapeEntry(NamedTuple):
    """What was applied to what; operands that are absent are None. `rule`: as `Op.grad`."""

    op: type[Op]
    rule: Any
    operands: tuple
    computed: tuple[TensorType | None, ...]  # the operands' types once they are promoted
    results: tuple[Var, ...]
    attrs: dict
    statement: Apply
    derived_from: DerivedFrom | None
    at: Provenance | None


class Builder:
    """Collects statements. ``b.mul(x, 0.5)`` appends one and gives its result as a `Var`.

    Any registered op is a method; ops with several results give a tuple. `prefix` begins the
    made-up names; `used_names` holds names that are used already.
    """

    def __init__(self, prefix: str = "t", used_names: set[str] | None = None):
        self.statements: list[Apply | Assert] = []
        self.prefix = prefix
        self.at: Provenance | None = None
        self.tape: list[TapeEntry] | None = None  # where what is written is noted, if anybody asks
        self.derived_from: DerivedFrom | None = None
        self.active: AbstractSet[str] | None = None  # see `wants`
        self._used_names = set() if used_names is None else used_names
        self._next: dict[str, int] = {}
        self._known: dict[tuple, tuple[dict[str, Any], Resolved]] = {}

    def fresh(self, stem: str) -> str:
        """A name not used so far that begins with `stem`."""
        name = stem
        if name in self._used_names:
            number = self._next.get(stem, 1)
            while (name := f"{stem}{number}") in self._used_names:
                number += 1
            self._next[stem] = number + 1
        self._used_names.add(name)
        return name

    def named(self, name: str, op: str, *operands: Operand | None, **attrs: Any) -> Var:
        """``named("h", "mul", x, 2.0)``: an op with one result, which is called so, or nearly."""
        result = self.apply(OPS[op], operands, attrs, self.fresh(identifier(name)))
        assert isinstance(result, Var)
        return result

    def __getattr__(self, op: str) -> Any:
        if op not in OPS:
            raise AttributeError(f"no op is called {op}")
        return lambda *operands, **attrs: self.apply(OPS[op], operands, attrs)

    def apply(
        self, op: type[Op], operands: tuple[Operand | None, ...], attrs: dict[str, Any],
        name: str = "",
    ) -> Any:  # fmt: skip
        """Appends ``op(*operands, **attrs)``; trailing operands may be None. Raises `Mismatch`.

        Of numbers alone a number is made, in f64, where that is a float: as an op they would be
        computed in f32, whatever type they meet later.
        """
        present = list(operands)
        while present and present[-1] is None:
            present.pop()
        attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        completed, resolved = self._resolved(op, present, attrs)
        numbers = [o for o in present if isinstance(o, int | float)]
        if not name and numbers and len(numbers) == len(present):
            (result, *more) = resolved.results
            if not more and result.dtype.is_float and not result.rank:
                with np.errstate(all="ignore"):
                    return float(op.oracle(*map(np.float64, numbers), **completed))
        results = [Var(name or self.fresh(f"{self.prefix}_{op.name}"), t) for t in resolved.results]
        arguments = tuple(Attr(Name(k), named(v)) for k, v in attrs.items())
        statement = Apply(
            tuple(Binding(Name(r.name), None) for r in results),
            Name(op.name),
            written(present),  # pyright: ignore[reportArgumentType]
            arguments,
            self.at,
            derived_from=self.derived_from,
        )
        self.statements.append(statement)
        if self.tape is not None and not op.traits.constant:
            all_operands = (*present, *[None] * (len(op.operands) - len(present)))
            application = (op.grad, all_operands, resolved.operands, tuple(results), completed)
            self.tape.append(TapeEntry(op, *application, statement, self.derived_from, self.at))
        return results[0] if len(results) == 1 else tuple(results)

    def _resolved(
        self, op: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
    ) -> tuple[dict[str, Any], Resolved]:
        """All attributes, and the types of operands and results. Many statements are alike."""
        key = (
            op.name,
            tuple([o.type if isinstance(o, Var) else o.__class__ for o in operands]),
            tuple([(k, v.__class__, v) for k, v in attrs.items()]),
        )
        found = self._known.get(key)
        if found is None:
            types = [o.type if isinstance(o, Var) else o for o in operands]
            completed = complete(op, attrs)
            found = self._known[key] = completed, resolve(op, types, completed)
        return found

    def call(
        self, callee: str, operands: Sequence[Operand], results: Iterable[tuple[str, TensorType]],
        attrs: tuple[Attr, ...] = (),
    ) -> list[Var]:  # fmt: skip
        """Appends a statement that calls graphs, whose results have these types and, nearly, these
        names.
        """
        found = [Var(self.fresh(identifier(n)), t) for n, t in results]
        bindings = tuple(Binding(Name(v.name), None) for v in found)
        given = written(operands)
        self.statements.append(
            Apply(bindings, Name(callee), given, attrs, self.at, derived_from=self.derived_from)
        )
        return found

    # --- what gradient rules need again and again ---

    def wants(self, x: Var) -> bool:
        """Whether the derivative by an operand is needed."""
        return self.active is None or x.name in self.active

    def sum_to(self, gradient: Var, x: Var | float | None) -> Var | None:
        """`gradient` summed over the axes along which `x` was broadcast, in x's shape and dtype.

        None where x is a literal or absent: it has no gradient.
        """
        if not isinstance(x, Var):
            return None
        extra = gradient.type.rank - x.type.rank
        axes = list(range(extra))
        axes += [
            k + extra for k, d in enumerate(x.shape) if d == 1 and gradient.shape[k + extra] != 1
        ]
        if axes:
            gradient = self.sum(gradient, axes=axes, keepdims=False)
        if gradient.shape != x.shape:
            gradient = self.reshape(gradient, shape=x.shape)
        return self.to_dtype(gradient, x.dtype)

    def to_dtype(self, x: Any, dtype: DType) -> Any:
        """`x` itself where it has that dtype already, or adapts to any, as a literal does."""
        return self.cast(x, dtype=dtype) if isinstance(x, Var) and x.dtype is not dtype else x

    def zeros_like(self, x: Var) -> Var:
        return self.full(shape=x.shape, value=0.0 if x.dtype.is_float else 0, dtype=x.dtype)
