"""Builds IR from Python: one method call an op, names made up as it goes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.graph import (
    NOWHERE,
    Apply,
    Assert,
    Attr,
    Binding,
    DerivedFrom,
    Literal,
    Name,
    Provenance,
)
from opstep.runtime.ir.op import OPS, Op, Ref, complete, resolve
from opstep.runtime.ir.types import DType, TensorType


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


class TapeEntry(NamedTuple):
    """What was applied to what; operands that are absent are None."""

    op: type[Op]
    operands: tuple
    computed: tuple[TensorType | None, ...]  # the operands' types once they are promoted
    results: tuple[Var, ...]
    attrs: dict
    statement: Apply
    derived_from: DerivedFrom | None


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
        self._used_names = set() if used_names is None else used_names
        self._next = 1

    def fresh(self, stem: str) -> str:
        """A name not used so far that begins with `stem`."""
        if stem in self._used_names:
            while f"{stem}{self._next}" in self._used_names:
                self._next += 1
            stem = f"{stem}{self._next}"
        self._used_names.add(stem)
        return stem

    def __getattr__(self, op: str) -> Any:
        if op not in OPS:
            raise AttributeError(f"no op is called {op}")
        return lambda *operands, **attrs: self.apply(OPS[op], operands, attrs)

    def apply(
        self, op: type[Op], operands: tuple[Operand | None, ...], attrs: dict[str, Any]
    ) -> Any:
        """Appends ``op(*operands, **attrs)``; trailing operands may be None. Raises `Mismatch`.

        Of numbers alone a number is made, in f64, where that is a float: as an op they would be
        computed in f32, whatever type they meet later.
        """
        present = list(operands)
        while present and present[-1] is None:
            present.pop()
        types = [o.type if isinstance(o, Var) else o for o in present]
        attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        completed = complete(op, attrs)
        resolved = resolve(op, types, completed)  # pyright: ignore[reportArgumentType]
        numbers = [o for o in present if isinstance(o, int | float)]
        if numbers and len(numbers) == len(present):
            (result, *more) = resolved.results
            if not more and result.dtype.is_float and not result.rank:
                with np.errstate(all="ignore"):
                    return float(op.oracle(*map(np.float64, numbers), **completed))
        results = [Var(self.fresh(f"{self.prefix}_{op.name}"), t) for t in resolved.results]
        arguments = tuple(
            Attr(Name(k), Ref(v.name) if isinstance(v, DType) else v) for k, v in attrs.items()
        )
        statement = Apply(
            tuple(Binding(Name(r.name), None) for r in results),
            Name(op.name),
            tuple(
                Name(o.name) if isinstance(o, Var) else Literal(o, NOWHERE)  # pyright: ignore[reportArgumentType]
                for o in present
            ),
            arguments,
            self.at,
            derived_from=self.derived_from,
        )
        self.statements.append(statement)
        if self.tape is not None:
            all_operands = (*present, *[None] * (len(op.operands) - len(present)))
            application = (all_operands, resolved.operands, tuple(results), completed)
            self.tape.append(TapeEntry(op, *application, statement, self.derived_from))
        return results[0] if len(results) == 1 else tuple(results)

    # --- what gradient rules need again and again ---

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
