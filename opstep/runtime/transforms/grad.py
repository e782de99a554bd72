"""Reverse-mode gradients: from a graph to a graph that computes its results and their derivatives.

Each op's rule writes IR, so a gradient is a graph like any other: it is printed, planned and
stepped through. Calls of graphs are inlined. The tape is the forward pass itself: rules refer to
its values by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opstep.runtime.ir.calls import substitute, unify
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.foreign import attribute, foreign_op
from opstep.runtime.ir.graph import (
    NO_COMMENTS,
    Apply,
    Assert,
    Binding,
    DerivedFrom,
    Graph,
    Literal,
    Module,
    Name,
    Return,
    Source,
    Update,
)
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.op import OPS, Op, Ref, Resolved, complete, resolve
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.backward import GradientError, accumulate, backward
from opstep.runtime.transforms.builder import Builder, TapeEntry, Var


def grad(
    module: Module,
    graph: str,
    wrt: Sequence[str],
    *,
    seeded: bool = False,
    name: str | None = None,
    library: Sequence[Module] = (),
) -> Graph:
    """The graph `name` (default ``<graph>_grad``): results of `graph`, then its derivative by each
    of `wrt`.

    `wrt` names inputs of the graph or params. The first result must be a float scalar, whose
    derivative is taken; with `seeded` the results may have any shape, and the new graph takes one
    more input for each float result, ``d_<k>``, the derivative of the loss by that result. The
    derivative by ``fc.w`` is called ``d_fc_w``. Asserts are kept. Raises `GradientError`.
    """
    source = module.graphs[graph]
    graphs = {n: g for m in (*library, module) for n, g in m.graphs.items()}
    tensors = {n: Var(n, d.type) for n, d in module.tensors.items()}
    used_names = set(tensors) | {b.name.text for b in source.inputs}
    sources = {n: m.source for m in (*library, module) for n in m.graphs}
    tape = _Tape(graphs, tensors, Builder("f", used_names), sources)
    inputs = {b.name.text: Var(b.name.text, _typed(b)) for b in source.inputs}
    results = tape.run(source, list(inputs.values()), {})
    seeds, gradients = _seeds(results, seeded, tape.builder, source)
    backward(tape.builder, tape.taped, gradients)
    found = []
    for target in wrt:
        x = inputs.get(target) or tensors.get(target)
        if x is None:
            raise GradientError(f"{target} is neither an input of {graph} nor a param")
        found.append(gradients.get(x.name) or tape.builder.zeros_like(x))
    fixed = {v.name for v in (*inputs.values(), *tensors.values(), *seeds, *results)}
    names = _derivative_names(wrt, found, fixed, tape.builder)
    live_names = {v.name for v in (*results, *found)}
    body = [_renamed(s, names) for s in _live_statements(tape.statements, live_names)]
    called = [str(names.get(v.name, v.name)) for v in found]
    outputs = [*results, *(Var(n, v.type) for n, v in zip(called, found, strict=True))]
    return Graph(
        Name(name or f"{graph}_grad"),
        (*source.inputs, *(Binding(Name(s.name), s.type) for s in seeds)),
        tuple(v.type for v in outputs),
        (*body, Return(tuple(Name(v.name) for v in outputs))),
    )


def _derivative_names(
    wrt: Sequence[str], found: list[Var], fixed: set[str], builder: Builder
) -> dict[str, str]:
    """Better names for derivatives, ``d_`` and what they are by, where a value is nothing else."""
    names: dict[str, str] = {}
    for target, value in zip(wrt, found, strict=True):
        if value.name not in fixed and value.name not in names:
            names[value.name] = builder.fresh(identifier(f"d_{target}"))
    return names


def _renamed(statement: Apply | Assert, names: dict[str, str]) -> Apply | Assert:
    """The statement with the values in `names` called so."""

    def other(name: Name) -> Name:
        return Name(names.get(name.text, name.text), name.span)

    if isinstance(statement, Assert):
        return replace(statement, condition=other(statement.condition))
    return replace(
        statement,
        results=tuple(replace(b, name=other(b.name)) for b in statement.results),
        operands=tuple(other(o) if isinstance(o, Name) else o for o in statement.operands),
    )


def _type_of(operand: Var | int | float) -> TensorType | int | float:
    return operand.type if isinstance(operand, Var) else operand


def _typed(binding: Binding) -> TensorType:
    if binding.type is None:
        raise GradientError(f"{binding.name.text} has no type")
    return binding.type


class _Tape:
    """The forward pass: statements with calls inlined, and what was applied to what."""

    def __init__(
        self, graphs: dict[str, Graph], tensors: dict[str, Var], builder: Builder,
        sources: dict[str, Source | None],
    ):  # fmt: skip
        self.graphs = graphs
        self.sources = sources
        self.tensors = tensors
        self.builder = builder
        self.taped: list[TapeEntry] = []

    @property
    def statements(self) -> list[Apply | Assert]:
        return self.builder.statements

    def run(self, graph: Graph, arguments: list[Any], symbols: dict) -> list[Any]:
        scope = {b.name.text: a for b, a in zip(graph.inputs, arguments, strict=True)}
        for statement in graph.body:
            if isinstance(statement, Apply):
                self._apply(statement, scope, symbols, self.sources.get(graph.name.text))
            elif isinstance(statement, Return):
                return [self._operand(v, scope) for v in statement.values]
            elif isinstance(statement, Assert):
                condition = self._operand(statement.condition, scope)
                checked = Name(condition.name, statement.condition.span)
                self.statements.append(replace(statement, condition=checked, comments=NO_COMMENTS))
            elif isinstance(statement, Update):
                raise GradientError(
                    "a graph that updates a named tensor has no gradient", statement
                )
        return []

    def _operand(self, operand: Name | Literal, scope: dict[str, Any]) -> Any:
        """A `Var`, or the number that a literal stands for (or an input bound to a literal)."""
        if isinstance(operand, Literal):
            return operand.value
        return scope[operand.text] if operand.text in scope else self.tensors[operand.text]

    def _apply(
        self, statement: Apply, scope: dict[str, Any], symbols: dict, source: Source | None
    ) -> None:
        operands = [self._operand(o, scope) for o in statement.operands]
        callee = statement.callee.text
        if callee in self.graphs and callee not in OPS:
            graph = self.graphs[callee]
            bound, _ = unify(graph, [_type_of(o) for o in operands])
            results = self.run(graph, operands, bound)
        else:
            op = OPS[callee] if "." not in callee else foreign_op(callee)
            if op.host:
                raise GradientError(f"no gradient is taken through {callee}", statement)
            attributes = {a.name.text: _with_symbols(a.value, symbols) for a in statement.attrs}
            derived_from = statement.derived_from or DerivedFrom(statement, source, False)
            if op.foreign:
                attrs = {name: attribute(value) for name, value in attributes.items()}
                operand_types = tuple(o.type for o in operands)
                types = (substitute(_typed(b), symbols) for b in statement.results)
                resolved = Resolved(operand_types, tuple(types))
            else:
                attrs = complete(op, attributes)
                resolved = resolve(op, [_type_of(o) for o in operands], attrs)
            application = (op, operands, attrs, resolved)
            results = self._emit(application, attributes, statement, derived_from)
        for binding, result in zip(statement.results, results, strict=True):
            scope[binding.name.text] = result

    def _emit(
        self,
        application: tuple[type[Op], list, dict, Resolved],
        attributes: dict,
        statement: Apply,
        derived_from: DerivedFrom,
    ) -> list[Var]:
        op, operands, attrs, resolved = application
        results = [
            Var(self.builder.fresh(b.name.text), t)
            for b, t in zip(statement.results, resolved.results, strict=True)
        ]
        self.builder.statements.append(
            Apply(
                tuple(Binding(Name(r.name), r.type if op.foreign else None) for r in results),
                statement.callee,
                tuple(Name(o.name) if isinstance(o, Var) else Literal(o) for o in operands),
                tuple(replace(a, value=attributes[a.name.text]) for a in statement.attrs),
                statement.at,
                derived_from=derived_from,
            )
        )
        padded = (*operands, *[None] * (len(op.operands) - len(operands)))
        taped = TapeEntry(
            op, padded, resolved.operands, tuple(results), attrs, statement, derived_from
        )
        self.taped.append(taped)
        return results


def _with_symbols(value, symbols: dict):
    """An attribute's value with the symbols of a callee replaced by the caller's dims."""
    if isinstance(value, tuple) and not isinstance(value, Ref):
        return tuple(_with_symbols(v, symbols) for v in value)
    if isinstance(value, Ref) and value.name in symbols:
        return symbols[value.name]
    return evaluate(value, symbols) if isinstance(value, Expr) else value


def _seeds(results: list[Var], seeded: bool, builder: Builder, source: Graph):
    """(seed inputs, gradient of each result's name to begin with)."""
    builder.prefix = "g"
    floats = [r for r in results if r.dtype.is_float]
    gradients: dict[str, Var] = {}
    if seeded:
        seeds = [Var(builder.fresh(f"d_{k}"), r.type) for k, r in enumerate(floats)]
        for r, seed in zip(floats, seeds, strict=True):
            accumulate(builder, gradients, r, seed)
        return seeds, gradients
    if not floats or floats[0] is not results[0] or results[0].type.rank:
        returned = next((s for s in source.body if isinstance(s, Return)), None)
        raise GradientError(
            "the first result must be a float scalar such as a loss: f32[]",
            returned,
            hint="return its sum or its mean first",
        )
    loss = results[0]
    gradients[loss.name] = builder.full(shape=(), value=1.0, dtype=loss.dtype)
    return [], gradients


def _live_statements(statements: list[Apply | Assert], live: set[str]) -> list[Apply | Assert]:
    """Asserts, and the statements that `wanted` values and asserts depend on, in order."""
    live_statements: list[Apply | Assert] = []
    for statement in reversed(statements):
        if isinstance(statement, Assert):
            live_statements.append(statement)
            live.add(statement.condition.text)
        elif any(r.name.text in live for r in statement.results):
            live_statements.append(statement)
            live |= {o.text for o in statement.operands if isinstance(o, Name)}
    return live_statements[::-1]
