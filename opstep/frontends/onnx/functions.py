"""Graphs of ours as functions of ONNX, and ops that take several nodes likewise.

A function has no types: one serves all sizes. It gets a graph of its own for each choice of element
types of a generic graph, and where a rule has to know sizes, for those. A function sees nothing but
its inputs, so the named tensors that a graph reads are passed to it behind its operands, and those
that it updates come back behind its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import onnx
from onnx import helper

from opstep.frontends.onnx.nodes import OPSET, Body, NeedsNumber, Unsayable
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.generic import GenericDType
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Literal,
    Name,
    Return,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.op import Op, Ref, Resolved
from opstep.runtime.ir.printer import print_origin, print_statement
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.ir.verified import Application, Verified, VerifiedGraph
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.transforms.builder import Var, named

GRAPHS = "opstep"  # the domain of graphs
OPS = "opstep.ops"  # that of ops which ONNX needs several nodes for
Bound = Mapping[str, Any]  # sizes of symbols and what type variables are


class Problem(NamedTuple):
    """A statement that cannot be exported. `what` is said once for all that share it."""

    what: str
    hint: str
    graph: VerifiedGraph
    span: Span


class Callee(NamedTuple):
    """A graph as a function: its name, the named tensors that it takes, those that it gives."""

    name: str
    touches: tuple[str, ...]
    updates: tuple[str, ...]


class Functions:
    """All functions of a model."""

    def __init__(self, verified: Verified, updates: bool, asserts: bool):
        self.verified = verified
        self.updates = updates  # whether new values of named tensors are results
        self.asserts = asserts  # whether asserts are left out
        self.protos: dict[tuple[str, str], onnx.FunctionProto] = {}
        self.problems: list[Problem] = []
        self._graphs: dict[tuple, Callee | NeedsNumber] = {}
        self._ops: dict[tuple, tuple[str, tuple[str, ...]] | None] = {}
        self._bodies: dict[bytes, str] = {}
        self._under_way: list[str] = []

    def problem(self, what: str, hint: str, graph: VerifiedGraph, span: Span) -> None:
        found = Problem(what, hint, graph, span)
        if not any(p.span == span and p.graph is graph for p in self.problems):
            self.problems.append(found)

    def diagnostics(self) -> list[Diagnostic]:
        """One for each thing that ONNX cannot say, at the first statement that wants it."""
        groups: dict[tuple[str, str], list[Problem]] = {}
        for p in self.problems:
            groups.setdefault((p.what, p.hint), []).append(p)
        return [
            Diagnostic(
                "error", f"{what}{f' ({len(found)} times)' if len(found) > 1 else ''}",
                found[0].span, found[0].graph.source, hint,
            )
            for (what, hint), found in groups.items()
        ]  # fmt: skip

    def effects(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The named tensors that calls of these graphs take, and give where updates are results."""
        found = effects_of(names, self.verified)
        return found.touches, found.updates if self.updates else ()

    # --- graphs ---

    def callee(self, name: str, bound: Bound) -> Callee:
        """The function of a graph, written where there is none."""
        types = {k: v for k, v in bound.items() if isinstance(v, DType)}
        numbers = {k: v for k, v in bound.items() if type(v) is int}
        try:
            return self._callee(name, types)
        except NeedsNumber:
            if not numbers:
                raise
            return self._callee(name, {**types, **numbers})

    def _callee(self, name: str, bound: Bound) -> Callee:
        key = (name, tuple(sorted(bound.items(), key=str)))
        if key not in self._graphs:
            if name in self._under_way:
                raise Unsayable(
                    f"graph {name} calls itself, which functions of ONNX cannot",
                    "write it as a loop, with while",
                )
            self._under_way.append(name)
            try:
                self._graphs[key] = self._write(name, bound)
            except NeedsNumber as error:
                self._graphs[key] = error
            finally:
                self._under_way.pop()
        found = self._graphs[key]
        if isinstance(found, NeedsNumber):
            raise found
        return found

    def _write(self, name: str, bound: Bound) -> Callee:
        graph = self.verified.graphs[name]
        touches, updates = self.effects([name])
        writer = Writer(self, graph, bound, touches)
        outputs = writer.write(strict=not any(type(v) is int for v in bound.values()))
        outputs += map(writer.next, updates)
        inputs = [b.name.text for b in graph.graph.inputs] + list(touches)
        nodes = [n.proto() for n in writer.body.nodes]
        called = self._add(GRAPHS, name, inputs, outputs, nodes, _described(graph))
        return Callee(called, touches, updates)

    # --- ops ---

    def op(
        self, op: type[Op], operands: Sequence[Var], resolved: Resolved, attrs: Mapping[str, Any]
    ) -> tuple[str, tuple[str, ...]] | None:
        """The function of an op, with the symbols whose sizes it takes behind its operands; None
        where it is better written in place.
        """
        key = (op.name, tuple(o.type for o in operands), resolved, repr(attrs))
        if key not in self._ops:
            self._ops[key] = self._op(op, operands, resolved, attrs)
        return self._ops[key]

    def _op(self, op: type[Op], operands: Sequence[Var], resolved: Resolved, attrs):
        sizes: dict[str, Var] = {}
        used: set[str] = set()

        def size(symbol: str) -> Var:
            if symbol not in sizes:
                sizes[symbol] = Var(body.fresh(f"size.{symbol}"), TensorType(i64, (1,)))
            return sizes[symbol]

        body = Body(used, size)
        names = [o.name for o in op.operands]
        inputs = [
            Var(body.fresh(names[k] if k < len(names) else names[-1]), o.type)
            for k, o in enumerate(operands)
        ]
        results = body.lower(op, inputs, resolved, attrs)
        if sum(not n.helper for n in body.nodes) < 2:
            return None
        outputs = outputs_of(body, [r.name for r in results], {*(i.name for i in inputs)})
        nodes = [n.proto() for n in body.nodes]
        given = [i.name for i in inputs] + [s.name for s in sizes.values()]
        return self._add(OPS, op.name, given, outputs, nodes, ""), tuple(sizes)

    def _add(self, domain: str, stem: str, inputs, outputs, nodes, doc: str) -> str:
        """Adds a function, or finds the same one; gives its name."""
        domains = sorted({n.domain for n in _all_nodes(nodes)} - {""})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]
        proto = helper.make_function(
            domain, "", inputs, outputs, nodes, opsets, doc_string=doc or None
        )
        content = proto.SerializeToString(deterministic=True) + stem.encode()
        if content not in self._bodies:
            name, number = stem, 1
            while (domain, name) in self.protos:
                number += 1
                name = f"{stem}_{number}"
            proto.name = name
            self.protos[domain, name] = proto
            self._bodies[content] = name
        return self._bodies[content]


def _all_nodes(nodes: Sequence[onnx.NodeProto]):
    for n in nodes:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from _all_nodes(a.g.node)


def _described(graph: VerifiedGraph) -> str:
    """The comment above a graph."""
    return "\n".join(graph.graph.comments.above).strip()


def outputs_of(body: Body, names: Sequence[str], taken: set[str]) -> list[str]:
    """Names for results: each once, and none that is an input or a constant's."""
    found = []
    taken = taken | {o for n in body.nodes if n.op_type == "Constant" for o in n.outputs}
    for name in names:
        if name in taken:
            copy = body.fresh(f"{name}/result")
            body.node("Identity", [name], [copy])
            name = copy
        taken.add(name)
        found.append(name)
    return found


class Writer:
    """Writes the statements of one graph."""

    def __init__(
        self, functions: Functions, graph: VerifiedGraph, bound: Bound, touches: Sequence[str]
    ):
        self.functions = functions
        self.graph = graph
        self.bound = bound
        inputs = [b.name.text for b in graph.graph.inputs]
        self.inputs = {*inputs, *touches}
        self.current: dict[str, Var] = {}  # what each named tensor is now
        for name in touches:
            declared = functions.verified.tensors[name]
            self.current[name] = Var(name, declared.type)
        # names of results are theirs, wherever they come
        used = {*self.inputs, *(b.name.text for s in self.applies() for b in s.results)}
        self.body = Body(used, self._size)
        self.values: dict[str, Var] = {n: Var(n, self.type_of(n)) for n in inputs}
        self._measured: dict[str, Var] = {}
        self.pending: dict[str, Var] = {}  # updates, which take effect at the end

    def applies(self) -> list[Apply]:
        return [s for s in self.graph.graph.body if isinstance(s, Apply)]

    def type_of(self, name: str) -> TensorType:
        return self.graph.types[name].bind(self.bound)  # pyright: ignore[reportArgumentType]

    def _size(self, symbol: str) -> Var:
        """The size of a symbol of this graph, of the first input that has it alone in a dim."""
        if symbol not in self._measured:
            for b in self.graph.graph.inputs:
                for axis, d in enumerate(b.type.shape if b.type else ()):
                    if isinstance(d, Expr) and d.lone_symbol() == symbol:
                        name = self.body.fresh(f"size.{symbol}")
                        self.body.node("Shape", [b.name.text], [name], start=axis, end=axis + 1)
                        self.body.nodes[-1].helper = True
                        self._measured[symbol] = Var(name, TensorType(i64, (1,)))
                        return self._measured[symbol]
        return self._measured[symbol]

    # --- statements ---

    def write(self, strict: bool = False) -> list[str]:
        """All statements; gives the names of the results. What cannot be said becomes a problem;
        `strict`: `NeedsNumber` is raised, so that the graph can be written for certain sizes.
        """
        returned: tuple[Name, ...] = ()
        body = self.graph.graph.body
        for s, application in zip(body, self.graph.applications, strict=True):
            self.body.metadata = self.metadata(s)
            try:
                if isinstance(s, Apply):
                    assert application is not None
                    self.apply(s, application)
                elif isinstance(s, Return):
                    returned = s.values
                elif isinstance(s, Update):
                    self.update(s)
                elif isinstance(s, Assert) and not self.functions.asserts:
                    raise Unsayable(
                        "assert: ONNX has nothing that stops a run",
                        Wording("leave the asserts out: ", Argument("drop_asserts", True)),
                    )
            except NeedsNumber as error:
                if strict:
                    raise
                sizes = Argument("symbols", dict.fromkeys(error.symbols, 8))
                self.problem(s, error.message, Wording("say it: ", sizes))
            except Unsayable as error:
                self.problem(s, error.message, error.hint)
        self.body.metadata = {}
        self.current.update(self.pending)
        names = [self.lookup(v).name for v in returned]
        return outputs_of(self.body, names, set(self.inputs))

    def problem(self, s: Statement, message: str, hint: str) -> None:
        """Notes it, and goes on as if the statement had been written."""
        span = s.callee.span if isinstance(s, Apply) else s.span
        what = f"{s.callee.text} cannot be exported: {message}" if isinstance(s, Apply) else message
        self.functions.problem(what, hint, self.graph, span)
        for b in s.results if isinstance(s, Apply) else ():
            self.values[b.name.text] = Var(b.name.text, self.type_of(b.name.text))

    def metadata(self, s: Statement) -> dict[str, str]:
        """Where a statement is, and where that was imported from."""
        found = {}
        source = self.graph.source
        if source is not None:
            found["opstep.line"] = f"{source.path}:{source.locate(s.span.start)[0]}"
        if s.at is not None:
            found["opstep.at"] = print_origin(s.at).removeprefix(" at ")
        return found

    def lookup(self, name: Name) -> Var:
        return self.values.get(name.text) or self.current[name.text]

    def operand(self, o: Name | Literal, t: TensorType | None) -> Var:
        if isinstance(o, Name):
            return self.lookup(o)
        assert t is not None
        return self.body.value(o.value, t.dtype)

    def next(self, name: str) -> str:
        """What a named tensor is at the end, as a result."""
        value = self.current[name].name
        if value.startswith(f"{name}/next"):
            return value
        result = self.body.fresh(f"{name}/next")
        self.body.node("Identity", [value], [result])
        return result

    def update(self, s: Update) -> None:
        if not self.functions.updates:
            raise Unsayable(
                f"{s.target.text} <- …: a model of ONNX keeps nothing between runs",
                Wording("take the new values as further results: ", Argument("updates", True)),
            )
        declared = self.functions.verified.tensors[s.target.text].type
        self.pending[s.target.text] = self.operand(s.value, declared)

    def apply(self, s: Apply, application: Application) -> None:
        resolved = bind_resolved(application.resolved, self.bound)
        names = [b.name.text for b in s.results]
        operands = [self.operand(o, resolved.operands[k]) for k, o in enumerate(s.operands)]
        self.body.stem = names[0] if names else s.callee.text
        if application.graph is not None:
            symbols = {k: bind(v, self.bound) for k, v in application.symbols.items()}
            self.call(application.graph.name.text, symbols, operands, names)
        elif application.op is not None and application.op.host:
            from opstep.frontends.onnx.export_control import control

            self.body.metadata = {**self.body.metadata, "opstep.call": self.written(s)}
            control(self, application.op.name, dict(application.attrs), operands, names)
        else:
            assert application.op is not None
            attrs = {k: bind(v, self.bound) for k, v in application.attrs.items()}
            self.compute(s, application.op, operands, resolved, attrs, names)
        for name, t in zip(names, resolved.results, strict=True):
            self.values[name] = Var(name, t)

    def call(
        self, graph: str, symbols: Bound, operands: Sequence[Var], names: Sequence[str]
    ) -> None:
        """A node that calls a graph's function."""
        callee = self.functions.callee(graph, symbols)
        inputs = [o.name for o in operands] + [self.current[n].name for n in callee.touches]
        updated = [Var(self.body.fresh(f"{u}/next"), self.current[u].type) for u in callee.updates]
        self.body.node(callee.name, inputs, [*names, *(u.name for u in updated)], GRAPHS)
        self.current.update(zip(callee.updates, updated, strict=True))

    def compute(
        self, s: Apply, op: type[Op], operands: Sequence[Var], resolved: Resolved,
        attrs: Mapping[str, Any], names: Sequence[str],
    ) -> None:  # fmt: skip
        """The node or the nodes of an op."""
        body = self.body
        function = self.functions.op(op, operands, resolved, attrs)
        if function is not None:
            name, sizes = function
            given = [o.name for o in operands] + [self._helper_size(z) for z in sizes]
            body.metadata = {**body.metadata, "opstep.call": self.written(s)}
            body.node(name, given, names, OPS)
            return
        first = len(body.nodes)
        results = body.lower(op, operands, resolved, attrs)
        made = {o for n in body.nodes[first:] if n.op_type != "Constant" for o in n.outputs}
        for k, (r, name) in enumerate(zip(results, names, strict=True)):
            if r.name in made and all(r.name != other.name for other in results[:k]):
                rename(body, first, r.name, name)
            else:
                body.node("Identity", [r.name], [name])

    def _helper_size(self, symbol: str) -> str:
        return self._size(symbol).name

    def written(self, s: Apply) -> str:
        """What a statement says behind its results, for who reads the model back."""
        bare = replace(s, results=(), at=None, comments=type(s.comments)())
        attrs = tuple(
            Attr(
                a.name,
                named(bind(a.value, self.bound)) if not isinstance(a.value, Ref) else a.value,
            )
            for a in bare.attrs
        )
        return print_statement(replace(bare, attrs=attrs))


def rename(body: Body, first: int, old: str, new: str) -> None:
    """Calls a value of the nodes from `first` on by another name."""
    for n in body.nodes[first:]:
        n.inputs[:] = [new if i == old else i for i in n.inputs]
        n.outputs[:] = [new if o == old else o for o in n.outputs]


def bind(value: Any, bound: Bound) -> Any:
    """An attribute, a dim or an element type where symbols and type variables are known."""
    if type(value) is tuple:
        return tuple(bind(v, bound) for v in value)
    if isinstance(value, Expr):
        return evaluate(value, bound)  # pyright: ignore[reportArgumentType]
    return value.bound(bound) if isinstance(value, GenericDType) else value


def bind_resolved(resolved: Resolved, bound: Bound) -> Resolved:
    def one(t: TensorType | None) -> Any:
        return t if t is None else t.bind(bound)  # pyright: ignore[reportArgumentType]

    return Resolved(tuple(map(one, resolved.operands)), tuple(map(one, resolved.results)))
