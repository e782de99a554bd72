"""Where a run stands, and how one goes elsewhere: back, ahead, to another value, another text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.debugger import history
from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints, Texts
from opstep.runtime.debugger.checks import Stop
from opstep.runtime.debugger.frames import Frame, innermost, named, stack
from opstep.runtime.debugger.machine import Machine, Skipped
from opstep.runtime.debugger.node import Node
from opstep.runtime.debugger.points import OP, Point
from opstep.runtime.debugger.scope import FrameScope
from opstep.runtime.expressions import parse
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType


class Host(history.Host, Protocol):
    """What a debugger needs of a program beside its plans; `opstep.api.debugging` has one."""

    def texts(self) -> list[Texts]: ...

    def reload(self) -> Host:
        """The program of the file as it is now. Raises `OpstepError`, with every error in it."""
        ...

    def commit(self, tensors: Mapping[str, Node]) -> None:
        """These are the named tensors from now on."""
        ...

    def failed_assert(self, code: int) -> OpstepError:
        """What is said of an assert that failed."""
        ...

    def begin_anew(self) -> None:
        """The named tensors are those that the session began with."""
        ...

    def run_fast(
        self, steps: int, go_on: Callable[[], bool]
    ) -> tuple[int, Mapping | None, OpstepError | None]:
        """Steps at full speed, while `go_on`: how many were done, and what the last one gave, or
        what ended the step behind them.
        """
        ...


NO_LONGER = "No longer as they were set by hand"


class Reloaded(NamedTuple):
    """What came of reading the file again: `kept` of `of` values did not have to be computed, and
    the values that were set by hand, `lost`, are those of the program again.
    """

    kept: int
    of: int
    moved: list[Breakpoint]
    lost: list[str]

    @property
    def told_of_lost(self) -> str:
        """A sentence about what was lost, for where something was."""
        return f"{NO_LONGER}: {', '.join(self.lost)}."


class Target(NamedTuple):
    """Where one can go to. `position` is -1 for one that has not been reached yet."""

    number: int
    position: int
    index: int
    line: int
    label: str


class Traveller:
    """The part of a debugger that moves, looks and changes, but runs nothing new of itself."""

    host: Host
    machine: Machine
    breakpoints: Breakpoints
    files: Path | None
    runs: Callable[[str, int | None], Any] | None  # runs of a workspace
    on_output: Callable[[str, Frame | None], Any]
    stop: Stop | None
    outputs: Mapping[str, np.ndarray] | None  # what a run at full speed gave
    _pausing: threading.Event
    _targets: dict[int, Target]
    _after: bool  # whether it stands behind the op that it shows

    # --- where it stands ---

    @property
    def position(self) -> int:
        """Points passed."""
        return self.machine.cursor

    def threads(self) -> list[tuple[int, str]]:
        """The streams of the plan that is run."""
        here = self.machine.here() or self.machine.behind()
        count = max(here[0].plan.streams, 1) if here else 1
        return [(k, f"stream {k}") for k in range(count)]

    def stack(self, thread: int | None = None) -> list[Frame]:
        """The frames of a stream, innermost first: what it runs next, or has run last."""
        machine, at = self.machine, self._standing()
        if at is None:
            return []
        if thread is not None and at[1].stream != thread:
            at = (at[0], self._of_stream(at[0], machine.index(), thread) or at[1])
        return stack(machine, at, machine.cursor)

    def _standing(self) -> tuple[Activation, Point] | None:
        """The point that is shown."""
        machine = self.machine
        return machine.behind() if self._after else machine.here() or machine.behind()

    def _of_stream(self, activation: Activation, k: int, thread: int) -> Point | None:
        """The next op of a stream in a plan, or its last."""
        points = activation.points.points
        following = (p for p in points[k:] if p.kind == OP and p.stream == thread)
        before = (p for p in reversed(points[:k]) if p.kind == OP and p.stream == thread)
        return next(following, None) or next(before, None)

    def scope(self, frame: Frame | None = None, extra: dict[str, Node] | None = None) -> FrameScope:
        """The names of a frame, the innermost one with values if none is given."""
        if frame is None:
            at = self._standing()
            if at is None:
                raise InputError("the run has not begun")
            frame = innermost(self.machine, at, self.machine.cursor)
        return FrameScope(frame, extra, self.files, self.runs)

    def evaluate(
        self, text: str, frame: Frame | None = None, extra: dict[str, Node] | None = None
    ) -> Any:
        """The value of an expression. Raises `ExpressionError`."""
        return parse(text).evaluate(self.scope(frame, extra))

    # --- going elsewhere ---

    def goto_targets(self, path: str, line: int) -> list[Target]:
        """Where `goto` can go for a line: the last time that it was reached, and, in the present
        frame, the point ahead.
        """
        self._targets.clear()
        found = self.breakpoints.at_line(path, line)
        if found is None:
            return []
        source, _, statement = found
        machine, number = self.machine, source.locate(statement.span.start)[0]
        for position in range(machine.frontier - 1, machine.base - 1, -1):
            activation, k = machine.log[position - machine.base]
            point = activation.points[k]
            if point.statement is statement:
                label = f"line {number}, back in {named(activation, point.frame)}"
                self._target(position, k, number, label)
                break
        here = machine.here()
        if here is not None and not self._targets:
            activation, at = here
            for k in range(machine.index() + 1, len(activation.points)):
                point = activation.points[k]
                if point.statement is statement and point.frame == at.frame:
                    self._target(-1, k, number, f"line {number}, past what lies between")
                    break
        return list(self._targets.values())

    def goto(self, number: int) -> Stop:
        """Goes to a target. Raises `InputError`, where an operand there has no value too."""
        target = self._targets.get(number)
        if target is None:
            raise InputError("there is no such target any more")
        self._after = False
        if target.position >= 0:
            self.machine.cursor = target.position
        else:
            try:
                self.machine.jump(target.index)
            except Skipped as error:
                hint = "run what computes it first"
                raise InputError(f"{error.name} has no value yet", hint=hint) from None
        return self._stopped(Stop("goto", target.label, self._thread()))

    def restart_frame(self, frame: Frame) -> Stop:
        """Goes back to where a frame was entered."""
        self.machine.cursor, self._after = self._entered(frame), False
        return self._stopped(Stop("restart", f"at the beginning of {frame.name}", self._thread()))

    # --- changing things ---

    def set(
        self, frame: Frame, name: str, array: np.ndarray, part: np.ndarray | None = None
    ) -> Node:
        """Gives a name another value, of its type. What depends on it is computed again, up to
        where one stands (or behind it, where that does not come any more); nothing else is.

        `part`: which elements are given, as bools; the others stay what they are computed to be,
        also when something before is set. What was set before holds; what cannot (its loop ends
        earlier now) is told by `on_output`. Raises `InputError`.
        """
        old = frame.lookup(name)
        if old is None:
            raise InputError(f"{name} has no value here")
        if array.shape != old.type.shape:
            given = TensorType(old.type.dtype, array.shape)
            raise InputError(f"{name} is {old.type}, not {given}")
        machine, stands, position = self.machine, self.machine.place(), self.machine.cursor
        array = np.array(array, old.type.dtype.numpy)
        value = frame.value(name)
        if value is None:
            machine.set_named(name, array, part)
        else:
            meant = frame.activation.points.named.get(value)
            if meant:
                raise InputError(f"{name} is {meant} itself", hint=f"set {meant}")
            if value not in frame.activation.env:
                raise InputError(f"{name} is a literal", hint="set what is computed from it")
            machine.set(frame.activation, value, frame.frame, name, array, part)
            if others := frame.namesakes(name):
                self.on_output(f"{', '.join(others)} and {name} are one value: both are set", frame)
        self._targets.clear()
        after, self._after = self._after, False  # should an op fail on the way, one is before it
        machine.run_to(stands, position)
        self._after = after and machine.place() == stands
        return frame.lookup(name) or old

    def reload(self) -> Reloaded:
        """Reads the file again and goes on with it, at the start of the present frame. Values whose
        op and operands are the same are kept. Raises `OpstepError`; then nothing has changed.
        """
        machine = self.machine
        frames = [f for f in self.stack() if f.imported is None]
        names = [f.name for f in frames]
        host = self.host.reload()
        host.plan_for(machine.graph, machine.types, machine.policy)  # else one stays where one is
        if not frames:  # nothing is kept of a run at full speed
            host.begin_anew()
            machine.replace_program(host)
            machine.begin_anew(0)
            self.host, self.outputs = host, None
            moved = self.breakpoints.moved(host.texts())
            self._stopped(Stop("restart", "nothing was kept", self._thread()))
            return Reloaded(0, 0, moved, [])
        length, self._after = machine.cursor, False
        machine.found_again = machine.asked_again = 0
        machine.replace_program(host)
        lost = machine.restart_step()
        self.host = host
        moved = self.breakpoints.moved(host.texts())
        entered = self._replay(length, names)
        kept, asked = machine.found_again, machine.asked_again
        machine.cursor = entered
        self._stopped(Stop("restart", f"kept {kept} of {asked} values", self._thread()))
        return Reloaded(kept, asked, moved, lost)

    # --- helpers ---

    def _stopped(self, stop: Stop) -> Stop:
        self.stop = stop
        self._targets.clear()
        self._pausing.clear()
        return stop

    def _thread(self) -> int:
        here = self._here()
        return here[1].stream if here else 0

    def _here(self):
        return self.machine.behind() if self._after else self.machine.here()

    def _target(self, position: int, index: int, line: int, label: str) -> None:
        number = len(self._targets) + 1
        self._targets[number] = Target(number, position, index, line, label)

    def _entered(self, frame: Frame) -> int:
        """The position at which a frame was entered."""
        machine, found = self.machine, None
        for position in range(min(frame.position, machine.frontier) - 1, machine.base - 1, -1):
            activation, k = machine.log[position - machine.base]
            if activation is not frame.activation:
                continue
            found = position
            entered = k in activation.points.entered
            if entered and activation.points[k].frame == frame.frame:
                return position
        return max(frame.activation.start, machine.base) if found is None else found

    def _replay(self, length: int, names: list[str]) -> int:
        """Runs a step that was begun anew as far as it had come; where the innermost frame that it
        stood in is entered.
        """
        machine = self.machine
        entered = machine.cursor
        while True:
            here = machine.here()
            if here is None:
                break
            if machine.index() in here[0].points.entered:
                frames = [f.name for f in stack(machine, here, machine.cursor) if not f.imported]
                if frames == names:
                    entered = machine.cursor
            if machine.cursor >= length or not self._forward_quietly():
                break
        return entered

    def _forward_quietly(self) -> bool:
        try:
            return self.machine.forward()
        except OpstepError:
            return False
