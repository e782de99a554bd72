"""Findings on NaNs and infinities: where they were born, and their way. Plain values, which the
hunt, the debuggers and the workspace read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opstep.runtime.debugger.activation import Activation, Node, Producer
from opstep.runtime.debugger.line_mapping import text_on_disk
from opstep.runtime.debugger.python.stack import is_backward_graph
from opstep.runtime.debugger.rerun import Unwritten
from opstep.runtime.ir.graph import Apply, Assert, Name, Provenance, Statement, Update
from opstep.runtime.ir.places import phase_of, place_of
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan.batch import BatchRows
from opstep.runtime.nan.verdict import Verdict
from opstep.runtime.nan.within import Overflow
from opstep.runtime.statistics import Statistics

ORIGIN, MASKED, UNINITIALISED, INTENDED = "origin", "masked", "uninitialised", "intended"
PROPAGATED, GIVEN = "propagated", "given"
MOST_CALLS = 8  # shown of a way of calls


@dataclass(frozen=True)
class Where:
    """The place of an op: the graph with the turn of its loop; file and line of its statement, and
    of the source that it was imported from. `calls`: the way there, ``main → normed at a.opg:31``;
    `through`: file and line of each of these calls, inner ones first.
    `backward`: the statement, or the line of Python, whose derivative the op belongs to. `phase`:
    the part of a gradient, forward or backward, that it stands in or is called from, "" where it is
    in none; `target`: outside of gradients, the named tensor that the graphs around it give a new
    value.
    """

    graph: str
    path: str
    line: int
    text: str
    imported: str
    calls: str = ""
    backward: str = ""
    phase: str = ""
    target: str = ""
    through: tuple[tuple[str, int], ...] = ()


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
    """The cause before a finding: an element that was lost without a sign, and how."""

    place: tuple[int, ...] = ()
    number: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Finding(Link):
    """One root. `kind`: origin, masked (no output shows it), uninitialised, or intended (an
    infinity that the program itself writes or is given, and that does no harm).

    `given`: what it is that came from outside: an input, a param or state, a literal. `chain`: from
    here to the first output; `masked_by`: ops that took it in and gave finite results; `decided`:
    of those, whose result would be another without it, and reaches an output. `times`: executions
    of the statement that did this, `last` the last one. `before`: what was lost on the way to its
    operands. `position`: where the run stood. `saved`: the output is none of the model's, but kept
    for its backward. `rows`: of a batch those that its elements come from, in a step of training.
    `infinity`: one of the program's own that NaNs were made of here. `within`: the first overflow
    on the way in a composite.
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
    intended: bool = False  # the program writes it or is given it, and yet it does harm
    before: PriorLoss | None = None
    saved: bool = False
    rows: BatchRows | None = None
    infinity: Finding | None = None
    within: Overflow | None = None

    @property
    def over_ranks(self) -> bool:
        """Whether it came from another rank, `given`, over the collective `op`."""
        return bool(self.given and self.op)

    @property
    def phase(self) -> str:
        """Of a step of training: data, state, forward, backward or update."""
        if self.given and not self.over_ranks:
            return "data" if self.given.startswith("input") else "state"
        return (self.where.phase if self.where else "") or "update"


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
    shown, calls, phase, target, through = graph, "", "", "", ()
    statement = step.statement
    if node is not None and node.home is not None and node.home[0].plan is plan:
        shown = node.home[0].frame_name(step.frame)
        calls = _calls(node.home[0], step.frame)
        phase, target = part_of(node.home[0], step.frame, statement)
        through = tuple(_through(node.home[0], step.frame))
    path, line, backward = place_of(statement, plan.frames[step.frame].source)
    at = None if isinstance(statement, Assert) else getattr(statement, "at", None)
    if at is None and calls and node is not None and node.home is not None:
        at = _imported(node.home[0], step.frame)
    imported = f"{at.file}:{at.line}" if at and (at.file, at.line) != (path, line) else ""
    if at and not backward and (at.is_backward or is_backward_graph(plan.frames[step.frame].graph)):
        backward = _line_of(at) or f"{at.file}:{at.line}"
    text = print_statement(statement).strip()
    return Where(shown, path, line, text, imported, calls, backward, phase, target, through)


def _line_of(at: Provenance) -> str:
    """A line of Python, as far as the file is there and has it."""
    lines = (text_on_disk(at.file) or "").split("\n")
    return lines[at.line - 1].strip() if at.line <= len(lines) else ""


def part_of(activation: Activation, frame: int, statement: Statement | None) -> tuple[str, str]:
    """The phase of a statement, and the named tensor that is updated by it or a call around it."""
    target, inner = "", (activation, frame, statement)
    for at, number, around in (inner, *_around(activation, frame)):
        graph = at.plan.frames[number].graph
        if phase := phase_of(around, graph):
            return phase, ""
        results = {b.name.text for b in getattr(around, "results", ())}
        updates = [s for s in graph.body if isinstance(s, Update)]
        names = (u.target.text for u in updates if getattr(u.value, "text", "") in results)
        target = target or next(names, "")
    return "", target


def _around(at: Activation, frame: int) -> Iterator[tuple[Activation, int, Statement | None]]:
    """The calls around a frame, inner ones first, each with the frame that it stands in."""
    while (found := at.caller(frame)) is not None:
        yield found
        at, frame, _ = found


def _imported(activation: Activation, frame: int) -> Provenance | None:
    """The line of Python that calls a graph that has none itself, as one that the importer wrote
    for a recurrent layer; that of the model rather than that of PyTorch's module.
    """
    around = (s for _, _, s in _around(activation, frame))
    found = [s.at for s in around if isinstance(s, Apply) and s.at]
    return next((at for at in found if "torch/nn/modules/" not in at.file), (*found, None)[0])


def _calls(activation: Activation, frame: int) -> str:
    """The way of calls to a frame, from the graph that is run; "" where that is the graph."""
    way, name = [], activation.frame_name(frame)
    for at, outer, statement in _around(activation, frame):
        way.append(_call(name, at.plan, statement, outer))
        name = at.frame_name(outer)
    way.append(name)
    if len(way) > MOST_CALLS:
        way[MOST_CALLS // 2 : -MOST_CALLS // 2] = ["…"]
    return " → ".join(way[::-1]) if len(way) > 1 else ""


def _through(activation: Activation, frame: int) -> Iterator[tuple[str, int]]:
    """Where the calls around a frame are written."""
    for at, outer, statement in _around(activation, frame):
        path, line = _place(at.plan, statement, outer)
        if line:
            yield path, line


def _place(plan, statement, frame: int) -> tuple[str, int]:
    path, line, _ = place_of(statement, plan.frames[frame].source)
    return path, line


def _call(name: str, plan, statement, frame: int) -> str:
    path, line = _place(plan, statement, frame)
    return f"{name} at {path.rpartition('/')[2]}:{line}" if line else name


def operand_names(producer: Producer) -> list[str]:
    """The operands' names as the statement has them: a graph's inputs have others outside."""
    statement = producer.step.statement
    operands = statement.operands if isinstance(statement, Apply) else ()
    names = [o.text if isinstance(o, Name) else "" for o in operands]
    return names + [""] * (len(producer.operands) - len(names))
