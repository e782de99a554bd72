"""What a hunt finds, and where that stands: plain values, made by `tracing`."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.frames import named
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.watching import Unwritten
from opstep.runtime.ir.graph import Assert, Source, Statement
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.nan.verdict import Verdict
from opstep.runtime.statistics import Statistics

ORIGIN, MASKED, UNINITIALISED, INTENDED = "origin", "masked", "uninitialised", "intended"
PROPAGATED = "propagated"
MOST_CALLS = 8  # told of a way of calls


class Where(NamedTuple):
    """The place of an op: the graph with the turn of its loop; file and line of its statement, and
    of the source that it was imported from. `calls`: the way there, ``main → normed at a.opg:31``.
    `backward`: the statement, at that line, whose derivative the op belongs to.
    """

    graph: str
    path: str
    line: int
    text: str
    imported: str
    calls: str = ""
    backward: str = ""


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


class Before(NamedTuple):
    """What lies behind a finding: an element that was lost without a sign, and how."""

    value: str
    op: str
    where: Where
    place: tuple[int, ...]
    number: float
    text: str


class Finding(NamedTuple):
    """One root. `kind`: origin, masked (no output shows it), uninitialised, or intended (an
    infinity that the program itself writes, or -inf given to it, and that does not come out).

    `bad`: nan or inf. `op`: "" for what came from outside, then `given` says what it is: an input,
    a param or state, a literal. `chain`: from here to the first output; `masked_by`: ops that took
    it in and gave finite results; `decided`: of those, whose result would be another without it,
    and reaches an output. `times`: executions of the statement that did this, `last` the last one.
    `before`: what was lost on the way to its operands.
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
    decided: tuple[Link, ...] = ()
    times: int = 1
    last: str = ""
    intended: bool = False  # the program writes it, and yet it comes out
    before: Before | None = None


def where(producer: Producer, node: Node | None = None) -> Where:
    """The place of an execution."""
    plan, step = producer.plan, producer.step
    graph = plan.frames[step.frame].graph.name.text
    shown, calls = graph, ""
    if node is not None and node.home is not None and node.home[0].plan is plan:
        shown = named(node.home[0], step.frame)
        calls = _calls(node.home[0], step.frame)
    statement = step.statement
    path, line, backward = _line(statement, plan.sources.get(graph))
    at = None if isinstance(statement, Assert) else getattr(statement, "at", None)
    imported = f"{at.file}:{at.line}" if at else ""
    return Where(shown, path, line, print_statement(statement).strip(), imported, calls, backward)


def _line(statement: Statement, source: Source | None) -> tuple[str, int, str]:
    """File and line; of a gradient's statement those of the one that it was made for."""
    derived_from = getattr(statement, "derived_from", None)
    backward = ""
    if derived_from is not None:
        source, statement = derived_from.source, derived_from.statement
        backward = print_statement(statement).strip() if derived_from.backward else ""
    line = source.locate(statement.span.start)[0] if source and statement.span.end else 0
    return source.path if source and line else "", line, backward


def _calls(activation: Activation, frame: int) -> str:
    """The way of calls to a frame, from the graph that is run; "" where that is the graph."""
    way = []
    at: Activation | None = activation
    while at is not None:
        plan = at.plan
        while plan.frames[frame].parent >= 0:
            inner = plan.frames[frame]
            way.append(_call(named(at, frame), plan, inner.statement, inner.parent))
            frame = inner.parent
        if at.parent is None:
            way.append(named(at, frame))
            break
        calling = at.parent.points[at.call]
        way.append(_call(named(at, frame), at.parent.plan, calling.statement, calling.frame))
        at, frame = at.parent, calling.frame
    if len(way) > MOST_CALLS:
        way[MOST_CALLS // 2 : -MOST_CALLS // 2] = ["…"]
    return " → ".join(way[::-1]) if len(way) > 1 else ""


def _call(name: str, plan, statement, frame: int) -> str:
    path, line, _ = _line(statement, plan.sources.get(plan.frames[frame].graph.name.text))
    return f"{name} at {path.rpartition('/')[2]}:{line}" if line else name
