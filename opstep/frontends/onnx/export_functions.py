"""Graphs of ours as functions of ONNX, and ops that take several nodes likewise.

A function has no types: one serves all sizes. It gets a graph of its own for each choice of element
types of a generic graph, and where a rule has to know sizes, for those. A function sees nothing but
its inputs, so the named tensors that a graph reads are passed to it behind its operands, and those
that it updates come back behind its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx
from onnx import helper

from opstep.frontends.onnx.export_nodes import (
    GRAPH_DOMAIN,
    OP_DOMAIN,
    OPSET,
    Body,
    NeedsNumber,
    Unsayable,
)
from opstep.frontends.onnx.export_writer import Bound, Writer, outputs_of
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.graph import (
    Span,
)
from opstep.runtime.ir.op import Op, Resolved
from opstep.runtime.ir.types import DType, TensorType, i64
from opstep.runtime.ir.verified import Verified, VerifiedGraph
from opstep.runtime.transforms.builder import Var


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
        called = self._add(GRAPH_DOMAIN, name, inputs, outputs, nodes, _described(graph))
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
        return self._add(OP_DOMAIN, op.name, given, outputs, nodes, ""), tuple(sizes)

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
