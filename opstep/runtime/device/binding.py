"""Binds a plan to a device: buffers get memory, instructions become callables.

The interpreter calls them in order (`segments`) and runs the calls of graphs in between. Without
listeners consecutive launches on one stream are captured into one native call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.errors import error_in, error_of_op
from opstep.runtime.device.external import ExternalMemory
from opstep.runtime.device.flagging import Looking, PlanFlags
from opstep.runtime.device.listening import Execution, Listener
from opstep.runtime.device.protocols import Device, Own, Recorder, Replayed, Stream
from opstep.runtime.device.ranks import may_agree, stand
from opstep.runtime.device.routine import BoundCall
from opstep.runtime.device.searching import Searching
from opstep.runtime.device.store import Address, Store
from opstep.runtime.device.updates import Updates
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType, u8
from opstep.runtime.plan.internal import assert_
from opstep.runtime.plan.plan import (
    Alloc,
    Call,
    Fill,
    Free,
    Plan,
    Record,
    Run,
    Step,
    Sync,
    Wait,
)


class Segment(NamedTuple):
    """Callables to call in order, then a call of a graph that the interpreter runs, if there is
    one. `times`: where the tape has those of that call.
    """

    code: list[Callable[[], Any]]
    call: Call | None
    times: int = -1


class Binding:
    """A plan with memory and streams, ready to run; with `reuse` it runs any number of times.

    `inputs` gives the places of the plan's inputs where a caller has them; else they get memory
    here. `places` are those of other buffers that are to be elsewhere than in its own memory.
    `streams` are the context's; the plan's stream k is `streams[k]`. `parent` is the
    execution that called this plan and `iteration` which turn of its loop this is. With a
    `recorder` it has a `tape`; with `flags` ops tell of NaNs and infinities.

    `segments` can be given up at any moment, and named tensors are as before, but for those in
    `early`. `commit` is issued behind them, whole: it updates the others. `parted`: the host has
    to see the segments done first, for it might have to give them up.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        store: Store,
        streams: Sequence[Stream],
        status: Address,
        inputs: Sequence[Address] | None = None,
        listeners: Sequence[Listener] = (),
        parent: Execution | None = None,
        iteration: int = 0,
        recorder: Recorder | None = None,
        flags: PlanFlags | None = None,
        places: Mapping[int, Address] | None = None,
    ):
        self.plan = plan
        self.device = device
        self.store = store
        self.streams = streams
        self.status = status
        self.listeners = listeners
        self.parent = parent
        self.iteration = iteration
        self.flags = flags
        self.children: dict[Any, Binding] = {}  # bound sub-plans of this plan's calls
        self.staging: dict[int, Address] = {}  # for outputs that their caller cannot take in place
        self.handed: list[tuple[Own, int]] | None = None  # see `calls.copies_of_outputs`
        self.events = [device.event() for _ in range(plan.events)]
        self._types = _buffer_types(plan)
        self._launched: list[tuple[Step, list[Own]]] = []
        self.lookers: list[Looking] = []
        self.places = self._allocate(inputs, dict(places or {}))
        self.tape = device.tape(self, recorder) if recorder is not None else None
        launches = (launch for step in plan.steps for launch in step.launches or ())
        if Compiler.on_compile:
            Compiler.expect(partial(device.uncompiled, launches))
        coder = _Coder(self)
        self.segments = coder.segments()
        self.commit, self.parted, self.early = coder.commit, coder.parted, coder.early
        self.replay = self._replay()
        self.calls = any(s.call is not None for s in self.segments)  # graphs, by control flow

    def _replay(self) -> Replayed | None:
        """All that a run does, where that is one stretch."""
        code = [do for segment in self.segments for do in segment.code]
        alone = len(code) == 1 and not self.commit and self.segments[0].call is None
        return code[0] if alone and isinstance(code[0], Replayed) else None

    def address_of(self, value: int) -> Address:
        return self.places[self.plan.values[value].buffer]

    def array(self, value: int) -> np.ndarray:
        """A value as an array; on the CPU a view of its memory."""
        return self.device.read(*self.address_of(value), self.plan.values[value].type)

    def set(self, value: int, array: np.ndarray) -> None:
        """Gives a value, such as an input, its elements."""
        self.device.write(*self.address_of(value), self.plan.values[value].type, array)

    def launch(self, step: Step) -> list[Own] | None:
        """The step's launches with addresses; None where no kernel has to run."""
        if step.launches is None or step.launches == []:
            return None
        operands = [0 if v is None else self.address_of(v).address for v in step.operands]
        operands += [0] * (len(step.operand_types) - len(operands))
        results = [self.address_of(v).address for v in step.results]
        workspace = self.places[step.workspace].address if step.workspace >= 0 else 0
        launches = step.launches[1:] if self._is_there(step) else step.launches
        bound = self.device.bind(launches, [*operands, *results], workspace)
        for call in bound if step.op.traits.foreign or step.is_joined else ():
            if isinstance(call, BoundCall):  # and no kernel of ours
                call.located = partial(error_in, self.plan, step)
                if step.op.is_shared(step.attrs):
                    call.entered = partial(stand, self.plan, step)
        return bound

    def _is_there(self, step: Step) -> bool:
        """Whether it overwrites what stands in its result's buffer, so that nothing is copied
        first; not where it launches nothing else.
        """
        if not step.op.traits.overwrites or len(step.launches) < 2 or self._converts(step):
            return False
        whole, (result,) = step.operands[0], step.results
        values = self.plan.values
        return whole is not None and values[whole].buffer == values[result].buffer

    def _converts(self, step: Step) -> bool:
        """Whether an operand may be converted before the first launch that the op asks for, as on
        the CPU; kernels of a GPU convert as they read.
        """
        if self.device.kernels == "cuda":
            return False
        given = zip(step.operands, step.operand_types, strict=False)
        return any(
            step.op.computed(t.dtype) is not self.plan.values[v].type.dtype
            for v, t in given
            if v is not None and t is not None
        )

    def pointers(self, buffers: Collection[int]) -> dict[int, list[Callable[[int], Any]]]:
        """For each of these buffers what is to be called with its new address when it moves: the
        memory in `places` has that address then, and no run is being issued. See `moved`.

        On the CPU that holds for all that a run does; on a GPU for launches of ops and of flags:
        where there are fills, a tape or listeners, who wants other addresses binds anew.
        """
        found: dict[int, list[Callable[[int], Any]]] = {b: [] for b in buffers}
        values, pointers = self.plan.values, self.device.pointers
        for step, bound in self._launched:
            absent = (None,) * (len(step.operand_types) - len(step.operands))
            for slot, v in enumerate((*step.operands, *absent, *step.results)):
                if v is not None and (buffer := values[v].buffer) in found:
                    found[buffer] += pointers(bound, slot)
        for looked_at, bound in self.lookers:
            for slot, v in enumerate(looked_at):
                if (buffer := values[v].buffer) in found:
                    found[buffer] += pointers(bound, slot)
        return found

    def moved(self, places: int) -> None:
        """Buffers have other addresses, all of them those that this number stands for (0: those
        they were bound with); nothing is under way that a called graph does.
        """
        for segment in self.segments:
            self.device.moved(segment.code, places)
        self.device.moved(self.commit, places)
        for child in self.children.values():
            child.close()
        self.children.clear()  # bound anew when they are called

    def close(self) -> None:
        """Gives back its memory at once; it must be done, and nobody may look at its values."""
        for child in self.children.values():
            child.close()
        self.children.clear()
        self._launched.clear()
        self.lookers.clear()
        self.segments.clear()
        self.replay = None
        self.commit.clear()
        self.places.clear()
        self.staging.clear()

    def reset(self) -> None:
        """Before each run: events are not reached yet."""
        for event in self.events:
            event.reset()

    def _allocate(
        self, inputs: Sequence[Address] | None, given: dict[int, Address]
    ) -> list[Address]:
        plan, device = self.plan, self.device
        if inputs is not None:
            for value, address in zip(plan.inputs, inputs, strict=True):
                given[plan.values[value].buffer] = address
        what = f"graph {plan.graph}"
        device.want(plan.needs(given), lambda: plan.in_words)
        arena = device.alloc(plan.arena, what)  # of 0 bytes, too: no elements have a place
        places: list[Address] = []
        for k, buffer in enumerate(plan.buffers):
            if k in given:
                places.append(given[k])
            elif buffer.kind == "param":
                places.append(Address(self.store.memory(buffer.name), 0))
            elif buffer.kind == "status":
                places.append(self.status)
            elif buffer.offset >= 0:
                places.append(Address(arena, buffer.offset))
            else:
                places.append(Address(device.alloc(buffer.nbytes, what), 0))
                if buffer.kind == "const":
                    device.write(*places[-1], self._types[k], buffer.literal)
        return places


def _buffer_types(plan: Plan) -> dict[int, TensorType]:
    """The type of the first value that lives in each buffer."""
    types: dict[int, TensorType] = {}
    for value in plan.values:
        types.setdefault(value.buffer, value.type)
    return types


class _Coder:
    """Turns instructions into callables."""

    def __init__(self, binding: Binding):
        self.binding = binding
        self.device = binding.device
        self.plan = binding.plan
        self.tape = binding.tape
        self.code: list[Callable[[], Any]] = []
        self.done: list[Segment] = []
        self.pending: dict[int, list[Own]] = {}  # launches not yet captured, by stream
        self.captures = self.device.captures and not binding.listeners
        self.unfinished: Callable[[], None] | None = None  # `after` of the op just launched
        self.latest: tuple[int, int] | None = None  # the op just launched, and its stream
        self.commits = self.plan.commits if self.binding.parent is None else 0
        self.unseen: dict[int, list[int]] = {}  # steps whose flags are raised at the end, by stream
        self.replayed = self._is_replayed()
        self.searching = Searching.of(binding) if binding.listeners else None
        self.updates = Updates(self.plan, self.commits) if self.replayed and not self.tape else None
        self.parted = self.commits > 0 and (not self.replayed or may_agree(self.plan))
        self.commit: list[Callable[[], Any]] = []
        self.early = self._early() if self.binding.parent is None else ()

    def segments(self) -> list[Segment]:
        first = len(self.plan.steps) - self.commits
        waiting = self.parted
        for instruction in self.plan.instructions:
            if waiting and isinstance(instruction, Run) and instruction.step >= first:
                waiting = False
                self._part()
            if self.unfinished and not isinstance(instruction, Sync):
                self._finish_op()
            self._add(instruction)
        self._finish_op()
        self._look_at_end()
        self._flush_all()
        if self.tape:
            self.tape.bound()
        self._end_segment()
        segments = self._stretched(self.done) if self.replayed else self.done
        if self.commits:
            self.commit = segments.pop().code
        if not segments and not any(s.op is assert_ for s in self.plan.steps):
            self.early = ()  # all of it is issued at once, and nothing takes it back
        return segments

    def _early(self) -> tuple[str, ...]:
        """Named tensors that may have to be put back: all, where a listener may raise anywhere."""
        plan = self.plan
        if not self.binding.listeners:
            return plan.early
        committed = plan.steps[len(plan.steps) - plan.commits :]
        names = (plan.buffers[b].name for s in committed for b in s.writes)  # "" of temps
        return tuple(dict.fromkeys([*plan.early, *filter(None, names)]))

    def _part(self) -> None:
        """Ends a segment: later work is issued when all earlier work is done, unless that is a
        single piece of work, which cannot be given up once it has begun. Ranks agree in between.
        """
        shared = any(s.op.is_shared(s.attrs) for s in self.plan.steps)
        if not (self.done or self.code or len(self.pending) > 1 or shared):
            self.parted = False
            return
        self._finish_op()
        self._flush_all()
        if self.tape:
            self.tape.fence()
        self._end_segment()

    def _end_segment(self, call: Call | None = None, times: int = -1) -> None:
        code = self.searching.segment(self.code) if self.searching else self.code
        self.done.append(Segment(code, call, times))
        self.code = []

    def _is_replayed(self) -> bool:
        """Whether the device takes what nothing interrupts as one piece of work."""
        waits = any(isinstance(i, Sync) for i in self.plan.instructions)
        return self.device.stretches and self.captures and not waits and not self.plan.foreign

    def _stretched(self, segments: list[Segment]) -> list[Segment]:
        streams = self.binding.streams[: max(self.plan.streams, 1)]
        alone = len(segments) == 1 and self.binding.parent is None
        how = streams, alone, self.tape, bool(self.updates and self.updates.found)
        return [s._replace(code=self.device.stretch(s.code, *how)) for s in segments]

    def _add(self, instruction) -> None:
        match instruction:
            case Run(step, stream):
                self._run(step, stream)
            case Record(event, stream):
                self._flush(stream)
                self._record(event, stream)
            case Wait(event, stream):
                self._flush(stream)
                self._wait(event, stream)
            case Fill(buffer, stream):
                self._flush(stream)
                fill, nbytes = self._fill(buffer), self.plan.buffers[buffer].nbytes
                submit = partial(self.binding.streams[stream].submit, fill)
                self._issue(self.tape.fill(stream, fill, nbytes) if self.tape else submit)
            case Sync(stream):
                self._flush_all()
                self._synchronize(stream)
                self._finish_op()
            case Call(step):
                self._flush_all()
                self._end_segment(instruction, self.tape.call(step) if self.tape else -1)
            case Alloc() | Free():
                pass  # memory was bound above; with `fresh` a binding is made for each run

    def _record(self, event: int, stream: int) -> None:
        if self.tape:
            self.tape.record(event, stream)
        self._issue(partial(self.binding.streams[stream].record, self.binding.events[event]))

    def _wait(self, event: int, stream: int) -> None:
        wait = partial(self.binding.streams[stream].wait, self.binding.events[event])
        self._issue(self.tape.wait(event, stream) if self.tape else wait)

    def _synchronize(self, stream: int) -> None:
        wait = partial(_synchronize, self.binding, stream, self.latest)
        self.code.append(self.tape.sync(stream, wait) if self.tape else wait)

    def _submit(self, stream: int, launches: list[Own]) -> None:
        if self.tape:
            self._issue(self.tape.launch(stream, launches))
            return
        work = self.device.capture(launches)
        self._issue(partial(self.binding.streams[stream].submit, work))

    def _issue(self, work: Callable[[], Any]) -> None:
        self.code.append(work)
        if self.searching:
            self.searching.issue(work)

    def _fill(self, buffer: int):
        t = self.binding._types.get(buffer, TensorType(u8, (self.plan.buffers[buffer].nbytes,)))
        memory, offset = self.binding.places[buffer]
        fill = partial(self.device.fill, memory, offset, t.nbytes, t.dtype)
        if isinstance(memory, ExternalMemory) and self.device.in_host_memory:
            return lambda: fill()()  # wherever it is then
        return fill()

    def _run(self, number: int, stream: int) -> None:
        step = self.plan.steps[number]
        self.latest = number, stream
        bound = self.binding.launch(step)
        if bound:
            self.binding._launched.append((step, bound))
        if bound and self.updates:
            self.updates.mark(number, stream, bound)
        if self.binding.flags and bound:
            self.unseen.setdefault(stream, []).append(number)
            flagged = self.binding.flags.launches(number, self.binding.address_of)
            bound = [*bound, *self._looking(flagged)]
        if self.tape:
            bound = self.tape.around(number, step, stream, bound)
        if not self.captures:
            self._run_watched(number, step, stream, bound)
        elif bound:
            self.pending.setdefault(stream, []).extend(bound)

    def _looking(self, flagged: list[Looking]) -> list[Own]:
        self.binding.lookers += flagged
        return [launch for _, launches in flagged for launch in launches]

    def _look_at_end(self) -> None:
        for stream, steps in self.unseen.items():
            flags = self.binding.flags
            assert flags is not None
            looking = self._looking(flags.launches_at_end(steps, self.binding.address_of))
            looking = self.tape.unrecorded(looking) if self.tape else looking
            self.pending.setdefault(stream, []).extend(looking)

    def _run_watched(self, number: int, step: Step, stream: int, bound) -> None:
        """One launch at a time, of which listeners are told."""
        listeners = self.binding.listeners
        execution = Execution(self.binding, step, stream, number)
        self.code += [partial(listener.before, execution) for listener in listeners]
        if bound:
            self._submit(stream, bound)
        if self.searching:
            self.code += self.searching.behind(execution)
        if listeners:
            after = [partial(listener.after, execution) for listener in listeners]
            self.unfinished = lambda: self.code.extend(after)

    def _finish_op(self) -> None:
        if self.unfinished:
            finish, self.unfinished = self.unfinished, None
            finish()

    def _flush(self, stream: int) -> None:
        launches = self.pending.pop(stream, None)
        if launches:
            self._submit(stream, launches)

    def _flush_all(self) -> None:
        for stream in sorted(self.pending):
            self._flush(stream)


def _synchronize(binding: Binding, stream: int, latest: tuple[int, int] | None) -> None:
    """The host waits for one stream, once all streams that it may wait for have started. An error
    names the op that was launched last.
    """
    for k, other in enumerate(binding.streams):
        if k != stream:
            other.start()
    try:
        binding.device.wait_for_op(binding.streams[stream])
    except DeviceError as error:
        if latest is None:
            raise
        raise error_of_op(binding.plan, binding.plan.steps[latest[0]], error, latest[1]) from None
