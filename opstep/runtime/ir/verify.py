"""Checks of a whole module: names, types, shapes, and what graphs are to each other.

`verify` raises one error with everything that is wrong, or returns a `Verified`: the module and
what was found out about it. The results of a wrong statement are of unknown type, and nothing that
follows from that is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.body import BodyChecker
from opstep.runtime.ir.callgraph import check_calls
from opstep.runtime.ir.calls import bind_symbols
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.declarations import check_declaration
from opstep.runtime.ir.diagnostics import Diagnostic, Note, OpstepError, in_order
from opstep.runtime.ir.graph import Declaration, Graph, Module, Source, Span
from opstep.runtime.ir.op import OPS, Op
from opstep.runtime.ir.reporting import Reporter, TooMany
from opstep.runtime.ir.verified import Verified, VerifiedGraph

__all__ = ["bind_symbols", "verify", "verify_with_diagnostics"]


def verify(
    module: Module, ops: Mapping[str, type[Op]] = OPS, library: Sequence[Module] = ()
) -> Verified:
    """What is to know about a module. Raises OpstepError with all its errors.

    Graphs of the `library` modules can be called by name too; a graph of the module's own goes
    before one of that name. Those that are reached are verified along.
    """
    verified, diagnostics = verify_with_diagnostics(module, ops, library)
    if diagnostics:
        raise OpstepError(diagnostics)
    return verified


def verify_with_diagnostics(
    module: Module, ops: Mapping[str, type[Op]] = OPS, library: Sequence[Module] = ()
) -> tuple[Verified, list[Diagnostic]]:
    """What is known about a module that may be wrong, and its errors."""
    verifier = _Verifier(module, ops, library)
    with collector_paused(), suppress(TooMany):
        verifier.run()
    return verifier.verified, list(in_order(verifier.reporter.diagnostics))


class _Verifier:
    def __init__(self, module: Module, ops: Mapping[str, type[Op]], library: Sequence[Module]):
        self.module = module
        self.reporter = Reporter()
        self.verified = Verified(module, module.tensors, {}, {})
        graphs: dict[str, Graph] = {}
        sources: dict[str, Source | None] = {}
        for m in (*library, module):
            graphs |= m.graphs
            sources |= dict.fromkeys(m.graphs, m.source)
        ops = {**CONTROL, **ops}
        tensor_sources = dict.fromkeys(module.tensors, module.source)
        self.applier = Applier(ops, graphs, sources, tensor_sources)

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
                self._graph(item, source)
        graphs, sources = self.applier.graphs, self.applier.sources
        while todo := [n for n in self.applier.reached if n not in verified.graphs]:
            for name in todo:
                self._graph(graphs[name], sources[name])
        check_calls(verified.graphs, self.reporter)

    def _graph(self, graph: Graph, source: Source | None) -> None:
        name = graph.name.text
        checker = BodyChecker(graph, source, self.verified.tensors, self.applier, self.reporter)
        # Entered first: what TooMany cuts short is there, though without its statements.
        first = self.verified.graphs.setdefault(name, VerifiedGraph(graph, source, {}, [], ()))
        found = checker.check()
        if first.graph is graph:
            self.verified.graphs[name] = found


def check_names(
    items: Iterable[tuple[Declaration | Graph, Source | None]],
    ops: Collection[str],
    reporter: Reporter,
) -> None:
    """Names of named tensors and of graphs are each used once; ops keep theirs."""
    first: dict[tuple[bool, str], tuple[Span, Source | None]] = {}
    for item, source in items:
        name, is_graph = item.name, isinstance(item, Graph)
        declared = first.setdefault((is_graph, name.text), (name.span, source))
        if declared != (name.span, source):
            note = Note(f"{name.text} is declared here first", *declared)
            message = f"{name.text} is declared twice"
            reporter.error(source, name.span, message, "", (note,), "redefined")
        if is_graph and name.text in ops:
            message = f"{name.text} is the name of an op"
            reporter.error(source, name.span, message, "rename the graph")
