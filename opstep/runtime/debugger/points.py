"""Where a plan can stop: before each op, before a call of a graph, and where a graph returns.

Calls are inlined in a plan, so their points are found from the frames of its steps. Points stand
in the order of issue.
"""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.ir.graph import Return, Statement
from opstep.runtime.plan.plan import Call, Plan, Record, Run, Step, Wait

OP, CALL, RETURN = "op", "call", "return"


class Point(NamedTuple):
    """`depth`: frames of the plan around it. `step`: of an op, else -1. `waits` and `records` are
    the events on its stream before and behind the op; `births` the buffers that it writes first.
    """

    kind: str
    frame: int
    depth: int
    statement: Statement | None
    step: int = -1
    stream: int = 0
    waits: tuple[int, ...] = ()
    records: tuple[int, ...] = ()


class Issued(NamedTuple):
    """A step as it is issued, with the events that its stream waits for and records."""

    step: int
    stream: int
    waits: list[int]
    records: list[int]


class Points:
    """Of one plan. `entered[k]`: point k is the first of its frame's graph. `last_use`: the point
    behind which a value of the plan is not read any more.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.points: list[Point] = []
        self.entered: set[int] = set()
        self.last_use: dict[int, int] = {}
        self.keys: dict[int, tuple] = {}  # of steps, see `key`
        produced = {v for step in plan.steps for v in (*step.results, *step.changed)}
        kinds = [b.kind for b in plan.buffers]
        self.initial_tensors = [  # named tensors as the plan finds them: value, name
            (v, plan.buffers[value.buffer].name)
            for v, value in enumerate(plan.values)
            if v not in produced and kinds[value.buffer] in ("param", "status")
        ]
        self.named = dict(self.initial_tensors)  # and as its updates, and what it calls, leave them
        for step in plan.steps:
            for v in step.changed if step.op.traits.host else step.results:
                if not step.op.traits.reinterprets and kinds[plan.values[v].buffer] == "param":
                    self.named[v] = plan.buffers[plan.values[v].buffer].name
        self.calls = any(step.op.traits.host for step in plan.steps)  # has control flow
        self._depths = [0]
        for frame in plan.frames[1:]:
            self._depths.append(self._depths[frame.parent] + 1)
        self._lay_out()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, k: int) -> Point:
        return self.points[k]

    def key(self, step: Step) -> tuple:
        """What must be equal for two steps to compute the same from the same operands."""
        key = self.keys.get(id(step))
        if key is None:
            results = tuple(self.plan.values[v].type for v in step.results)
            attrs = repr(list(step.attrs.values())) if step.attrs else ""
            key = self.keys[id(step)] = (step.op, attrs, step.operand_types, results)
        return key

    def _lay_out(self) -> None:
        issued = self._with_views_first(self._issued())
        last = self._last(issued)
        frames, opened = self.plan.frames, {0}
        self.entered.add(0)
        for i, (number, stream, waits, records) in enumerate(issued):
            step = self.plan.steps[number]
            chain = self._chain(step.frame)
            for f in chain:
                if f not in opened:
                    opened.add(f)
                    parent = frames[f].parent
                    self._add(CALL, parent, frames[f].statement, stream=stream)
                    self.entered.add(len(self.points))
            for v in (*step.operands, *step.touched):
                if v is not None:
                    self.last_use[v] = len(self.points)
            self._add(OP, step.frame, step.statement, number, stream, waits, records)
            for f in reversed(chain):
                if last[f] == i and f:
                    self._add(RETURN, f, self._returning(f), stream=stream)
        self._add(RETURN, 0, self._returning(0))

    def _add(self, kind: str, frame: int, statement, step=-1, stream=0, waits=(), records=()):
        depth = self._depths[frame]
        self.points.append(
            Point(kind, frame, depth, statement, step, stream, tuple(waits), tuple(records))
        )

    def _issued(self) -> list[Issued]:
        """Steps in order of issue."""
        found: list[Issued] = []
        waits: list[int] = []
        for instruction in self.plan.instructions:
            match instruction:
                case Run(step, stream) | Call(step, stream):
                    found.append(Issued(step, stream, waits, []))
                    waits = []
                case Wait(event):
                    waits.append(event)
                case Record(event):
                    found[-1].records.append(event)
        return found

    def _with_views_first(self, issued: list[Issued]) -> list[Issued]:
        """The same, but where memory under another shape is read before the op that names it so: as
        that launches nothing, a plan may issue it at any time. Its events stay where they were.
        """
        plan, found = self.plan, []
        views = {plan.steps[e.step].results[0]: e for e in issued if _is_view(plan, e.step)}
        waits: dict[int, list[int]] = {}  # of each stream, what its next op waits for
        implied: dict[int, list[int]] = {}  # what who waits for an event relies on, too

        def name(value: int | None) -> None:
            chain = []
            while value in views:
                chain.append(views.pop(value))
                value = plan.steps[chain[-1].step].operands[0]
            found.extend(Issued(v.step, v.stream, [], []) for v in reversed(chain))

        for entry in issued:
            step = plan.steps[entry.step]
            if _is_view(plan, entry.step) and step.results[0] not in views:
                waits.setdefault(entry.stream, []).extend(entry.waits)
                more = [e for w in entry.waits for e in implied.get(w, ())]
                implied |= dict.fromkeys(entry.records, entry.waits + more)
                before = next((e for e in reversed(found) if e.stream == entry.stream), None)
                if before is not None:
                    before.records.extend(entry.records)
                continue
            for value in (*step.operands, *step.touched):
                name(value)
            if _is_view(plan, entry.step):
                views.pop(step.results[0])
            entry.waits[:0] = waits.pop(entry.stream, [])
            entry.waits.extend([e for w in entry.waits for e in implied.get(w, ())])
            found.append(entry)
        return found

    def _last(self, issued) -> dict[int, int]:
        """For each frame, the last place in the order where an op of it, or of a call in it, is."""
        last: dict[int, int] = {}
        frames = self.plan.frames
        for i, (number, *_) in enumerate(issued):
            f = self.plan.steps[number].frame
            while f > 0:
                last[f] = i
                f = frames[f].parent
        return last | {0: -1}

    def _chain(self, frame: int) -> list[int]:
        """The frames around, from the outermost but for the plan's own."""
        chain = []
        while frame > 0:
            chain.append(frame)
            frame = self.plan.frames[frame].parent
        return chain[::-1]

    def _returning(self, frame: int) -> Statement | None:
        body = self.plan.frames[frame].graph.body
        return body[-1] if body and isinstance(body[-1], Return) else None


def _is_view(plan: Plan, step: int) -> bool:
    return plan.steps[step].op.traits.reinterprets
