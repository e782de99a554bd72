"""Runs until something stops it, forwards or backwards, and says why it stopped. Where nothing can
stop them, whole steps run at full speed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation, Point
from opstep.runtime.debugger.breakpoints import Breakpoints
from opstep.runtime.debugger.checks import Checks, Problem, Stop
from opstep.runtime.debugger.host import Host
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.meeting import Waiting
from opstep.runtime.debugger.stop_point import StopPoint, hidden
from opstep.runtime.ir.control import BODY, TEST
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError

Arrived = Callable[[tuple[Activation, Point]], bool]
"""Whether a point is one that a command runs to."""

UNSEEN = True
Moves = Generator[Waiting | bool | None, None, Stop]
"""The moves of a command: yields after each point, `UNSEEN` before it is looked at whether that
stops it, or where it waits for another rank, which may go on in between; gives why it stopped.
"""


def arrival(command: str, here: tuple[Activation, Point] | None) -> Arrived:
    """The points that a command leads to from one; None: from the end, back by one point."""
    if here is None or command in ("in", "back_in"):
        return lambda at: True
    began, depth = here[0], depth_of(here)
    if command in ("over", "back"):
        return lambda at: depth_of(at) <= depth
    if command in ("out", "back_out"):
        return lambda at: depth_of(at) < depth
    if command != "until":
        raise KeyError(command)
    loop = began.parent if began.role in (TEST, BODY) else None

    def past_turn(at: tuple[Activation, Point]) -> bool:
        """Over the next op; at the end of a loop's turn, out of the loop."""
        again = at[0] is not began and at[0].parent is loop and loop is not None
        return depth_of(at) <= depth and not (again and at[0].role in (TEST, BODY))

    return past_turn


def depth_of(at: tuple[Activation, Point]) -> int:
    """The number of frames around the innermost one."""
    return at[0].depth + at[1].depth


def finished(moves: Moves) -> Stop:
    """All moves, of a run that waits for nobody."""
    try:
        while True:
            next(moves)
    except StopIteration as end:
        return end.value


class Mailbox:
    """Requests of other threads to a run that goes on: `calls` are to be made between two points of
    it; `pausing`: it is to stop there.
    """

    def __init__(self) -> None:
        self.calls: deque[Callable[[], Any]] = deque()
        self.pausing = threading.Event()

    def serve(self) -> bool:
        """Makes the calls; whether the run is to stop. For the thread that runs."""
        while self.calls:
            self.calls.popleft()()
        return self.pausing.is_set()


class Runner:
    """Moves a machine and its stop point. `spares_last`: the last step never runs at full speed, so
    that one can go back from its end. `outputs`: of a run that came to its end at full speed.
    """

    def __init__(
        self, machine: Machine[Host], stop_point: StopPoint, breakpoints: Breakpoints,
        checks: Checks, mailbox: Mailbox, spares_last: bool,
    ):  # fmt: skip
        self.machine = machine
        self.stop_point = stop_point
        self.breakpoints = breakpoints
        self.checks = checks
        self.mailbox = mailbox
        self.spares_last = spares_last
        self.outputs: Mapping[str, np.ndarray] | None = None

    # --- moving ---

    def forwards(self, arrived: Arrived) -> Moves:
        """Runs on until a point has arrived, or something else stops it."""
        machine, breakpoints, mailbox = self.machine, self.breakpoints, self.mailbox
        history = machine.history
        self.stop_point.leave()
        while True:
            if (mailbox.calls or mailbox.pausing.is_set()) and mailbox.serve():
                return self.stopped("pause")
            try:
                if not machine.forward():
                    return self.end()
            except Waiting as waiting:
                yield waiting
                continue
            except OpstepError as error:
                return self.failed(error)
            if machine.door is not None:
                yield UNSEEN  # others pass theirs: what is looked for may compare ranks
            if breakpoints.filters or breakpoints.data:
                stop = self.stop_after_op()
                if stop:
                    return stop
            here = history.next_point()
            if here is None:
                return self.end()
            if breakpoints.at_points:
                stop = self.checks.at_point()
                if stop:
                    return stop
            if arrived(here) and not hidden(here):
                return self.stopped("step")
            yield

    def backwards(self, arrived: Arrived) -> Moves:
        """Goes back likewise; nothing is run."""
        history, breakpoints, mailbox = self.machine.history, self.breakpoints, self.mailbox
        self.stop_point.leave()
        while True:
            if (mailbox.calls or mailbox.pausing.is_set()) and mailbox.serve():
                return self.stopped("pause")
            if not history.back():
                what = "what is kept" if history.base else "the run"
                return self.stopped("entry", f"the beginning of {what}")
            if self.machine.door is not None:
                yield UNSEEN
            stop = self.checks.at_point(forwards=False)
            if stop:
                return stop
            here = history.next_point()
            assert here is not None
            if arrived(here) and not hidden(here):
                return self.stopped("step")
            if breakpoints.filters or breakpoints.data:
                stop = self.stop_after_op()
                if stop:
                    return stop
            yield

    def pass_hidden(self) -> None:
        """A run can stand before a point that is not shown, as at its beginning: a step is one of
        the statement that is shown there.
        """
        history = self.machine.history
        while not self.stop_point.after_op and (here := history.next_point()) and hidden(here):
            self.machine.forward()

    def launch(self) -> Moves:
        """Runs one launch of a kernel."""
        machine = self.machine
        self.stop_point.leave()
        here = machine.history.next_point()
        if here is None:
            return self.end()
        while True:
            try:
                done = machine.forward_launch()
                break
            except Waiting as waiting:
                yield waiting
            except OpstepError as error:
                return self.failed(error)
        if done is not None:
            name = here[0].plan.steps[here[1].step].op.name
            return self.stopped("step", f"launch {done[0]} of {done[1]} of {name}")
        stop = self.stop_after_op() if self.breakpoints.filters or self.breakpoints.data else None
        if stop is None and machine.history.next_point() is None:
            stop = self.end()
        return stop or self.checks.at_point() or self.stopped("step")

    # --- whole steps by the interpreter, where nothing can stop them ---

    def is_fast_at(self, at: tuple[Activation, Point]) -> bool:
        """Whether a step begins here, and nothing could stop it before its end. With control flow
        in it a step may take long: then it can be paused in the midst.
        """
        activation = at[0]
        if self.machine.door is not None:  # ranks go on together
            return False
        begins = activation.parent is None and self.machine.history.cursor == activation.start
        return begins and not self.breakpoints.armed and not activation.points.calls

    def full_speed(self) -> Stop | None:
        """As many steps as can be; None where none can, or to go on from after them."""
        machine, history = self.machine, self.machine.history
        here = history.next_point()
        if self.stop_point.after_op or here is None or history.cursor != history.frontier:
            return None
        step = here[0].turn
        steps = machine.steps - step - self.spares_last
        if steps < 1 or not self.is_fast_at(here) or history.changes.affect(here[0].start):
            return None
        commit(machine)
        done, outputs, error = machine.host.run_fast(
            steps, lambda: not self.mailbox.serve() and not self.breakpoints.armed
        )
        try:
            machine.begin_anew(step + done)
        except OpstepError as another:
            return self.failed(error or another)
        if error is not None:  # what happened is looked at point by point
            return finished(self.forwards(lambda at: False))
        if outputs is not None and not self.spares_last:
            self.outputs = outputs
            return Stop("end")
        return self.stopped("pause") if self.mailbox.pausing.is_set() else self.checks.at_point()

    # --- stopping ---

    def stopped(self, reason: str, text: str = "") -> Stop:
        """A stop at the point that is shown."""
        return Stop(reason, text, self.stop_point.stream())

    def stop_after_op(self) -> Stop | None:
        """A stop after the op that was just passed; one stands after it then."""
        self.stop_point.after_op = True
        stop = self.checks.after_op()
        self.stop_point.after_op = stop is not None
        return stop

    def failed(self, error: OpstepError) -> Stop:
        """An op cannot be run."""
        kind = "device" if isinstance(error, DeviceError) else "error"
        text, cursor = error.diagnostics[0].message, self.machine.history.cursor
        problem = Problem(kind, text, None, cursor, error)
        return Stop("exception", kind, self.stop_point.stream(), (), problem)

    def end(self) -> Stop:
        """The run is over: its named tensors are the program's."""
        machine = self.machine
        try:
            machine.executor.settle()
        except OpstepError as error:
            return self.failed(error)
        code = machine.failed()
        if code:
            error = machine.host.failed_assert(code)
            position = machine.history.failed_at()
            problem = Problem("assert", error.diagnostics[0].message, None, position, error)
            return Stop("end", "assert", self.stop_point.stream(), (), problem)
        commit(machine)
        return Stop("end")


def commit(machine: Machine[Host]) -> None:
    """The program's named tensors are those of the end of the log; those that the log began with
    stay what they were.
    """
    history, changed, moved = machine.history, {}, {}
    for name, versions in history.named.items():
        node, memory = versions[-1][1], machine.host.tensor(name)[1]
        if node is versions[0][1] and node.memory is memory:
            continue
        machine.executor.ensure(node)
        changed[name] = node
        moved[id(memory)] = machine.executor.copied(memory)
    if changed:
        history.relocate_memory(moved)
        machine.host.commit(changed)
