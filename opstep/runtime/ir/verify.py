"""Checks of a whole module: names, types, shapes, and what graphs are to each other.

`verify` raises one error with everything that is wrong, or returns a `Verified`: the module and
what was found out about it. The results of a wrong statement are of unknown type, and nothing that
follows from that is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.body import BodyChecker
from opstep.runtime.ir.calls import bind_symbols
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.declarations import check_declaration
from opstep.runtime.ir.diagnostics import Diagnostic, Note, OpstepError, Reporter, TooMany, in_order
from opstep.runtime.ir.graph import (
    Apply,
    Declaration,
    Graph,
    Item,
    MeshDeclaration,
    Module,
    Name,
    Source,
    Span,
    Statement,
)
from opstep.runtime.ir.lexer import Piece, cut
from opstep.runtime.ir.mesh import ONE_RANK, Mesh
from opstep.runtime.ir.op import OPS, Op, Ref
from opstep.runtime.ir.shards import on_mesh
from opstep.runtime.ir.verified import Verified, VerifiedGraph

__all__ = ["bind_symbols", "verify", "verify_with_diagnostics"]

_WORD = re.compile(r"[^\W\d]\w*")
MOST_STEPS = 20_000_000  # ops of a graph with its calls inlined


def verify(
    module: Module, ops: Mapping[str, type[Op]] = OPS, library: Sequence[Module] = (),
    mesh: Mesh | None = None,
) -> Verified:  # fmt: skip
    """What is to know about a module. Raises OpstepError with all its errors. `mesh`: in place of
    the one that it declares.

    Graphs of the `library` modules can be called by name too; a graph of the module's own goes
    before one of that name, but not for them, who see nothing of the module. Those that are reached
    are verified along.
    """
    verified, diagnostics = verify_with_diagnostics(module, ops, library, mesh)
    if diagnostics:
        raise OpstepError(diagnostics)
    return verified


def verify_with_diagnostics(
    module: Module, ops: Mapping[str, type[Op]] = OPS, library: Sequence[Module] = (),
    mesh: Mesh | None = None,
) -> tuple[Verified, list[Diagnostic]]:  # fmt: skip
    """What is known about a module that may be wrong, and its errors."""
    verifier = _Verifier(module, ops, library, mesh or module.mesh or ONE_RANK)
    with collector_paused(), suppress(TooMany):
        verifier.run()
    return verifier.verified, list(in_order(verifier.reporter.diagnostics))


def errors_beside(
    module: Module, faults: Sequence[Diagnostic], library: Sequence[Module] = ()
) -> list[Diagnostic]:
    """The errors of what was read of a text with syntax errors, but for those that may follow from
    what was not: of lines that have its name.
    """
    source = module.source
    assert source is not None
    places = [d.span.start for d in faults if d.span is not None]
    broken = [p for p in cut(source.text) if any(p.start <= at < p.end for at in places)]

    def follows(d: Diagnostic) -> bool:
        if d.span is None or d.source is not source:
            return d.source is None
        line = source.line(source.locate(d.span.start)[0])
        if any(p.start <= d.span.start < p.end for p in broken):
            return d not in beside
        return any(p.is_named_in(line) for p in broken)

    found = verify_with_diagnostics(module, library=library)[1]
    graphs = [g for g in module.graphs.values() if any(_touch(g.span, p) for p in broken)]
    beside = [d for g in graphs for d in errors_in_read(g, source, faults, found)]
    return [d for d in found if not follows(d)]


def _touch(span: Span, piece: Piece) -> bool:
    return span.start < piece.end and piece.start < span.end


def errors_in_read(
    graph: Graph, source: Source, faults: Sequence[Diagnostic], found: Sequence[Diagnostic]
) -> list[Diagnostic]:
    """Of the errors `found` in a graph with syntax errors those of statements that were read, but
    for those that have a name which a statement may define that was not.
    """
    places = [d.span.start for d in faults if d.span is not None]
    defined = set(_defined_in_gaps(graph, source.text, places))
    kept = []
    for d in found:
        at = d.span.start if d.span is not None and d.source is source else -1
        spans = (s.span for s in graph.body if s.span.start <= at < s.span.end)
        texts = [source.text[span.start : span.end] for span in spans]
        if d.severity == "error" and texts and not defined & set(_WORD.findall(texts[0])):
            kept.append(d)
    return kept


def _defined_in_gaps(graph: Graph, text: str, faults: Sequence[int]) -> Iterator[str]:
    """Names that may be results in what lies between statements that were read, where a fault is:
    what stands before = or ( in a line, or all of it.
    """
    begin, brace = graph.span.start, text.find("{", graph.span.start)
    if any(graph.span.start <= at <= brace for at in faults):
        yield from _WORD.findall(text[begin : graph.span.end])  # nobody knows its inputs
    for start, end in [*((s.span.start, s.span.end) for s in graph.body), (graph.span.end,) * 2]:
        if any(begin <= at < start for at in faults):
            for line in text[max(begin, brace + 1) : start].splitlines():
                yield from _WORD.findall(re.split("[=(]", line)[0])
        begin = end


class _Verifier:
    def __init__(
        self, module: Module, ops: Mapping[str, type[Op]], library: Sequence[Module], mesh: Mesh
    ):
        self.module = module
        self.reporter = Reporter()
        tensors, shards = module.tensors, {}
        if mesh.ranks > 1:
            tensors, shards = on_mesh(tensors.items(), mesh)
        self.verified = Verified(module, tensors, {}, {}, mesh, shards)
        graphs: dict[str, Graph] = {}
        sources: dict[str, Source | None] = {}
        for m in (*_beside(module, library), module):
            graphs |= m.graphs
            sources |= dict.fromkeys(m.graphs, m.source)
        ops = {**CONTROL, **ops}
        tensor_sources = dict.fromkeys(module.tensors, module.source)
        self.applier = Applier(ops, graphs, sources, tensor_sources, mesh)

    def run(self) -> None:
        source, verified = self.module.source, self.verified
        check_names(((i, source) for i in self.module.items), self.applier.ops, self.reporter)
        for item in self.module.items:
            if isinstance(item, Declaration):
                found = check_declaration(item, source, self.applier, self.reporter)
                if found is not None:
                    verified.inits.setdefault(item.name.text, found)
        for item in self.module.items:
            if isinstance(item, Graph):
                self._graph(item, source, verified.tensors)
        graphs, sources = self.applier.graphs, self.applier.sources
        while todo := [n for n in self.applier.reached if n not in verified.graphs]:
            for name in todo:  # of the library, which knows nothing of the module's tensors
                self._graph(graphs[name], sources[name], {})
        check_calls(verified.graphs, self.reporter)

    def _graph(
        self, graph: Graph, source: Source | None, tensors: Mapping[str, Declaration]
    ) -> None:
        name = graph.name.text
        checker = BodyChecker(graph, source, tensors, self.applier, self.reporter)
        # Entered first: what TooMany cuts short is there, though without its statements.
        first = self.verified.graphs.setdefault(name, VerifiedGraph(graph, source, {}, [], ()))
        found = checker.check()
        if first.graph is graph:
            self.verified.graphs[name] = found


def _beside(module: Module, library: Sequence[Module]) -> Sequence[Module]:
    """The library with other names for those of its graphs that the module has graphs of the name
    of: its own calls are of its own graphs.
    """
    graphs = {name for m in library for name in m.graphs}
    taken, new = graphs | module.graphs.keys(), {}
    for name in graphs & module.graphs.keys():
        other = f"library_{name}"
        while other in taken:
            other += "_"
        new[name] = other

    def named(name: Name) -> Name:
        return replace(name, text=new.get(name.text, name.text))

    def value(v: Any) -> Any:
        if type(v) is tuple:
            return tuple(map(value, v))
        return Ref(new.get(v.name, v.name)) if isinstance(v, Ref) else v

    def calling(s: Statement) -> Statement:
        if not isinstance(s, Apply):
            return s
        attrs = tuple(replace(a, value=value(a.value)) for a in s.attrs)
        return replace(s, callee=named(s.callee), attrs=attrs)

    def renamed(item: Item) -> Item:
        if not isinstance(item, Graph):
            return item
        return replace(item, name=named(item.name), body=tuple(map(calling, item.body)))

    return [replace(m, items=tuple(map(renamed, m.items))) for m in library] if new else library


def check_names(
    items: Iterable[tuple[Item, Source | None]],
    ops: Collection[str],
    reporter: Reporter,
) -> None:
    """Names of named tensors and of graphs are each used once; ops keep theirs. There is one mesh,
    with each axis once.
    """
    first: dict[tuple[bool, str], tuple[Span, Source | None]] = {}
    mesh: tuple[MeshDeclaration, Source | None] | None = None
    for item, source in items:
        if isinstance(item, MeshDeclaration):
            if mesh is not None:
                note = Note("the first one is here", mesh[0].name.span, mesh[1])
                hint = "a program has one mesh: give all axes there"
                message = "a second mesh is declared"
                reporter.error(source, item.name.span, message, hint, (note,), "redefined")
            mesh = mesh or (item, source)
            continue
        name, is_graph = item.name, isinstance(item, Graph)
        declared = first.setdefault((is_graph, name.text), (name.span, source))
        if declared != (name.span, source):
            note = Note(f"{name.text} is declared here first", *declared)
            message = f"{name.text} is declared twice"
            reporter.error(source, name.span, message, "", (note,), "redefined")
        if is_graph and name.text in ops:
            message = f"{name.text} is the name of an op"
            reporter.error(source, name.span, message, "rename the graph")


# --- calls without end, and calls that multiply ---------------------------------------------------


def check_calls(
    graphs: Mapping[str, VerifiedGraph],
    reporter: Reporter,
    callees: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """Reports recursion that nothing can stop, and sets the `steps` of each graph.

    Calls through while, cond and switch do not count: they happen only if a value says so.
    `callees`: what each graph applies, ops among it, and how often, where that is known already.
    """
    if callees is None:
        callees = {name: callees_of(v.graph) for name, v in graphs.items()}
    calls = {name: [c for c in callees[name] if c in graphs] for name in graphs}
    for name in _callees_first(calls, graphs, reporter):
        applied = callees[name]
        total = sum(applied.values())
        total += sum(applied[c] * (graphs[c].steps - 1) for c in calls[name])
        graphs[name].steps = min(total, MOST_STEPS + 1)
        if total > MOST_STEPS and all(graphs[c].steps <= MOST_STEPS for c in calls[name]):
            reporter.error(
                graphs[name].source,
                graphs[name].graph.name.span,
                f"graph {name} comes to more than {MOST_STEPS:,} ops when its calls are inlined",
            )


def callees_of(graph: Graph) -> dict[str, int]:
    """What a graph applies, ops among it, and how often; in the order of the first time."""
    return Counter(s.callee.text for s in graph.body if isinstance(s, Apply))


def _call(graph: Graph, callee: str) -> Apply:
    """The first call of another graph."""
    return next(s for s in graph.body if isinstance(s, Apply) and s.callee.text == callee)


def _callees_first(
    calls: Mapping[str, list[str]], graphs: Mapping[str, VerifiedGraph], reporter: Reporter
) -> list[str]:
    """All graphs, each behind those it calls. Reports each cycle; chains may be of any length."""
    order: list[str] = []
    done: set[str] = set()
    for root in calls:
        if root in done:
            continue
        path = {root: None}  # the calls that led here, in order
        todo = [(root, iter(calls[root]))]
        while todo:
            name, rest = todo[-1]
            callee = next(rest, None)
            if callee is None:
                todo.pop()
                del path[name]
                done.add(name)
                order.append(name)
            elif callee in path:
                names = list(path)
                _report_cycle(names[names.index(callee) :], graphs, reporter)
            elif callee not in done:
                path[callee] = None
                todo.append((callee, iter(calls[callee])))
    return order


def _report_cycle(
    cycle: list[str], graphs: Mapping[str, VerifiedGraph], reporter: Reporter
) -> None:
    following = [*cycle[1:], cycle[0]]
    steps = [(a, b, _call(graphs[a].graph, b)) for a, b in zip(cycle, following, strict=True)]
    *others, (last, first, call) = steps
    notes = tuple(
        Note(f"{a} calls {b} here", s.callee.span, graphs[a].source) for a, b, s in others[:8]
    )
    reporter.error(
        graphs[last].source,
        call.callee.span,
        f"calling {first} never ends: {' -> '.join([*cycle, first])}",
        "only a call through cond, switch or while can come to an end",
        notes,
    )
