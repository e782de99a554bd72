"""Checks of one apply: its callee, attributes and operands, and the types of its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opstep.runtime.ir.calls import literal_fault, mismatch_span, resolve_call, symbols_of
from opstep.runtime.ir.control import Control
from opstep.runtime.ir.diagnostics import Note, Reporter, Suggestion, did_you_mean, names_listed
from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.foreign import attribute, foreign_op, ops_by_foreign_name, resolve_foreign
from opstep.runtime.ir.graph import Apply, Attr, Graph, Literal, Source
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.op import Mismatch, Op, Ref, Resolved, complete, resolve
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.values import MOST_DIMS
from opstep.runtime.ir.verified import Application


def attrs_key(attrs: tuple[Attr, ...]) -> tuple:
    """Attributes as part of a key. Of values the text, which tells 1 from 1.0 and from true."""
    return tuple([(a.name.text, repr(a.value)) for a in attrs])


class Applier:
    """Checks applies, remembering those that are right by callee, attributes and operand types.

    `graphs` are all that can be called, `reached` those that some apply does. `unknown` has the
    keys of those that nothing can be said of, as an operand's type is unknown.
    """

    def __init__(
        self,
        ops: Mapping[str, type[Op]],
        graphs: Mapping[str, Graph],
        sources: Mapping[str, Source | None],
        tensor_sources: Mapping[str, Source | None],
        mesh: Mesh,
    ):
        self.ops = ops
        self.graphs = graphs
        self.sources = sources
        self.tensor_sources = tensor_sources
        self.mesh = mesh
        self.reached: dict[str, None] = {}
        self.cache: dict[tuple, Application] = {}
        self.unknown: set[tuple] = set()

    def is_callee(self, name: str) -> bool:
        return name in self.ops or name in self.graphs

    def apply(
        self, s: Apply, types: list, source: Source | None, reporter: Reporter
    ) -> Application | None:
        """What a statement comes to with operands of these types (literals: their values); None,
        with the errors reported, where that cannot be said.
        """
        kinds = [t if t is None or isinstance(t, TensorType) else t.__class__ for t in types]
        key = (s.callee.text, attrs_key(s.attrs) if s.attrs else None, *kinds)
        found = self.cache.get(key)
        if found is None:
            reported = len(reporter.diagnostics)
            found = self._new(s, types, source, reporter)
            if found is None:
                if None in types and len(reporter.diagnostics) == reported:
                    self.unknown.add(key)
                return None
            if (
                found.op.traits.foreign if found.op else s.attrs
            ):  # its results' types are its own; or
                return found  # a call with attributes, which has none: each is reported
            self.cache[key] = found
        return found

    def literals_fit(
        self, s: Apply, found: Application, source: Source | None, reporter: Reporter
    ) -> bool:
        """Whether the literals, which are not part of the key, are right too."""
        good = True
        for k, t in found.literals:
            operand = s.operands[k]
            assert isinstance(operand, Literal)
            fault = literal_fault(operand.value, t)
            if fault:
                reporter.error(source, operand.span, fault)
                good = False
        return good

    def _new(
        self, s: Apply, types: list, source: Source | None, reporter: Reporter
    ) -> Application | None:
        callee = s.callee.text
        op = self.ops.get(callee)
        graph = None if op else self.graphs.get(callee)
        try:
            if op is not None:
                attributes = self.attributes(op, s.attrs, source, reporter)
                if attributes is None or None in types:
                    return None
                return self._op(op, types, attributes, s, reporter)
            if "." in callee:
                return self._foreign(foreign_op(callee), types, s, source, reporter)
            if graph is not None:
                self.reached[callee] = None
                self._no_attributes(s, source, reporter)
                return None if None in types else self._call(graph, types, s)
        except Mismatch as m:
            notes = ()
            if graph is not None:
                note = f"graph {callee} is declared here"
                notes = (Note(note, graph.name.span, self.sources[callee]),)
            if m.also is not None:
                other, text = m.also
                notes = (Note(text, s.operands[other].span, source), *notes)
            reporter.error(source, mismatch_span(s, m), m.message, m.hint, notes, "operands")
            return None
        same = [name for name in ops_by_foreign_name(callee) if name in self.ops]
        hint = Suggestion(same) if same else reporter.near(callee, [*self.ops, *self.graphs])
        reporter.error(source, s.callee.span, f"there is no op or graph {callee}", hint)
        return None

    def _op(
        self, op: type[Op], types: list, written: dict[str, Any], s: Apply, reporter: Reporter
    ) -> Application:
        attrs = complete(op, written)
        for spec in op.attrs:
            if spec.type == "axes":
                attrs[spec.name] = _group(self.mesh, written.get(spec.name), spec.name)
        self._check_values(op, attrs, reporter)
        resolved = self._resolved(op, types, attrs)
        for t in resolved.results:
            if t.rank > MOST_DIMS:
                raise Mismatch(f"the result has {t.rank} dims; {MOST_DIMS} are the most")
            if any(type(d) is int and d < 0 for d in t.shape):
                raise Mismatch(f"the result would be {t}, and no dim can be negative")
        dims: list[Dim] = []
        for spec in op.attrs:
            value = attrs[spec.name]
            if spec.type in ("dim", "dims") and value is not None:
                dims += value if isinstance(value, tuple) else [value]
        return Application(
            op, None, resolved, attrs, literals=_literals(s, resolved),
            needs=frozenset(symbols_of(dims)),
        )  # fmt: skip

    def _foreign(
        self, op: type[Op], types: list, s: Apply, source: Source | None, reporter: Reporter
    ) -> Application | None:
        """Of what is written, the types of the results among it: never remembered."""
        written = self.attributes(op, s.attrs, source, reporter)
        if written is None or None in types:
            return None
        resolved = resolve_foreign(s, types)
        attrs = {name: attribute(value) for name, value in written.items()}
        values = [v for a in attrs.values() for v in (a if type(a) is tuple else (a,))]
        dims = [d for t in resolved.results for d in t.shape]
        dims += [v for v in values if isinstance(v, Expr)]
        return Application(op, None, resolved, attrs, needs=frozenset(symbols_of(dims)))

    def _resolved(self, op: type[Op], types: list, attrs: dict[str, Any]) -> Resolved:
        try:
            if issubclass(op, Control):
                return op.resolve_call(types, attrs, self.graphs.__getitem__)
            return resolve(op, types, attrs)
        except ZeroDivisionError:
            raise Mismatch("a dim of the result is divided by zero") from None

    def _call(self, graph: Graph, types: list, s: Apply) -> Application:
        resolved, symbols = resolve_call(graph, types)
        return Application(None, graph, resolved, symbols=symbols, literals=_literals(s, resolved))

    # --- attributes -------------------------------------------------------------------------------

    def attributes(
        self, op: type[Op], attrs: tuple[Attr, ...], source: Source | None, reporter: Reporter
    ) -> dict[str, Any] | None:
        """The written attributes by name; None, with the errors reported, where one is wrong."""
        declared = {spec.name for spec in op.attrs}
        values: dict[str, Any] = {}
        first: dict[str, Attr] = {}
        good = True
        for a in attrs:
            name = a.name.text
            if name in first:
                note = Note("the first one is here", first[name].name.span)
                message = f"attribute {name} is given twice"
                reporter.error(source, a.name.span, message, "", (note,))
                good = False
            elif name not in declared and not op.traits.foreign:
                message = f"{op.name} has no attribute {name}"
                reporter.error(source, a.name.span, message, _attr_hint(op, name, reporter))
                good = False
            first.setdefault(name, a)
            values[name] = a.value
        return values if good else None

    def _no_attributes(self, s: Apply, source: Source | None, reporter: Reporter) -> None:
        for a in s.attrs:
            message = f"graph {s.callee.text} takes no attributes"
            hint = "graphs have inputs only; write operands by their place"
            reporter.error(source, a.name.span, message, hint)

    def _check_values(self, op: type[Op], attrs: dict[str, Any], reporter: Reporter) -> None:
        """Graphs that attributes name must exist, and a list of dims must be one of a tensor."""
        for spec in op.attrs:
            value = attrs[spec.name]
            for ref in value if type(value) is tuple else (value,):  # a Ref is a tuple, too
                if isinstance(ref, Ref):  # element types and symbols have become what they name
                    self._check_graph(spec.name, ref.name, reporter)
            if spec.type == "dims" and value is not None and len(value) > MOST_DIMS:
                raise Mismatch(f"a tensor has at most {MOST_DIMS} dims", spec.name)

    def _check_graph(self, attr: str, name: str, reporter: Reporter) -> None:
        if name not in self.graphs:
            hint = reporter.near(name, self.graphs)
            if not hint and name in self.ops:
                hint = f"{name} is an op: write a graph that applies it"
            raise Mismatch(f"there is no graph {name}", attr, hint)
        self.reached[name] = None


def _group(mesh: Mesh, over: Any, attr: str) -> Group:
    """The group that an attribute names: along an axis, several or, by `none`, all."""
    refs = over.axes if isinstance(over, Group) else over if type(over) is tuple else (over,)
    names = [r.name if isinstance(r, Ref) else r for r in refs if r is not None]
    for k, name in enumerate(names):
        if name not in mesh.names:
            if not mesh.declared:
                hint = f"declare one above the graphs: mesh {name}: 4"
                raise Mismatch(f"there is no mesh with an axis {name}", attr, hint)
            hint = did_you_mean(name, mesh.names) or f"the mesh has {names_listed(mesh.names)}"
            raise Mismatch(f"the mesh has no axis {name}", attr, hint)
        if name in names[:k]:
            raise Mismatch(f"axis {name} is named twice", attr)
    if over == ():
        raise Mismatch("the list names no axis", attr, f"without {attr}=, it is all ranks")
    return Group(mesh, tuple(n for n in mesh.names if n in names) if names else mesh.names)


def _attr_hint(op: type[Op], name: str, reporter: Reporter) -> str:
    if any(o.name == name for o in op.operands):
        return f"{name} is an operand: write it by its place, in {op.signature}"
    names = [spec.name for spec in op.attrs]
    has = f"it has {', '.join(names)}" if names else "it takes no attributes"
    return reporter.near(name, names) or has


def _literals(s: Apply, resolved: Resolved) -> tuple:
    """Operands that are literals, with the dtype that each has become."""
    found = []
    for k, operand in enumerate(s.operands):
        t = resolved.operands[k]
        if isinstance(operand, Literal) and t is not None:
            found.append((k, t.dtype))
    return tuple(found)
