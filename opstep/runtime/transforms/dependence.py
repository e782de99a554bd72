"""Which inputs and named tensors a graph's results can change with, smoothly.

What a gradient needs to know of graphs that control flow calls before it writes their derivatives:
by what there is one at all. Updates and calls are followed, also those of graphs that call
themselves; what passes an integer or a `constant` op is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opstep.runtime.ir.effects import called_graphs, reached_graphs
from opstep.runtime.ir.graph import Apply, Literal, Name, Return, Update
from opstep.runtime.ir.verified import Application, Verified, VerifiedGraph

Key = int | str  # an input or a result by its place, a named tensor by its name
Sources = frozenset[Key]
Outputs = dict[Key, Sources]  # results and updated tensors

NOTHING: Sources = frozenset()


class Dependence:
    """Of the graphs of a program, each found out when it is asked for."""

    def __init__(self, verified: Verified):
        self.verified = verified
        self._known: dict[str, Outputs] = {}

    def of(self, graph: str, output: Key) -> Sources:
        """What a result depends on, or the value that the graph leaves in a named tensor."""
        if graph not in self._known:
            self._settle(graph)
        passed_through = frozenset((output,)) if isinstance(output, str) else NOTHING
        return self._known[graph].get(output, passed_through)

    def _settle(self, root: str) -> None:
        """The least solution: graphs may call each other in circles."""
        names = [n for n in reached_graphs([root], self.verified) if n not in self._known]
        self._known |= {name: {} for name in names}
        changing = True
        while changing:
            changing = False
            for name in reversed(names):
                found = _Pass(self, self.verified.graphs[name]).outputs()
                changing |= found != self._known[name]
                self._known[name] = found


class _Pass:
    """Once through a graph, with what is known of the others."""

    def __init__(self, known: Dependence, graph: VerifiedGraph):
        self.known = known
        self.tensors = known.verified.tensors
        self.graph = graph
        self.scope: dict[str, Sources] = {
            b.name.text: self._smooth(b.name.text, frozenset((k,)))
            for k, b in enumerate(graph.graph.inputs)
        }
        self.versions: dict[str, Sources] = {}

    def _smooth(self, name: str, sources: Sources) -> Sources:
        return sources if self.graph.types[name].dtype.may_be_float else NOTHING

    def _read(self, operand: Name | Literal) -> Sources:
        if isinstance(operand, Literal):
            return NOTHING
        found = self.scope.get(operand.text)
        return self._version(operand.text) if found is None else found

    def _version(self, tensor: str) -> Sources:
        found = self.versions.get(tensor)
        if found is None:
            is_float = self.tensors[tensor].type.dtype.is_float
            found = frozenset((tensor,)) if is_float else NOTHING
        return found

    def outputs(self) -> Outputs:
        updated: dict[str, Sources] = {}
        found: Outputs = {}
        graph = self.graph
        for statement, application in zip(graph.graph.body, graph.applications, strict=True):
            if isinstance(statement, Apply) and application is not None:
                for binding, sources in zip(
                    statement.results, self._applied(statement, application), strict=True
                ):
                    self.scope[binding.name.text] = self._smooth(binding.name.text, sources)
            elif isinstance(statement, Update):
                updated[statement.target.text] = self._read(statement.value)
            elif isinstance(statement, Return):
                found = {k: self._read(name) for k, name in enumerate(statement.values)}
        return found | self.versions | updated

    def _applied(self, statement: Apply, application: Application) -> list[Sources]:
        operands = [self._read(o) for o in statement.operands]
        if application.graph is not None:
            return self._called([application.graph.name.text], operands, len(statement.results))
        op: Any = application.op
        if not op.traits.host:
            joined = NOTHING if op.traits.constant else NOTHING.union(*operands)
            return [joined] * len(statement.results)
        if op.selects:
            branches = called_graphs(application.attrs)
            return self._called(branches, operands[1:], len(statement.results))
        return self._repeated(application.attrs["body"].name, operands)

    def _called(self, graphs: Iterable[str], operands: list[Sources], count: int) -> list[Sources]:
        """One of some graphs is called; tensors that it updates have other values then."""
        graphs = tuple(graphs)
        results = [self._joined(graphs, k, operands) for k in range(count)]
        updated = {t for g in graphs for t in self.known._known.get(g, {}) if isinstance(t, str)}
        self.versions |= {t: self._joined(graphs, t, operands) for t in updated}
        return results

    def _joined(self, graphs: Iterable[str], output: Key, operands: list[Sources]) -> Sources:
        return NOTHING.union(
            *(
                through(self.known.of(g, output), lambda k: operands[k], self._version)
                for g in graphs
            )
        )

    def _repeated(self, body: str, operands: list[Sources]) -> list[Sources]:
        """A loop: what a turn gives joins what the next one begins with, until nothing is new."""
        carried = list(operands)
        before = dict(self.versions)
        while True:
            turn = self._called([body], carried, len(carried))
            joined = [a | b for a, b in zip(carried, turn, strict=True)]
            for t in self.versions:
                self.versions[t] |= before.get(t) or frozenset((t,))
            if joined == carried and self.versions == before:
                return carried
            carried, before = joined, dict(self.versions)


def through(
    sources: Sources, operand: Callable[[int], Sources], tensor: Callable[[str], Sources]
) -> Sources:
    """What a callee's sources are to its caller."""
    return NOTHING.union(*(tensor(s) if isinstance(s, str) else operand(s) for s in sources))
