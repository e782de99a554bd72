"""What is told of NaNs and infinities: where they were born, and their way. Plain values, which the
hunt, the debuggers and the workspace read.
"""

from __future__ import annotations

from dataclasses import dataclass

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.frames import named
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.debugger.problems import Unwritten
from opstep.runtime.ir.graph import Assert, Source, Statement
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan.verdict import Verdict
from opstep.runtime.statistics import Statistics

ORIGIN, MASKED, UNINITIALISED, INTENDED = "origin", "masked", "uninitialised", "intended"
PROPAGATED, GIVEN = "propagated", "given"
MOST_CALLS = 8  # told of a way of calls


@dataclass(frozen=True)
class Where:
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


@dataclass(frozen=True)
class Operand:
    """What an op took in."""

    name: str
    type: TensorType
    statistics: Statistics


@dataclass(frozen=True)
class Link:
    """A value on the way of NaNs and infinities. `kind`: origin (elements were born in its op),
    propagated, or given (it came from outside; `op` is "" then, `where` None). Without `verdict`
    nobody asked, or it is finite.
    """

    value: str
    op: str
    where: Where | None
    kind: str = PROPAGATED
    verdict: Verdict | None = None
    operands: tuple[Operand | None, ...] = ()  # None: absent

    @property
    def bad(self) -> str:
        """nan, inf, or what else was hunted."""
        return "nan" if self.verdict is None else self.verdict.kind


@dataclass(frozen=True)
class PriorLoss(Link):
    """What lies behind a finding: an element that was lost without a sign, and how."""

    place: tuple[int, ...] = ()
    number: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Finding(Link):
    """One root. `kind`: origin, masked (no output shows it), uninitialised, or intended (an
    infinity that the program itself writes, or -inf given to it, and that does not come out).

    `given`: what it is that came from outside: an input, a param or state, a literal. `chain`: from
    here to the first output; `masked_by`: ops that took it in and gave finite results; `decided`:
    of those, whose result would be another without it, and reaches an output. `times`: executions
    of the statement that did this, `last` the last one. `before`: what was lost on the way to its
    operands. `position`: where the run stood. `saved`: the output is none of the model's, but kept
    for its backward.
    """

    given: str = ""
    type: str = ""
    unwritten: Unwritten | None = None
    chain: tuple[Link, ...] = ()
    masked_by: tuple[Link, ...] = ()
    output: str = ""
    position: int = 0
    decided: tuple[Link, ...] = ()
    times: int = 1
    last: str = ""
    intended: bool = False  # the program writes it, and yet it comes out
    before: PriorLoss | None = None
    saved: bool = False


def link_of(node: Node) -> Link:
    """A value and its op, which nobody judged."""
    producer = node.producer
    return Link(
        node.name, producer.op.name if producer else "", where(producer, node) if producer else None
    )


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
