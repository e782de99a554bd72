"""The loop: runs bound plans, and the control flow between them, as a coroutine.

A run is a generator. Where the host needs a value (the test of a `while`) it yields a `Fence`: the
streams that it waits for. `driving` has what waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Any

from opstep.runtime.calls import check_depth, copies_of_outputs, first_call, next_call
from opstep.runtime.device.binding import Binding
from opstep.runtime.device.flagging import Flags
from opstep.runtime.device.listening import Execution, Listener
from opstep.runtime.device.protocols import Device, Event, Own, Recorder, Stream
from opstep.runtime.device.store import Address, Before, Store
from opstep.runtime.driving import Fence
from opstep.runtime.interrupts import Held
from opstep.runtime.ir.control import BODY, TEST, GraphCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.control import control_of, passed_types
from opstep.runtime.plan.internal import STATUS
from opstep.runtime.plan.plan import Call, Plan, Policy, Step
from opstep.runtime.recording import Taken, spending

Coroutine = Generator[
    "Fence | Coroutine", None, None
]  # one that is yielded is run to its end first


class Context:
    """One set of streams, and the plans bound to them. Contexts that share a store share its
    tensors.

    `plan_for(graph, input types, policy, carried)` makes (and keeps) plans: see `make_plan`.
    """

    def __init__(
        self,
        device: Device,
        store: Store,
        plan_for: Callable[[str, tuple[TensorType, ...], Policy, bool], Plan],
        policy: Policy,
        listeners: Sequence[Listener] = (),
        recorder: Recorder | None = None,
        flags: Flags | None = None,
    ):
        self.device = device
        self.store = store
        self.plan_for = plan_for
        self.policy = policy
        self.listeners = tuple(listeners)
        self.recorder = recorder
        self.flags = flags  # raised by ops that give NaNs and infinities, where someone asks
        self._recorded = (0, Taken.TIMES)  # number of the step under way, and what is recorded
        self.streams: list[Stream] = []
        self.status = Address(device.alloc(STATUS.nbytes), 0)
        device.write(*self.status, STATUS, 0)
        self._asserts = False  # whether a plan that was bound has asserts
        self.failed = 0  # what the status said last: the code of an assert that failed
        self.plans: list[Plan] = []  # those that were bound
        self._bound: dict[tuple, Binding] = {}
        self._running: Binding | None = None
        self.keeps_memory = False  # memory of a fresh run stays until nobody refers to it
        self._retired: list[Binding] = []  # children that others took the place of
        self._crossings: list[Event] = []  # events between plans that may not have been reached yet
        self.ends: list[Event] = []  # of the last run, on each stream, if nobody waited for them
        self._committing = False  # updates are under way, which are not given up any more
        self._before = Before(device, store)

    def bind(self, graph: str, types: tuple[TensorType, ...]) -> Binding:
        """The plan for these input types with memory; with fresh allocation, new each time."""
        key = (graph, types)
        if key not in self._bound:
            binding = self._binding(self.plan_for(graph, types, self.policy, False))
            if self.policy.alloc == "fresh":
                return binding
            self._bound[key] = binding
        return self._bound[key]

    def bind_at(
        self, graph: str, types: tuple[TensorType, ...], inputs: Sequence[Address],
        places: Mapping[int, Address],
    ) -> Binding:  # fmt: skip
        """The plan with its inputs, and the buffers in `places`, where a caller has them. It is the
        caller's: `bind` does not give it.
        """
        return self._binding(self.plan_for(graph, types, self.policy, False), inputs, places=places)

    def run(self, binding: Binding) -> Generator[Fence, None, None]:
        """One run of a bound plan, its inputs in place; afterwards its outputs are, and no stream
        is busy.
        """
        yield from self.compute(binding)
        yield from self.commit(binding)

    def compute(self, binding: Binding) -> Generator[Fence, None, None]:
        """The part of a run that may be given up: `abandon` then leaves named tensors as they
        were. An error comes from here; `commit` has to follow.
        """
        self._running = binding
        if self.recorder:
            self._recorded = self.recorder.begin_step()
        if self.failed:
            self.device.write(*self.status, STATUS, 0)
            self.failed = 0
        if binding.early:
            for copy in self._before.copies(binding.early):
                self.streams[0].submit(copy)
            self._order([0], range(len(self.streams)))
            yield self._fence([0])
            self._before.names = binding.early
        yield from _unrolled(self._run(binding))
        if binding.parted or not binding.commit:
            tape = binding.tape if binding.parted else None
            began = monotonic_ns() if tape else 0
            yield self._fence(range(len(self.streams)))
            if tape:
                tape.fenced(began)

    def enter(self, before: Sequence[Own] = (), foreign: Stream | None = None) -> None:
        """All that a run does comes after the last run, whose end nobody may have seen, after what
        is queued on a stream of somebody else, and then after this work.
        """
        ends, self.ends = self.ends, []
        for stream in self.streams if foreign is None else [foreign]:
            for event in ends:
                stream.wait(event)
        if foreign is not None:
            event = self.device.event()
            foreign.record(event)
            for stream in self.streams:
                stream.wait(event)
        for work in before:
            self.streams[0].submit(work)
        if before:
            self._order([0], range(len(self.streams)))

    def launched_on(
        self, foreign: Stream, binding: Binding, before: Sequence[Own], after: Sequence[Own]
    ) -> bool:
        """`enter` and `issue` on a stream of somebody else alone, where the device has captured all
        that lies between this work; False where it has not.
        """
        replay = binding.replay
        if replay is None or not replay.ready:
            return False
        self._running = binding
        end = self.device.event()
        for event in self.ends:
            foreign.wait(event)
        try:
            for work in before:
                foreign.submit(work)
            replay.launch(foreign)
            for work in after:
                foreign.submit(work)
            foreign.record(end)
            self.ends = [end]
        except BaseException:  # whatever is under way there uses memory of ours
            with Held():
                foreign.abandon()
            raise
        return True

    def issue(
        self, binding: Binding, after: Sequence[Own] = (), foreign: Stream | None = None
    ) -> None:
        """A run of a plan that updates and asserts nothing and has no control flow, and then this
        work. With a `foreign` stream nobody waits for its end here: what is queued on that stream
        comes behind it.
        """
        streams = self.streams
        self._running = binding
        binding.reset()
        for segment in binding.segments:
            for do in segment.code:
                do()
        self._issued(binding)
        if after:
            self._order(range(len(streams)), [0])
        for work in after:
            streams[0].submit(work)
        if foreign is not None:
            self.ends = [self.device.event() for _ in streams]
            for stream, event in zip(streams, self.ends, strict=True):
                stream.record(event)
                foreign.wait(event)
        elif len(streams) == 1:
            streams[0].synchronize()
        else:
            self._fence(range(len(streams))).wait()
        self._crossings.clear()

    def commit(self, binding: Binding) -> Generator[Fence, None, None]:
        """The part that is not given up: updates of named tensors, all of them, or none where an
        assert failed. Whoever drives it lets nothing cut it short.
        """
        self._committing = True
        if binding.commit:
            for do in binding.commit:
                do()
            self._issued(binding)
            yield self._fence(range(len(self.streams)))
        self._crossings.clear()
        self._let_go()
        if self.failed_assert():
            self._undo()
        self._before.names = ()
        self._committing = False
        if self.recorder:
            self.device.recorded_step(self.recorder)

    def abandon(self) -> None:
        """After an error or an interrupt: what was not committed is as if it had never begun, and
        the context can be used again.
        """
        if sys.is_finalizing():
            return  # what is left open then goes with the process; drivers are gone already
        if not self._committing:
            self._drop()
        for stream in self.streams:
            stream.start()
        for stream in self.streams:
            stream.abandon()
        with suppress(DeviceError):  # what is lost with the device
            self._undo()
            if self.recorder:
                self.device.recorded_step(self.recorder, now=True)
            self.unrecord()
        self._bound.clear()
        self._crossings.clear()

    def _drop(self) -> None:
        """Drops what is queued, all of it before a waiting stream is let go: else that would go on
        with what nobody computed.
        """
        for stream in self.streams:
            stream.drop()
        if self._running is not None:
            _release(self._running)
        for event in self._crossings:
            event.set()

    def _undo(self) -> None:
        """Named tensors are as they were before the run; no stream is busy."""
        for copy in self._before.back():
            self.streams[0].submit(copy)
            self.streams[0].synchronize()

    def unrecord(self) -> None:
        """Nothing more is recorded for now."""
        if self.recorder:
            self.device.unrecord(self.recorder)

    def failed_assert(self) -> int:
        """The code of the assert that failed first so far in this run; 0 where none did."""
        if self._asserts:
            self.failed = int(self.device.read(*self.status, STATUS))
        return self.failed

    # --- the loop ---

    def _run(self, binding: Binding) -> Coroutine:
        self._begin(binding)
        for code, call, index in binding.segments:
            for do in code:
                do()
            if call is not None:
                yield self._call(binding, call, index)
        if not binding.commit:
            self._issued(binding)

    def _begin(self, binding: Binding) -> None:
        binding.reset()
        if binding.tape and self.recorder:
            binding.tape.begin(self.recorder, *self._recorded)

    def _issued(self, binding: Binding) -> None:
        """All of a plan was issued."""
        if binding.tape:
            binding.tape.finish()
        if self.recorder and binding.parent is None:
            self.device.meanwhile(self.recorder)

    # --- control flow ---

    def _call(self, binding: Binding, call: Call, index: int) -> Coroutine:
        step = binding.plan.steps[call.step]
        execution = Execution(binding, step, call.stream, call.step)
        began = monotonic_ns()
        check_depth(binding.plan, step, _depth(binding))
        for listener in self.listeners:
            listener.before(execution)
        yield self._control(execution)
        if binding.tape:
            binding.tape.called(index, began)
        for listener in self.listeners:
            listener.after(execution)

    def _control(self, execution: Execution) -> Coroutine:
        """Runs the graphs that the op asks for, from the places of its operands."""
        step, plan, binding = execution.step, execution.binding.plan, execution.binding
        inputs = [binding.address_of(v) for v in step.operands if v is not None]
        targets = [binding.address_of(v) for v in step.results]
        selector = None
        if control_of(step).selects:
            yield self._fence([execution.stream])
            selector = binding.array(_first(step))
            inputs = inputs[1:]
        else:
            inputs = targets = self._carried(execution, inputs, targets)
        call: GraphCall | None = first_call(plan, step, selector)
        while call is not None:
            child, holds = self._child(execution, call, inputs), False
            self._order((execution.stream,), child.plan.start)
            if child.calls:
                yield self._run(child)
            else:
                self._issue_all(child)
            self._order(child.plan.finish, (execution.stream,))
            if call.role == TEST:
                yield self._fence([execution.stream])
                self._let_go()
                holds = bool(child.array(child.plan.outputs[0])) and not self.failed_assert()
            else:
                self._hand_over(child, targets, execution)
            call = next_call(plan, step, call, holds)

    def _carried(
        self, execution: Execution, inputs: list[Address], results: list[Address]
    ) -> list[Address]:
        """Where a loop carries its values: in the places of its results, but for those that its
        body hands on unchanged and nobody reads behind it.
        """
        step, plan = execution.step, execution.binding.plan
        body = self._plan_of(step, step.attrs["body"].name, carried=True)
        is_seen = self.policy.alloc == "fresh" or self.listeners or self.recorder
        places = list(results)
        for k, (source, target) in enumerate(zip(inputs, results, strict=True)):
            v = step.results[k]
            if body.outputs[k] == body.inputs[k] and not is_seen and v in plan.unread:
                places[k] = source
            elif source.address != target.address:
                nbytes: Any = plan.values[v].type.nbytes  # of a concrete type
                copy = self.device.copy(source.address, target.address, nbytes)
                self._submit(copy, nbytes, execution)
        return places

    # --- sub-plans ---

    def _plan_of(self, step: Step, graph: str, carried: bool) -> Plan:
        return self.plan_for(graph, passed_types(step), self.policy, carried)

    def _child(self, execution: Execution, call: GraphCall, inputs: list[Address]) -> Binding:
        """The called graph bound to the caller's streams and to the places of its operands."""
        parent, step = execution.binding, execution.step
        key = (id(step), call.graph)
        child = parent.children.get(key)
        if child is None or self.policy.alloc == "fresh":
            plan = self._plan_of(step, call.graph, carried=call.role == BODY)
            if child is not None and not self.keeps_memory:
                self._retired.append(child)
            child = self._binding(plan, inputs, execution, call.turn)
            parent.children[key] = child
        child.iteration = call.turn
        return child

    def _let_go(self) -> None:
        """Gives back what children held that are done: all that was queued before the last test of
        a loop is.
        """
        for binding in self._retired:
            binding.close()
        self._retired.clear()

    def _issue_all(self, binding: Binding) -> None:
        """`_run` of a plan without control flow."""
        self._begin(binding)
        for segment in binding.segments:
            for do in segment.code:
                do()
        if not binding.commit:
            self._issued(binding)

    def _hand_over(self, child: Binding, targets: list[Address], execution: Execution) -> None:
        """Copies a child's outputs to where the caller wants them."""
        if child.handed is None:
            child.handed = copies_of_outputs(child, targets)
        for copy, nbytes in child.handed:
            self._submit(copy, nbytes, execution)

    def _submit(self, copy: Own, nbytes: int, execution: Execution) -> None:
        tape = execution.binding.tape
        if tape:
            tape.copy(execution.stream, copy, nbytes)
        else:
            self.streams[execution.stream].submit(copy)

    # --- streams ---

    def _binding(self, plan: Plan, inputs=None, parent=None, turn: int = 0, places=None) -> Binding:
        while len(self.streams) < max(plan.streams, 1):
            self.streams.append(self.device.stream())
        if plan not in self.plans:
            self.plans.append(plan)
            self._asserts = self._asserts or any(s.op.name == "assert" for s in plan.steps)
        with spending("bind", plan.graph):
            return Binding(
                plan,
                self.device,
                self.store,
                self.streams,
                self.status,
                inputs,
                self.listeners,
                parent,
                turn,
                self.recorder,
                self.flags.of(plan) if self.flags else None,
                places,
            )

    def _fence(self, streams) -> Fence:
        waited = [self.streams[k] for k in streams] or self.streams[:1]
        return Fence(waited, self.streams, self.device)

    def _order(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Work queued later on `after` starts when what is queued on `before` is done."""
        if len(before) == len(after) == 1 and before[0] == after[0]:
            return
        for k in before:
            waiting = [s for s in after if s != k]
            if waiting:
                event = self.device.event()
                self._crossings = [e for e in self._crossings if not e.done()]
                self._crossings.append(event)
                self.streams[k].record(event)
                for s in waiting:
                    self.streams[s].wait(event)


def _unrolled(coroutine: Coroutine) -> Generator[Fence, None, None]:
    """Runs coroutines that yield coroutines on its own stack: Python's does not grow."""
    stack = [coroutine]
    while stack:
        reached = next(stack[-1], None)
        if reached is None:
            stack.pop()
        elif isinstance(reached, Fence):
            yield reached
        else:
            stack.append(reached)


def _first(step) -> int:
    value = step.operands[0]
    assert value is not None
    return value


def _depth(binding: Binding) -> int:
    depth = 0
    while binding.parent is not None:
        depth, binding = depth + 1, binding.parent.binding
    return depth


def _release(binding: Binding) -> None:
    """Lets every stream pass that waits for an event of this plan or of one that it called."""
    bindings = [binding]
    while bindings:
        binding = bindings.pop()
        for event in binding.events:
            event.set()
        bindings += binding.children.values()
