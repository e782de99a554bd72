"""Descriptions of ops before they run: the same words in workspace and timeline."""

from __future__ import annotations

from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Apply, Update
from opstep.runtime.ir.places import place_of
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Step

NAMED = 3  # ops of a fused step whose names are its name


class OpInfo(NamedTuple):
    """Of one step of a plan."""

    name: str  # conv2d; mul+add+relu of a fused step
    site: str  # frame and first result: main/features:p/c
    frame: str  # main/features:p
    graph: str  # graph whose text holds the statement
    file: str
    line: int  # from 1; 0 where the statement stands in no file
    statement: str  # of a fused step that of its last op
    operands: list[tuple[str, str]]  # names and types
    results: list[tuple[str, TensorType]]
    attrs: dict[str, Any]  # of a fused step the texts of its ops, their sites and FILE:LINE
    nbytes: int  # read and written
    flops: int


def describe(plan: Plan, step: Step) -> OpInfo:
    """A step of a plan, or an op of one that is several."""
    frame = plan.frames[step.frame]
    source = frame.source
    values = [plan.values[v] for v in step.operands if v is not None]
    results = [plan.values[v] for v in step.results]
    path = frame_path(plan, step.frame)
    types: list[Any] = [v.type for v in (*values, *results)]
    place = place_of(step.statement, source)
    name = op_name(step)
    return OpInfo(
        name,
        f"{path}/{results[0].name if results else name}",
        path,
        frame.graph.name.text,
        place.path,
        place.line,
        _text(step),
        [(v.name, str(v.type)) for v in values],
        [(v.name, v.type) for v in results],
        _about_members(plan, step) or {k: _plain(v) for k, v in step.attrs.items()},
        sum(t.nbytes for t in types),
        sum(map(_flops, step.members or (step,))),
    )


class Member(NamedTuple):
    """One of the ops that run as one: its statement, its op, its site, and FILE:LINE or ""."""

    statement: str
    op: str
    site: str
    place: str


_COLUMNS = ("ops", "names", "sites", "places")  # attributes that describe members, a list each


def _about_members(plan: Plan, step: Step) -> dict[str, Any]:
    columns = zip(*(_member(plan, s) for s in step.members), strict=True)
    return dict(zip(_COLUMNS, map(list, columns), strict=False))  # nothing of no members


def _member(plan: Plan, step: Step) -> Member:
    source = plan.frames[step.frame].source
    place = place_of(step.statement, source)
    return Member(
        _text(step),
        step.op.name,
        f"{frame_path(plan, step.frame)}/{_first_name(step)}",
        f"{place.path}:{place.line}" if place.line else "",
    )


def members_of(attrs: dict[str, Any]) -> list[Member]:
    """Those that a fused step's attributes describe; none of another op's, whatever their names."""
    columns = [attrs.get(key) for key in _COLUMNS]
    texts = [c for c in columns if isinstance(c, list) and all(isinstance(t, str) for t in c)]
    if len(texts) < len(columns) or len({len(c) for c in texts}) > 1:
        return []
    return [Member(*row) for row in zip(*texts, strict=True)]


def _first_name(step: Step) -> str:
    match step.statement:
        case Apply(results=[first, *_]):
            return first.name.text
        case Update(target=target):
            return target.text
    return step.op.name


def _text(step: Step) -> str:
    return print_statement(step.statement).strip()


def op_name(step: Step) -> str:
    """``conv2d``; of a fused step ``mul+add+relu``, or ``mul+add+sqrt and 9 more``."""
    if not step.members:
        return step.op.name
    names = [s.op.name for s in step.members]
    more = len(names) - NAMED
    return "+".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def frame_path(plan: Plan, frame: int) -> str:
    """``main/features:p``: from the plan's graph to the frame's, calls with their first result."""
    names = []
    while frame >= 0:
        graph, statement = plan.frames[frame].graph.name.text, plan.frames[frame].statement
        results = statement.results if isinstance(statement, Apply) else ()
        names.append(f"{graph}:{results[0].name.text}" if results else graph)
        frame = plan.frames[frame].parent
    return "/".join(reversed(names))


def call_name(plan: Plan, frame: int) -> str:
    """``skip1 = block``; in another call ``down:b1/full = block``: what a call is for, as ops are
    named, so that those of one graph are told apart. The plan's own graph is nobody's call here.
    """
    callee = plan.frames[frame]
    if callee.parent < 0:
        return callee.name
    around = frame_path(plan, callee.parent).partition("/")[2]
    results = callee.statement.results if isinstance(callee.statement, Apply) else ()
    name = f"{results[0].name.text} = {callee.name}" if results else callee.name
    return f"{around}/{name}" if around else name


def _flops(step: Step) -> int:
    if step.op.traits.host or step.op.family == "internal":
        return 0
    flops: Any = step.op.flops(*step.operand_types, **step.attrs)
    return int(flops)


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
