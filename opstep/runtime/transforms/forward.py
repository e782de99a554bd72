"""The forward pass: a graph's statements once more, and what was applied to what.

Calls of graphs are inlined. Named tensors that are updated on the way are values: what a line reads
is what the tensor holds at that moment, and the tensor itself changes only where the whole ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from opstep.runtime.ir.calls import substitute
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Apply,
    Attr,
    Binding,
    DerivedFrom,
    Literal,
    Name,
    Provenance,
    Return,
    Source,
    SourceLine,
    Statement,
    Update,
)
from opstep.runtime.ir.op import Op, Ref
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application, Verified, VerifiedGraph
from opstep.runtime.transforms.builder import Builder, Operand, TapeEntry, Var, named, written


class Place(NamedTuple):
    """A graph that is inlined: its text, what its symbols and type variables mean (None:
    themselves), and the lines of the calls that led there, innermost first.
    """

    source: Source | None
    symbols: Mapping[str, Any] | None = None
    calls: tuple[SourceLine, ...] = ()

    def type(self, t: TensorType) -> TensorType:
        return substitute(t, self.symbols) if self.symbols else t

    def value(self, value: Any) -> Any:
        """An attribute's value in the symbols of the graph that is written."""
        return _with_symbols(value, self.symbols) if self.symbols else value

    def line(self, statement: Statement) -> tuple[SourceLine, ...]:
        if self.source is None or not statement.span.end:
            return self.calls
        line, _ = self.source.locate(statement.span.start)
        return (SourceLine(self.source.path, line), *self.calls)

    def at(self, statement: Statement) -> Provenance | None:
        """The lines that a statement came from: those that it names, else its own."""
        if statement.at is not None:
            return statement.at
        lines = self.line(statement)
        return Provenance(lines) if lines else None


class ControlFlow(Protocol):
    """How statements of control flow are written, and what is noted for their derivatives."""

    def control(
        self, forward: Forward, statement: Apply, application: Application,
        operands: list[Operand], place: Place,
    ) -> list[Var]: ...  # fmt: skip


class Forward:
    """The forward pass of a graph that is written by `builder`.

    `active` holds the names of values that derivatives are taken by and, more and more, of those
    that depend on them; only what is applied to such values is noted in `taped`. `versions` has the
    current values of tensors that are updated on the way. `kept`: places of statements that are
    written whoever reads them. Without `asserts`, those of the graph are left out.
    """

    def __init__(
        self, verified: Verified, control: ControlFlow, builder: Builder, active: set[str],
        versions: dict[str, Var], asserts: bool = True,
    ):  # fmt: skip
        self.verified = verified
        self.control = control
        self.builder = builder
        self.active = active
        self.versions = versions
        self.asserts = asserts
        self.taped: list[TapeEntry] = []
        self.kept: set[int] = set()

    def run(self, graph: VerifiedGraph, arguments: Sequence[Var], place: Place) -> list[Var]:
        """Writes a graph that is given these values; what it returns. Raises `GradientError`."""
        scope = {b.name.text: a for b, a in zip(graph.graph.inputs, arguments, strict=True)}
        updated: dict[str, Var] = {}
        returned: list[Var] = []
        for statement, application in zip(graph.graph.body, graph.applications, strict=True):
            if isinstance(statement, Apply):
                assert application is not None
                operands = [self._operand(o, scope) for o in statement.operands]
                results = self._apply(statement, application, operands, place)
                for binding, result in zip(statement.results, results, strict=True):
                    scope[binding.name.text] = result
            elif isinstance(statement, Update):
                updated[statement.target.text] = self._updated(statement, scope, place)
            elif isinstance(statement, Return):
                returned = [self._value(v, scope) for v in statement.values]
            elif self.asserts:
                name = self._value(statement.condition, scope).name
                condition, at = Name(name, statement.condition.span), place.at(statement)
                checked = replace(statement, condition=condition, at=at, comments=NO_COMMENTS)
                self.builder.statements.append(checked)
        self.versions |= updated
        return returned

    def _value(self, name: Name, scope: Mapping[str, Var]) -> Var:
        return scope.get(name.text) or self.version(name.text)

    def version(self, tensor: str) -> Var:
        """What a named tensor holds at this point."""
        return self.versions.get(tensor) or Var(tensor, self.verified.tensors[tensor].type)

    def _operand(self, operand: Name | Literal, scope: Mapping[str, Var]) -> Operand:
        return operand.value if isinstance(operand, Literal) else self._value(operand, scope)

    def _updated(self, update: Update, scope: Mapping[str, Var], place: Place) -> Var:
        value = self._operand(update.value, scope)
        t = self.verified.tensors[update.target.text].type
        return self._materialised(value, t, update.target.text, update, place)

    def _materialised(
        self, value: Operand, t: TensorType, name: str, statement: Statement, place: Place
    ) -> Var:
        """A value: a number takes the type of what it becomes here, not of what it meets later."""
        if isinstance(value, Var):
            return value
        self.builder.at = place.at(statement)
        return self.builder.named(name, "full", shape=(), value=value, dtype=t.dtype)

    def _apply(
        self, statement: Apply, application: Application, operands: list, place: Place
    ) -> Sequence[Var]:
        op = application.op
        if op is None:
            return self._call(statement, application, operands, place)
        if op.traits.host:
            return self.control.control(self, statement, application, operands, place)
        resolved, attrs = application.resolved, application.attrs
        types, computed = resolved.results, resolved.operands
        if place.symbols:
            types = tuple(map(place.type, types))
            computed = tuple(t and place.type(t) for t in computed)
            attrs = {k: place.value(v) for k, v in attrs.items()}
        results = self.emit(op, statement, operands, types, place)
        if not op.traits.constant:
            padded = (*operands, *[None] * (len(op.operands) - len(operands)))
            self.note(op, op.grad, padded, computed, results, attrs, statement, place)
        return results

    def _call(
        self, statement: Apply, application: Application, operands: list, place: Place
    ) -> list[Var]:
        graph = self.verified.graphs[application.graph.name.text]  # pyright: ignore[reportOptionalMemberAccess]
        symbols = {s: place.value(d) for s, d in application.symbols.items()}
        inner = Place(graph.source, symbols, place.line(statement))
        arguments = [
            self._materialised(o, inner.type(b.type), b.name.text, statement, place)  # pyright: ignore[reportArgumentType]
            for o, b in zip(operands, graph.graph.inputs, strict=True)
        ]
        return self.run(graph, arguments, inner)

    # --- what is written, and noted ---

    def emit(
        self, op: type[Op], statement: Apply, operands: Sequence[Operand],
        types: Sequence[TensorType], place: Place, names: Sequence[str] = (),
        attrs: tuple[Attr, ...] | None = None,
    ) -> tuple[Var, ...]:  # fmt: skip
        """Writes a statement again, with these operands; `names`: of further results."""
        builder = self.builder
        names = [*(b.name.text for b in statement.results), *names]
        results = tuple([Var(builder.fresh(n), t) for n, t in zip(names, types, strict=True)])
        if attrs is None:
            attrs = statement.attrs
            if place.symbols:
                attrs = tuple(replace(a, value=named(place.value(a.value))) for a in attrs)
        builder.statements.append(
            Apply(
                tuple(
                    [Binding(Name(r.name), r.type if op.traits.foreign else None) for r in results]
                ),
                statement.callee,
                written(operands),
                attrs,
                place.at(statement),
                derived_from=derived_from(statement, place),
            )
        )
        return results

    def note(
        self, op: type[Op], rule: Any, operands: tuple, computed: tuple,
        results: tuple[Var, ...], attrs: Any, statement: Apply, place: Place,
    ) -> None:  # fmt: skip
        """Notes what was applied, where some operand is active: results are, then."""
        active = self.active
        for o in operands:
            if isinstance(o, Var) and o.name in active:
                break
        else:
            return
        found = [r.name for r in results if r.type.dtype.is_float]
        if found:
            active.update(found)
            derived, at = derived_from(statement, place), place.at(statement)
            self.taped.append(
                TapeEntry(op, rule, operands, computed, results, attrs, statement, derived, at)
            )


def derived_from(statement: Apply, place: Place) -> DerivedFrom:
    return statement.derived_from or DerivedFrom(statement, place.source, False)


def _with_symbols(value: Any, symbols: Mapping[str, Any]) -> Any:
    """An attribute's value with the symbols and type variables of a callee replaced by what they
    are to the caller.
    """
    if isinstance(value, tuple) and not isinstance(value, Ref):
        return tuple(_with_symbols(v, symbols) for v in value)
    if isinstance(value, Ref) and value.name in symbols:
        return symbols[value.name]
    if isinstance(value, DType):
        return value.bound(symbols)
    return evaluate(value, symbols) if isinstance(value, Expr) else value  # pyright: ignore[reportArgumentType]
