"""A plan as its text shows it: what each step reads and writes, without ops and launches.

This is what the hazard checker works on, whether it was made from a plan or read from a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opstep.runtime.ir.diagnostics import visible
from opstep.runtime.ir.graph import Apply, Assert, Literal, Source, Update
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.plan.plan import Instruction, Plan, Policy, Step

NOTHING = -1  # as a value: bytes that mean something to one op only, its workspace


class Access(NamedTuple):
    """A buffer, and the value that a reader expects there or a writer leaves there."""

    buffer: int
    value: int


class BufferRow(NamedTuple):
    """One buffer; see `Buffer`.

    `label`: a named tensor's name or a const's number. `holds`: the value that is there before the
    run starts, `NOTHING` for temps.
    """

    kind: str
    nbytes: int
    offset: int
    label: str
    holds: int


class StepRow(NamedTuple):
    """One step: what it says, in which frame and line, and what it reads and writes."""

    label: str
    frame: int
    where: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


class FrameRow(NamedTuple):
    """One activation of a graph; `parent` is -1 for the run's own."""

    graph: str
    parent: int
    where: str


@dataclass(slots=True)
class Listing:
    """A whole plan."""

    graph: str
    source: str
    policy: Policy
    streams: int
    events: int
    arena: int
    peak: int
    start: tuple[int, ...]
    finish: tuple[int, ...]
    frames: list[FrameRow]
    buffers: list[BufferRow]
    steps: list[StepRow]
    outputs: tuple[Access, ...]
    instructions: list[Instruction]


def listing(plan: Plan) -> Listing:
    """The listing of a plan."""
    return _Lister(plan).listing()


class _Lister:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.buffer_of = [v.buffer for v in plan.values]
        self.root = self._roots()
        self.sources = [f.source for f in plan.frames]

    def _roots(self) -> list[int]:
        """For each value the one whose bytes it is: a reinterpretation writes none of its own."""
        root = list(range(len(self.plan.values)))
        for step in self.plan.steps:
            if step.op.traits.reinterprets and step.operands[0] is not None:
                for r in step.results:
                    root[r] = root[step.operands[0]]
        return root

    def listing(self) -> Listing:
        plan = self.plan
        source = self.sources[0] if self.sources else None
        return Listing(
            graph=plan.graph,
            source=_path(source),
            policy=plan.policy,
            streams=plan.streams,
            events=plan.events,
            arena=plan.arena,
            peak=plan.peak,
            start=plan.start,
            finish=plan.finish,
            frames=self._frames(),
            buffers=self._buffers(),
            steps=[self._step(s) for s in plan.steps],
            outputs=tuple(self._access(v) for v in plan.outputs),
            instructions=plan.instructions,
        )

    def _access(self, value: int) -> Access:
        return Access(self.buffer_of[value], self.root[value])

    def _buffers(self) -> list[BufferRow]:
        """A buffer holds its first value at first, for values are numbered as they arise."""
        holds: dict[int, int] = {}
        for value, buffer in enumerate(self.buffer_of):
            holds.setdefault(buffer, value)
        rows = []
        for b, buffer in enumerate(self.plan.buffers):
            label = repr(buffer.literal) if buffer.kind == "const" else buffer.name
            if buffer.kind == "param":
                label = quote_name(label)
            first = NOTHING if buffer.kind == "temp" else holds.get(b, NOTHING)
            if buffer.kind == "input" and first >= 0:
                label = self.plan.values[first].name
            rows.append(BufferRow(buffer.kind, buffer.nbytes, buffer.offset, label, first))
        return rows

    def _step(self, step: Step) -> StepRow:
        reads = dict.fromkeys(map(self._access, step.values_read))
        writes = list(map(self._access, step.values_written))
        if step.workspace >= 0:
            writes.append(Access(step.workspace, NOTHING))
        where = self._where(step.frame, step.statement)
        if step.members:
            where = self._lines(step.members)
        return StepRow(self._label(step), step.frame, where, tuple(reads), tuple(writes))

    def _label(self, step: Step) -> str:
        """The statement without its attributes."""
        statement = step.statement
        if isinstance(statement, Apply) and step.op.name == statement.callee.text:
            operands = ", ".join(
                [
                    repr(o.value) if isinstance(o, Literal) else quote_name(o.text)
                    for o in statement.operands
                ]
            )
            call = f"{step.op.name}({operands})"
            results = ", ".join([b.name.text for b in statement.results])
            return f"{results} = {call}" if results else call
        if isinstance(statement, Assert) and step.op.name == "assert":
            return f"assert {quote_name(statement.condition.text)}"
        if isinstance(statement, Update) and step.op.name == "update":
            value = statement.value
            text = repr(value.value) if isinstance(value, Literal) else quote_name(value.text)
            return f"{quote_name(statement.target.text)} <- {text}"
        names = self.plan.values
        results = ", ".join([names[v].name for v in step.results])
        if step.members:
            return f"{results} = {step.op.name}({', '.join(s.op.name for s in step.members)})"
        operands = ", ".join([names[v].name for v in step.operands if v is not None])
        return f"{results} = {step.op.name}({operands})"

    def _frames(self) -> list[FrameRow]:
        rows = []
        for frame in self.plan.frames:
            call = frame.statement
            where = "" if call is None else self._where(frame.parent, call)
            rows.append(FrameRow(frame.name, frame.parent, where))
        return rows

    def _lines(self, steps: Sequence[Step]) -> str:
        """``lines 3, 7``: those of all steps, each once."""
        found = list(dict.fromkeys(self._where(s.frame, s.statement) for s in steps))
        if len(found) > 1 and all(where.startswith("line ") for where in found):
            return "lines " + ", ".join(where.removeprefix("line ") for where in found)
        return ", ".join(found)

    def _where(self, frame: int, statement) -> str:
        """``line 12``, with the path before it where it is another file than the plan's."""
        source = self.sources[frame]
        if source is None:
            return "no line"
        line, _ = source.locate(statement.span.start)
        if source is self.sources[0] or source.path == _path(self.sources[0]):
            return f"line {line}"
        return f"{_path(source)} line {line}"


def _path(source: Source | None) -> str:
    return visible(source.path) if source else ""
