"""A plan inside a plan: streams are bound to others, called plans put where they are called.

A plan may name streams in four places: its instructions, `start`, `finish` and its count. All four
are bound together, by `rebind` and nowhere else. A list of streams taken before they were bound
would order the wrong ones, and the plan would still run: that is a bug which only the hazard
checker sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opstep.runtime.plan.packing import rounded
from opstep.runtime.plan.plan import (
    Alloc,
    Call,
    Fill,
    Free,
    Instruction,
    Plan,
    Record,
    Run,
    Step,
    Sync,
    Value,
    Wait,
)


def rebind(plan: Plan, streams: Sequence[int]) -> Plan:
    """The plan with ``streams[k]`` in the place of stream k, everywhere."""
    if len(streams) < plan.streams:
        raise ValueError(f"the plan has {plan.streams} streams, and {len(streams)} are given")
    return replace(
        plan,
        instructions=[i._replace(stream=streams[i.stream]) for i in plan.instructions],
        start=tuple(dict.fromkeys(streams[s] for s in plan.start)),
        finish=tuple(dict.fromkeys(streams[s] for s in plan.finish)),
        streams=max(streams[: plan.streams], default=-1) + 1,
    )


def compose(parent: Plan, step: int, called: Plan, inputs: Sequence[int] | None = None) -> Plan:
    """`parent` with `called` run, once, within the call that is its step `step`.

    `called` must already be bound to the parent's streams (see `rebind`). Its inputs are the
    parent's values `inputs`: by default the call's last operands. The streams in its `start` wait
    for the stream of the call, and that waits for those in its `finish`; then the call itself takes
    the outputs.
    """
    return _Composition(parent, step, called, inputs).plan()


class _Composition:
    def __init__(self, parent: Plan, step: int, called: Plan, inputs: Sequence[int] | None):
        self.parent = parent
        self.called = called
        self.step = step
        self.call = parent.steps[step]
        if inputs is None:
            operands = [v for v in self.call.operands if v is not None]
            inputs = operands[len(operands) - len(called.inputs) :]
        if len(inputs) != len(called.inputs):
            raise ValueError(f"{called.graph} takes {len(called.inputs)} inputs, not {len(inputs)}")
        self.buffers = list(parent.buffers)
        self.values = list(parent.values)
        self.base = rounded(parent.arena)  # where the called plan's arena begins
        self.buffer_of = self._map_buffers(inputs)
        self.value_of = self._map_values(inputs)

    def plan(self) -> Plan:
        parent, called = self.parent, self.called
        steps = [*parent.steps, *map(self._step, called.steps)]
        steps[self.step] = self._call_step()
        instructions, events = self._instructions()
        frames, base = list(parent.frames), len(parent.frames)
        for frame in called.frames:
            outer = self.call.frame if frame.parent < 0 else frame.parent + base
            statement = self.call.statement if frame.parent < 0 else frame.statement
            frames.append(frame._replace(parent=outer, statement=statement))
        return replace(
            parent,
            values=self.values,
            buffers=self.buffers,
            steps=steps,
            frames=frames,
            instructions=instructions,
            streams=max(parent.streams, called.streams),
            events=events,
            arena=self.base + called.arena,
            peak=parent.peak + called.peak,
            scopes=[
                *parent.scopes,
                *({n: self.value_of[v] for n, v in s.items()} for s in called.scopes),
            ],
            sources=called.sources | parent.sources,
            commits=0,  # others stand behind the parent's
        )

    # --- memory ---

    def _map_buffers(self, inputs: Sequence[int]) -> list[int]:
        """For each buffer of the called plan its id in the composed one; some are the parent's."""
        parent, called = self.parent, self.called
        shared = {(b.kind, b.name): k for k, b in enumerate(parent.buffers)}
        given = {
            called.values[v].buffer: parent.values[w].buffer
            for v, w in zip(called.inputs, inputs, strict=True)
        }
        numbers = []
        for k, buffer in enumerate(called.buffers):
            number = given.get(k)
            if buffer.kind in ("param", "status"):
                number = shared.get((buffer.kind, buffer.name))
            if number is None:
                number = len(self.buffers)
                offset = buffer.offset if buffer.offset < 0 else self.base + buffer.offset
                self.buffers.append(buffer._replace(offset=offset))
            numbers.append(number)
        return numbers

    def _map_values(self, inputs: Sequence[int]) -> list[int]:
        """For each value of the called plan its id in the composed one.

        Its inputs, and the first versions of named tensors, are values that the parent has.
        """
        parent, called = self.parent, self.called
        known = dict(zip(called.inputs, inputs, strict=True))
        made = {v for s in called.steps for v in (*s.results, *s.changed)}
        touched = {parent.values[v].buffer: v for v in self.call.touched}
        numbers = []
        for v, value in enumerate(called.values):
            buffer = self.buffer_of[value.buffer]
            number = known.get(v)
            if number is None and v not in made:
                number = touched.get(buffer)
            if number is None:
                number = len(self.values)
                frame = value.frame + len(parent.frames)
                self.values.append(Value(value.name, value.type, buffer, frame))
            numbers.append(number)
        return numbers

    # --- steps ---

    def _step(self, step: Step) -> Step:
        value, buffer = self.value_of, self.buffer_of
        return replace(
            step,
            operands=tuple(None if v is None else value[v] for v in step.operands),
            results=tuple(value[v] for v in step.results),
            touched=tuple(value[v] for v in step.touched),
            changed=tuple(value[v] for v in step.changed),
            frame=step.frame + len(self.parent.frames),
            workspace=step.workspace if step.workspace < 0 else buffer[step.workspace],
            reads=tuple(dict.fromkeys(buffer[b] for b in step.reads)),
            writes=tuple(buffer[b] for b in step.writes),
        )

    def _call_step(self) -> Step:
        """The call, which now reads the outputs of the called plan."""
        outputs = tuple(dict.fromkeys(self.value_of[v] for v in self.called.outputs))
        operands = [self.values[v].buffer for v in self.call.operands if v is not None]
        reads = dict.fromkeys([*operands, *(self.values[v].buffer for v in outputs)])
        return replace(self.call, touched=outputs, reads=tuple(reads))

    # --- instructions ---

    def _instructions(self) -> tuple[list[Instruction], int]:
        """All instructions, the called plan's before the call, and the count of events."""
        parent, called = self.parent, self.called
        at, stream = next(
            (k, i.stream)
            for k, i in enumerate(parent.instructions)
            if isinstance(i, Call) and i.step == self.step
        )
        events = parent.events + called.events
        before: list[Instruction] = []
        after: list[Instruction] = []
        starting = [s for s in called.start if s != stream]
        if starting:
            before = [Record(events, stream), *(Wait(events, s) for s in starting)]
            events += 1
        for s in called.finish:
            if s != stream:
                after += [Record(events, s), Wait(events, stream)]
                events += 1
        body = [self._moved(i) for i in called.instructions]
        head, tail = parent.instructions[:at], parent.instructions[at:]
        return [*head, *before, *body, *after, *tail], events

    def _moved(self, i: Instruction) -> Instruction:
        """An instruction of the called plan with its ids in the composed one."""
        match i:
            case Run(step, stream):
                return Run(step + len(self.parent.steps), stream)
            case Call(step, stream):
                return Call(step + len(self.parent.steps), stream)
            case Alloc() | Free() | Fill():
                return i._replace(buffer=self.buffer_of[i.buffer])
            case Record() | Wait():
                return i._replace(event=i.event + self.parent.events)
            case Sync():
                return i
