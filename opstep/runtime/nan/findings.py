"""Findings on NaNs and infinities: where they were born, their way, and advice. Plain values, which
the hunt, the debuggers and the workspace read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from opstep.runtime.debugger.activation import Activation, Node, Producer
from opstep.runtime.debugger.line_mapping import text_on_disk
from opstep.runtime.debugger.python.stack import is_backward_graph
from opstep.runtime.debugger.rerun import Unwritten
from opstep.runtime.ir.graph import Apply, Assert, Name, Provenance, Statement, Update
from opstep.runtime.ir.places import phase_of, place_of
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan.batch import BatchRows
from opstep.runtime.nan.composites import Overflow
from opstep.runtime.nan.verdict import Element, Verdict
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
    """An operand of an op, as a report shows it."""

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
    """The places of the calls around a frame."""
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


# --- advice ---------------------------------------------------------------------------------------

# Functions whose slope is infinite where what is below their root is 0.
_ROOT = re.compile(r"(?<![a-z])(sqrt|norm|std|cdist|dist|pairwise_distance)\b")
_EDGE = re.compile(r"\b(acos|arccos|asin|arcsin|acosh|arccosh|atanh|arctanh)\b")  # at 1 and -1
# By what a rule says. Where a derivative broke it, those come first that are about derivatives.
_BACKWARD = (
    (
        r"0 times infinity",
        "0 times an infinity is undefined. Mend what made the infinity: it came first. A mask or a "
        "where behind that does not help, as its derivative multiplies by 0, too.",
    ),
)
_ADVICE = (
    (r".*epsilon is 0", "Give the op an epsilon above 0."),
    (
        r"log of 0: the labelled",
        "The score of the labelled class is -infinity: what masks scores must leave that one.",
    ),
    (
        r".*all (elements|scores)( of (the|a) row)? are -inf",
        "A row that is masked altogether has no maximum: leave one element unmasked.",
    ),
    (r".*label", "Labels must be class numbers, and at least one must not be ignored."),
    (
        r"0 / 0: (the (mean|variance) of|no more elements)",
        "There are too few elements to divide by their number: leave such groups out, or give them "
        "a value of their own. The variance of one element needs correction=0.",
    ),
    (
        r"log of 0",
        "The logarithm of 0 is -infinity. Add a small number, such as 1e-6, to the operand of the "
        "logarithm. If the operand is a softmax, use log_softmax or softmax_cross_entropy instead "
        "of both: they do not round to 0.",
    ),
    (r"log of a negative", "A logarithm has no value below 0: the operand must not be negative."),
    (
        r".*square root of a negative",
        "A square root has no value below 0. A variance computed as a difference of squares may "
        "come out slightly negative.",
    ),
    (
        r"0 / 0",
        "0 divided by 0 is undefined. Keep the divisor away from 0, or leave such elements out.",
    ),
    (
        r".*division by (0|a variance of 0)",
        "A number divided by 0 is infinite. Keep the divisor away from 0 by an epsilon.",
    ),
    (r"1 / (0|sqrt)", "The inverse of 0 is infinite. Keep the operand away from 0 by an epsilon."),
    (r".*inf / inf", "A quotient of infinities is undefined: find where the infinities come from."),
    (
        r".*inf - inf",
        "A difference of infinities is undefined: find where the infinities come from.",
    ),
    (
        r".*0 times infinity",
        "0 times an infinity is undefined. Multiplying by a mask does not remove infinities; use "
        "where instead.",
    ),
    (
        r"held: .*overflow of f16",
        "The result is beyond 65,504, the largest f16. Compute it in f32 or bf16, or scale it down "
        "first.",
    ),
    (
        r"held: .*overflow of",
        "The result is beyond the largest number of its type. A wider type, or smaller operands, "
        "would hold it.",
    ),
    (
        r".*overflow of",
        "The result is beyond the largest number of its type: operands must be smaller.",
    ),
    (
        r".*overflows on the way",
        "A number within the op is beyond the largest of its type: scale the operand down first.",
    ),
    (
        r"0 to a negative power",
        "0 to a negative power is infinite. Keep the operand away from 0 by an epsilon.",
    ),
    (r".*power", "Such a power has no real value."),
    (r".*defined", "The operand is outside the range in which the function has a value."),
)
_SLOPE = (
    "The slope of {0} at 0 is infinite: what stands below its root was 0. Add a small number, such "
    "as 1e-12, to that."
)
_AT_EDGE = (
    "The slope of {0} is infinite at the ends of the range in which it is defined: clamp its "
    "operand to a slightly smaller one, such as to 1 - 1e-6."
)


def advice(rule: str, backward: str = "", elements: Sequence[Element] = ()) -> str:
    """The meaning of a rule and what helps, "" where its own words are enough. `backward`: the
    statement whose derivative broke it. `elements`: some that did; only where those are finite when
    they are computed in f64 may a wider type help.
    """
    if re.match(r"1 / (0|sqrt)|0 / 0|.*division by 0", rule):
        if root := _ROOT.search(backward):
            return _SLOPE.format(root[0])
        if edge := _EDGE.search(backward):
            return _AT_EDGE.format(edge[0])
    exact = [e.exact for e in elements if e.rule == rule]
    if any(e is not None and isfinite(e) for e in exact):
        rule = f"held: {rule}" if re.match(r".*overflow of (?!f64)", rule) else rule
    table = _BACKWARD + _ADVICE if backward else _ADVICE
    return next((text for pattern, text in table if re.match(pattern, rule)), "")
