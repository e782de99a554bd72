"""One run under control: commands that run until something stops them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.debugger import machine as machines
from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints, Texts
from opstep.runtime.debugger.checks import Checks, Stop, hidden
from opstep.runtime.debugger.expressions import parse
from opstep.runtime.debugger.frames import Frame, depth_of, named, stack
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.node import Node
from opstep.runtime.debugger.points import OP, Point
from opstep.runtime.debugger.scope import FrameScope
from opstep.runtime.debugger.watching import Problem
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Policy

COMMANDS = ("continue", "reverse_continue", "in", "over", "out", "back")
BUDGET = 2 << 30  # bytes


class Host(machines.Host, Protocol):
    """What a debugger needs of a program beside its plans; `opstep.debugging` has one."""

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

    def run_fast(self, steps: int, go_on: Callable[[], bool]) -> tuple[int, Mapping | None]:
        """Steps at full speed, while `go_on`: how many were done, and what the last one gave."""
        ...


class Reloaded(NamedTuple):
    """What came of reading the file again: `kept` of `of` values did not have to be computed."""

    kept: int
    of: int
    moved: list[Breakpoint]


class Target(NamedTuple):
    """Where one can go to. `position` is -1 for one that has not been reached yet."""

    number: int
    position: int
    index: int
    line: int
    label: str


class Debugger:
    """All methods belong to one thread, but for `pause` and `later`.

    `inputs`: arrays of exactly these `types`. `files`: the folder below which expressions may load
    arrays. Raises `OpstepError` where no plan can be made.
    """

    def __init__(
        self, host: Host, graph: str, inputs: Sequence[np.ndarray], types: Sequence[TensorType],
        names: Sequence[str], *, policy: Policy, steps: int = 1, stop_on_entry: bool = False,
        memory_budget: int = BUDGET, files: Path | None = None,
    ):  # fmt: skip
        self.host = host
        self._made = (graph, list(inputs), list(types), list(names), policy, steps, memory_budget)
        self.stop_on_entry = stop_on_entry
        self.files = files
        self.breakpoints = Breakpoints(host.texts())
        self.breakpoints.tensors = list(host.tensors)
        self.on_output: Callable[[str, Frame | None], Any] = lambda text, frame: None
        self.runs: Callable[[str, int | None], Any] | None = None  # runs of a workspace
        self.stop: Stop | None = None
        self.outputs: Mapping[str, np.ndarray] | None = None  # what a run at full speed gave
        self._asked: deque[Callable[[], Any]] = deque()
        self._pausing = threading.Event()
        self._targets: dict[int, Target] = {}
        self._after = False  # whether it stands behind the op that it shows
        self.checks = Checks(self)
        self.machine = self._machine()

    def _machine(self) -> Machine:
        graph, inputs, types, names, policy, steps, budget = self._made
        return Machine(self.host, graph, inputs, types, names, policy, steps, budget)

    # --- from other threads ---

    def pause(self) -> None:
        """Stops the run as soon as the op that it is at is done. From any thread."""
        self._pausing.set()

    def later(self, function: Callable[[], Any]) -> None:
        """Has a function called between two points of the run. From any thread."""
        self._asked.append(function)

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
        machine = self.machine
        at = machine.behind() if self._after else machine.here() or machine.behind()
        if at is None:
            return []
        if thread is not None and at[1].stream != thread:
            at = (at[0], self._of_stream(at[0], machine.index(), thread) or at[1])
        return stack(machine, at, machine.cursor)

    def _of_stream(self, activation: Activation, k: int, thread: int) -> Point | None:
        """The next op of a stream in a plan, or its last."""
        points = activation.points.points
        following = (p for p in points[k:] if p.kind == OP and p.stream == thread)
        before = (p for p in reversed(points[:k]) if p.kind == OP and p.stream == thread)
        return next(following, None) or next(before, None)

    def scope(self, frame: Frame | None = None, extra: dict[str, Node] | None = None) -> FrameScope:
        """The names of a frame, the innermost one with values if none is given."""
        if frame is None:
            frames = [f for f in self.stack() if f.imported is None]
            if not frames:
                raise InputError("the run has not begun")
            frame = frames[0]
        return FrameScope(frame, extra, self.files, self.runs)

    def evaluate(self, text: str, frame: Frame | None = None) -> Any:
        """The value of an expression. Raises `ExpressionError`."""
        return parse(text).evaluate(self.scope(frame))

    def result(self) -> dict[str, np.ndarray]:
        """What the last step gave, by the names returned; once the run has ended."""
        if self.outputs is not None:
            return dict(self.outputs)
        returned = self.machine.finished[-1][1].plan.frames[0].graph.body[-1:]
        names = [v.text for s in returned for v in getattr(s, "values", ())]
        arrays = [self.machine.executor.array(n) for n in self.machine.outputs()]
        return dict(zip(names, arrays, strict=True))

    # --- commands ---

    def start(self) -> Stop:
        """Runs to the first stop."""
        if self.stop_on_entry:
            return self._stopped(Stop("entry", thread=self._thread()))
        hits = self.checks.at_point()
        if hits:
            return self._stopped(hits)
        return self.go("continue")

    def go(self, command: str, thread: int | None = None) -> Stop:
        """Runs until a stop: see `COMMANDS`. `thread`: the stream that is to make the step."""
        self._pausing.clear()
        if command == "continue":
            return self._stopped(self._continue())
        if command == "reverse_continue":
            return self._stopped(self._backwards(lambda here: False))
        here = self._here()
        if here is None:
            if command == "back":
                return self._stopped(self._backwards(lambda here: True))
            return self._stopped(self._end())
        depth = depth_of(here)
        arrived = {
            "in": lambda at: True,
            "over": lambda at: depth_of(at) <= depth,
            "out": lambda at: depth_of(at) < depth,
            "back": lambda at: depth_of(at) <= depth,
        }[command]
        if thread is not None and len(self.threads()) > 1:
            every = arrived
            arrived = lambda at: at[1].stream == thread and every(at)  # noqa: E731
        if command == "back":
            return self._stopped(self._backwards(arrived))
        return self._stopped(self._forwards(arrived))

    def run_to(self, path: str, line: int) -> Stop:
        """Continues to a line, or to where something else stops it. Raises `InputError`."""
        found = self.breakpoints.at_line(path, line)
        if found is None:
            raise InputError(f"no statement stands at {path}:{line}")
        self._pausing.clear()
        wanted = found[2]
        return self._stopped(self._forwards(lambda at: at[1].statement is wanted))

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
        if target.position >= 0:
            self.machine.cursor = target.position
        else:
            try:
                self.machine.jump(target.index)
            except machines.Skipped as error:
                hint = "run what computes it first"
                raise InputError(f"{error.name} has no value yet", hint=hint) from None
        return self._stopped(Stop("goto", target.label, self._thread()))

    def restart_frame(self, frame: Frame) -> Stop:
        """Goes back to where a frame was entered."""
        self.machine.cursor = self._entered(frame)
        return self._stopped(Stop("restart", f"at the begin of {frame.name}", self._thread()))

    def restart(self) -> Stop:
        """Begins anew, as the program's text is now."""
        self.machine.executor.settle()
        self.machine, self.outputs = self._machine(), None
        return self._stopped(self.start())

    def reload(self) -> Reloaded:
        """Reads the file again and goes on with it, at the begin of the present frame. Values whose
        op and operands are the same are kept. Raises `OpstepError`; then nothing has changed.
        """
        machine = self.machine
        frames = [f for f in self.stack() if f.imported is None]
        names = [f.name for f in frames]
        host = self.host.reload()
        length, old = machine.cursor, self.host
        machine.found_again = machine.asked_again = 0
        machine.replace_program(host)
        try:
            machine.restart_step()
        except OpstepError:
            machine.replace_program(old)
            machine.restart_step()
            raise
        self.host = host
        moved = self.breakpoints.moved(host.texts())
        entered = self._replay(length, names)
        kept, asked = machine.found_again, machine.asked_again
        machine.cursor = entered
        self._stopped(Stop("restart", f"kept {kept} of {asked} values", self._thread()))
        return Reloaded(kept, asked, moved)

    def set(self, frame: Frame, name: str, array: np.ndarray) -> Node:
        """Gives a name another value, of its type. What depends on it is computed again, up to
        where one stands; nothing else is. Raises `InputError`.
        """
        old = frame.lookup(name)
        if old is None:
            raise InputError(f"{name} has no value here")
        if array.shape != old.type.shape:
            given = TensorType(old.type.dtype, array.shape)
            raise InputError(f"{name} is {old.type}, not {given}")
        machine, stands = self.machine, self.machine.cursor
        node = machine.executor.make(old.type, array, name)
        value, after = frame.value(name), self._after
        if value is None:
            machine.set_named(name, node)
        else:
            machine.cursor = frame.activation.env[value][0]
            machine.set(frame.activation, value, node)
        while machine.cursor < stands and machine.forward():
            pass
        self._after = after
        return node

    # --- running ---

    def _continue(self) -> Stop:
        while True:
            fast = self._fast()
            if fast:
                return fast
            stop = self._forwards(self._may_go_fast)
            if stop.reason != "step":
                return stop

    def _may_go_fast(self, at: tuple[Activation, Point]) -> bool:
        """Whether a step begins here, and nothing could stop it."""
        at_start = at[0].parent is None and self.machine.cursor == at[0].start
        return at_start and not self.breakpoints.armed

    def _forwards(self, arrived: Callable[[tuple[Activation, Point]], bool]) -> Stop:
        machine, breakpoints = self.machine, self.breakpoints
        self._after = False
        while True:
            if (self._asked or self._pausing.is_set()) and self._answer():
                return Stop("pause", thread=self._thread())
            try:
                if not machine.forward():
                    return self._end()
            except OpstepError as error:
                return self._failed(error)
            if breakpoints.filters or breakpoints.data:
                stop = self._behind()
                if stop:
                    return stop
            here = machine.here()
            if here is None:
                return self._end()
            if breakpoints.at_points:
                stop = self.checks.at_point()
                if stop:
                    return stop
            if arrived(here) and not hidden(here):
                return Stop("step", thread=self._thread())

    def _behind(self) -> Stop | None:
        """A stop behind the op that was just passed; one stands behind it then."""
        self._after = True
        stop = self.checks.behind_op()
        self._after = stop is not None
        return stop

    def _backwards(self, arrived) -> Stop:
        machine = self.machine
        began = machine.cursor
        self._after = False
        while True:
            if (self._asked or self._pausing.is_set()) and self._answer():
                return Stop("pause", thread=self._thread())
            if (self.breakpoints.filters or self.breakpoints.data) and machine.cursor < began:
                stop = self._behind()
                if stop:
                    return stop
            if not machine.back():
                text = "the begin of the run" if not machine.base else "the begin of what is kept"
                return Stop("entry", text, self._thread())
            stop = self.checks.at_point()
            if stop:
                return stop
            here = machine.here()
            assert here is not None
            if arrived(here) and not hidden(here):
                return Stop("step", thread=self._thread())

    def _fast(self) -> Stop | None:
        """Whole steps at full speed, where nothing can stop them; None where that is not so."""
        machine = self.machine
        here = machine.here()
        if self._after or here is None or machine.cursor != machine.frontier:
            return None
        if not self._may_go_fast(here):
            return None
        step = here[0].turn
        self.host.commit({name: v[-1][1] for name, v in machine.named.items() if name})

        def go_on() -> bool:
            while self._asked:
                self._asked.popleft()()
            return not self._pausing.is_set() and not self.breakpoints.armed

        try:
            done, outputs = self.host.run_fast(machine.steps - step, go_on)
        except OpstepError as error:
            machine.begin_anew(machine.steps)
            return self._failed(error)
        machine.begin_anew(step + done)
        if outputs is not None:
            self.outputs = outputs
            return Stop("end")
        if self._pausing.is_set():
            return Stop("pause", thread=self._thread())
        return self.checks.at_point()

    def _answer(self) -> bool:
        """Does what other threads asked for; whether the run is to stop."""
        while self._asked:
            self._asked.popleft()()
        return self._pausing.is_set()

    def _end(self) -> Stop:
        """The run is over: its named tensors are the program's."""
        machine = self.machine
        try:
            machine.executor.settle()
        except OpstepError as error:
            return self._failed(error)
        code = machine.failed()
        if code:
            error = self.host.failed_assert(code)
            problem = Problem("assert", error.diagnostics[0].message, None, machine.cursor, error)
            return Stop("end", exception=problem)
        if self.outputs is None:
            self.host.commit({name: v[-1][1] for name, v in machine.named.items() if name})
        return Stop("end")

    def _failed(self, error: OpstepError) -> Stop:
        from opstep.runtime.ir.errors import DeviceError

        kind = "device" if isinstance(error, DeviceError) else "error"
        problem = Problem(kind, error.diagnostics[0].message, None, self.machine.cursor, error)
        return Stop("exception", kind, self._thread(), (), problem)

    def _stopped(self, stop: Stop) -> Stop:
        self.stop = stop
        self._pausing.clear()
        return stop

    def _thread(self) -> int:
        here = self._here()
        return here[1].stream if here else 0

    def _here(self):
        return self.machine.behind() if self._after else self.machine.here()

    # --- helpers ---

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
