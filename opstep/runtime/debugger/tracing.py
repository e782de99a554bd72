"""Follows NaNs and infinities through one step that the debugger's machine runs: where each was
born, which way it went, and whether it came out.

A *root* is a result with elements that no operand accounts for, a result that its op did not
write, or a value from outside. From results to the operands that their bad elements came through,
or that caused them, there are edges; so whether a root reaches an output, and how, is a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.frames import named
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.points import OP
from opstep.runtime.debugger.verdict import Element, Verdict, judge
from opstep.runtime.debugger.watching import Unwritten, unwritten
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Apply, Assert, Name, Source
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.statistics import Statistics

INF = float("inf")
ORIGIN, MASKED, UNINITIALISED, INTENDED = "origin", "masked", "uninitialised", "intended"
PROPAGATED = "propagated"


class Where(NamedTuple):
    """The place of an op: the graph with the turn of its loop; file and line of its statement, and
    of the source that it was imported from.
    """

    graph: str
    path: str
    line: int
    text: str
    imported: str


class Link(NamedTuple):
    """A value on the way from a root to an output."""

    value: str
    op: str
    where: Where | None


class Operand(NamedTuple):
    """What an op took in."""

    name: str
    type: str
    statistics: Statistics


class Finding(NamedTuple):
    """One root. `kind`: origin, masked (no output shows it), uninitialised, or intended (an
    infinity that the program itself writes, or -inf given to it).

    `bad`: nan or inf. `op`: "" for what came from outside, then `given` says what it is: an input,
    a param or state, a literal. `chain`: from here to the first output; `masked_by`: ops that took
    it in and gave finite results.
    """

    kind: str
    bad: str
    value: str
    op: str
    given: str
    type: str
    where: Where | None
    verdict: Verdict | None
    unwritten: Unwritten | None
    operands: tuple[Operand | None, ...]  # None: absent
    chain: tuple[Link, ...]
    masked_by: tuple[Link, ...]
    output: str
    position: int


class _Root(NamedTuple):
    node: Node
    verdict: Verdict | None
    unwritten: Unwritten | None
    given: str
    intended: bool
    position: int


class Trace:
    """Listens to a machine while it runs a step."""

    def __init__(self, machine: Machine, skip_infinities: bool = False):
        self.machine = machine
        self.skip = skip_infinities
        self.roots: list[_Root] = []
        self.bad: dict[int, tuple[bool, bool]] = {}  # by id of a node: NaN, infinities
        self.forward: dict[int, list[tuple[Node, bool]]] = {}  # who took it in: carried or caused
        self.swallowed: dict[int, list[Node]] = {}  # results of who took it in, that are finite
        self._nodes: dict[int, Node] = {}  # ids stay unique while their nodes live
        self.propagated: list[tuple[Node, Verdict]] = []
        self.error: OpstepError | None = None  # what ended the step

    def run(self) -> None:
        """Runs the machine to the end of its step, or to an error of it."""
        try:
            self._run()
        except OpstepError as error:
            self.error = error

    def _run(self) -> None:
        machine = self.machine
        for node in machine.inputs:
            self._outside(node, f"input {node.name}")
        while (here := machine.here()) is not None:
            activation, point = here
            machine.forward()
            step = activation.plan.steps[point.step] if point.kind == OP else None
            if step is not None and not step.op.host and step.op.family != "internal":
                node = activation.env[step.results[0]][1]
                if node.producer is not None:
                    self.after(node.producer)

    def after(self, producer: Producer) -> None:
        """What an op gave."""
        executor, step = self.machine.executor, producer.step
        taken = [self._given(o) for o in producer.operands]
        left = {id(u.node): u for u in unwritten(executor, producer)}
        arrays: tuple[list, list] | None = None
        for k, node in enumerate(producer.results):
            found = self._looked_at(node)
            missing = left.get(id(node))
            if missing:
                self._root(_Root(node, None, missing, "", False, self.machine.frontier))
            if not any(found):
                for operand, odd in zip(producer.operands, taken, strict=True):
                    if operand is not None and any(odd):
                        self.swallowed.setdefault(id(operand), []).append(node)
                continue
            if missing and not any(any(t) for t in taken):
                continue
            if arrays is None:
                arrays = (
                    [None if o is None else executor.array(o) for o in producer.operands],
                    [executor.array(r) for r in producer.results],
                )
            self._judged(producer, node, judge(step, *arrays, k), missing)

    def _judged(self, producer: Producer, node: Node, verdict: Verdict | None, missing) -> None:
        if verdict is None:
            return
        for j in verdict.carried:
            self._edge(producer.operands[j], node, True)
        for j in verdict.caused:
            self._edge(producer.operands[j], node, False)
        if verdict.is_origin and not missing and not (self.skip and verdict.kind == "inf"):
            intended = verdict.kind == "inf" and _writes_infinities(producer)
            self._root(_Root(node, verdict, None, "", intended, self.machine.frontier))
        elif not missing:
            self.propagated.append((node, verdict))

    # --- values ---

    def _looked_at(self, node: Node) -> tuple[bool, bool]:
        found = self.bad.get(id(node))
        if found is None:
            nan, inf = self.machine.executor.odd(node)
            found = self.bad[id(node)] = (nan, inf and not self.skip)
            self._nodes[id(node)] = node
        return found

    def _given(self, operand: Node | None) -> tuple[bool, bool]:
        """Of an operand; where it came from outside, it may be a root."""
        if operand is None:
            return False, False
        known = id(operand) in self.bad
        found = self._looked_at(operand)
        if not known and operand.producer is None and any(found):
            tensors = self.machine.host.tensors
            if operand.name in tensors:
                self._outside(operand, f"{tensors[operand.name].kind} {operand.name}")
            else:
                self._outside(operand, f"literal {operand.name}")
        return found

    def _outside(self, node: Node, given: str) -> None:
        nan, inf = self._looked_at(node)
        if not (nan or inf):
            return
        array = self.machine.executor.array(node)
        below = not nan and not (array == INF).any()
        declared = given.startswith(("literal", "state")) and not nan
        verdict = _seen(array, "nan" if nan else "inf")
        self._root(_Root(node, verdict, None, given, below or declared, self.machine.base))

    def _root(self, root: _Root) -> None:
        self._nodes[id(root.node)] = root.node
        self.roots.append(root)

    def _edge(self, source: Node | None, target: Node, carried: bool) -> None:
        if source is not None:
            self.forward.setdefault(id(source), []).append((target, carried))

    # --- what became of it ---

    def findings(self) -> list[Finding]:
        """All roots: what reaches an output first, in the order of the run; then the rest."""
        ends = self._ends()
        found = [self._finding(root, ends) for root in self.roots]
        rank = {ORIGIN: 0, UNINITIALISED: 0, MASKED: 1, INTENDED: 2}
        return sorted(found, key=lambda f: (rank[f.kind], f.position))

    def _ends(self) -> dict[int, str]:
        """Where values leave the step: outputs, and named tensors that it updates."""
        machine = self.machine
        ends: dict[int, str] = {}
        for name, versions in machine.named.items():
            if name and len(versions) > 1:
                node = versions[-1][1]
                ends[id(node)] = name
                if node.producer is not None and node.producer.op.name == "update":
                    ends[id(node.producer.operands[0])] = name  # what was converted
        if machine.finished:
            last = machine.finished[-1][1].plan
            for v, node in zip(last.outputs, machine.outputs(), strict=True):
                ends[id(node)] = last.values[v].name
        return ends

    def _finding(self, root: _Root, ends: dict[int, str]) -> Finding:
        path = self._path(root, ends)
        kind = UNINITIALISED if root.unwritten else INTENDED if root.intended else ORIGIN
        if kind == ORIGIN and not path and self.error is None:  # else nothing came out at all
            kind = MASKED
        node, producer = root.node, root.node.producer
        masked = [] if path else self._maskers(root)
        operands = ()
        if producer is not None:
            operands = tuple(map(self._operand, producer.operands, _written(producer)))
        verdict = root.verdict
        return Finding(
            kind, "nan" if verdict is None else verdict.kind, node.name,
            "" if producer is None else producer.op.name, root.given, str(node.type),
            self._where(node), verdict, root.unwritten, operands,
            tuple(self._link(n) for n in path), tuple(self._link(n) for n in masked),
            ends.get(id(path[-1]), "") if path else "", root.position,
        )  # fmt: skip

    def _operand(self, node: Node | None, name: str) -> Operand | None:
        if node is None:
            return None
        return Operand(name or node.name, str(node.type), self.machine.executor.statistics(node))

    def _path(self, root: _Root, ends: dict[int, str]) -> list[Node]:
        """The shortest way to where values leave. What was intended only counts as what it is: a
        NaN that it causes is that op's doing.
        """
        came: dict[int, Node | None] = {id(root.node): None}
        queue = [root.node]
        for node in queue:
            if id(node) in ends:
                way: list[Node] = []
                at: Node | None = node
                while at is not None:
                    way.append(at)
                    at = came[id(at)]
                return way[::-1]
            for target, carried in self.forward.get(id(node), ()):
                if (carried or not root.intended) and id(target) not in came:
                    came[id(target)] = node
                    queue.append(target)
        return []

    def _maskers(self, root: _Root) -> list[Node]:
        seen, queue, found = {id(root.node)}, [root.node], []
        for node in queue:
            found += self.swallowed.get(id(node), [])
            for target, _ in self.forward.get(id(node), ()):
                if id(target) not in seen:
                    seen.add(id(target))
                    queue.append(target)
        return list({id(n): n for n in found}.values())[:8]

    # --- words ---

    def links(self) -> Iterable[tuple[Link, Verdict]]:
        """Values whose NaNs and infinities only came through."""
        return ((self._link(node), verdict) for node, verdict in self.propagated)

    def _link(self, node: Node) -> Link:
        return Link(node.name, "" if node.producer is None else node.producer.op.name,
                    self._where(node))  # fmt: skip

    def _where(self, node: Node) -> Where | None:
        if node.producer is None:
            return None
        return where(node.producer, node)


def finding_on(machine: Machine, node: Node) -> Finding | None:
    """On a value where a run stands, without what comes of it later: origin, uninitialised or
    propagated; None where it is finite and was written. For those who stop at a NaN.
    """
    trace, executor, producer = Trace(machine), machine.executor, node.producer
    position = machine.cursor
    if producer is None:
        trace._outside(node, f"given {node.name}")
        return trace._finding(trace.roots[0], {id(node): node.name}) if trace.roots else None
    for one in unwritten(executor, producer) if machine.policy.fill == "nan" else ():
        if one.node is node:
            return trace._finding(_Root(node, None, one, "", False, position), {})
    arrays = [None if o is None else executor.array(o) for o in producer.operands]
    results = [executor.array(r) for r in producer.results]
    verdict = judge(producer.step, arrays, results, node.index)
    if verdict is None:
        return None
    found = trace._finding(_Root(node, verdict, None, "", False, position), {id(node): node.name})
    return found if verdict.is_origin else found._replace(kind=PROPAGATED)


def where(producer: Producer, node: Node | None = None) -> Where:
    """The place of an execution."""
    plan, step = producer.plan, producer.step
    graph = plan.frames[step.frame].graph.name.text
    source: Source | None = plan.sources.get(graph)
    shown = graph
    if node is not None and node.home is not None and node.home[0].plan is plan:
        shown = named(node.home[0], step.frame)
    statement = step.statement
    line = source.locate(statement.span.start)[0] if source and statement.span.end else 0
    at = None if isinstance(statement, Assert) else getattr(statement, "at", None)
    imported = f"{at.file}:{at.line}" if at else ""
    text = print_statement(statement).strip()
    return Where(shown, source.path if source and line else "", line, text, imported)


def _written(producer: Producer) -> list[str]:
    """The operands' names as the statement has them: a graph's inputs have others outside."""
    statement = producer.step.statement
    given = statement.operands if isinstance(statement, Apply) else ()
    names = [o.text if isinstance(o, Name) else "" for o in given]
    return names + [""] * (len(producer.operands) - len(names))


def _seen(array: np.ndarray, kind: str) -> Verdict:
    """On a value from outside: its bad elements."""
    mask = ~np.isfinite(array)
    places = [tuple(map(int, p)) for p in np.argwhere(mask)[:8]]
    told = tuple(Element(p, float(array[p]), "given", None, ()) for p in places)
    count = int(mask.sum())
    return Verdict(kind, count, array.size, count, (("given", count),), told)


def _writes_infinities(producer: Producer) -> bool:
    """Whether an attribute says so: a fill value, a limit."""
    return any(isinstance(a, float) and abs(a) == INF for a in producer.step.attrs.values())
