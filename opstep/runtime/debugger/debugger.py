"""One run under control: commands that run until something stops them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.breakpoints import Breakpoints
from opstep.runtime.debugger.checks import Checks, Stop, hidden
from opstep.runtime.debugger.frames import Frame, depth_of
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.points import Point
from opstep.runtime.debugger.travel import NO_LONGER, Host, Reloaded, Target, Traveller
from opstep.runtime.debugger.watching import Problem
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Policy

COMMANDS = ("continue", "reverse_continue", "in", "over", "out", "back")

__all__ = ["COMMANDS", "Debugger", "Host", "Reloaded", "Stop", "Target"]


class Debugger(Traveller):
    """All methods belong to one thread, but for `pause` and `later`.

    `inputs`: arrays of exactly these `types`. `files`: the folder below which expressions may load
    arrays. `stop_at_end`: the last step never runs at full speed, so that one can look at its end
    and go back from there. Raises `OpstepError` where no plan can be made.
    """

    def __init__(
        self, host: Host, graph: str, inputs: Sequence[np.ndarray], types: Sequence[TensorType],
        names: Sequence[str], *, policy: Policy, memory_budget: int, steps: int = 1,
        stop_on_entry: bool = False, files: Path | None = None, stop_at_end: bool = False,
    ):  # fmt: skip
        self.host = host
        self._made = (graph, list(inputs), list(types), list(names), policy, steps, memory_budget)
        self.stop_on_entry = stop_on_entry
        self.stop_at_end = stop_at_end
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
        made = Machine(self.host, graph, inputs, types, names, policy, steps, budget)
        made.on_lost = lambda names: self.on_output(f"{NO_LONGER}: {', '.join(names)}.", None)
        return made

    # --- from other threads ---

    def pause(self) -> None:
        """Stops the run as soon as the op that it is at is done. From any thread."""
        self._pausing.set()

    def later(self, function: Callable[[], Any]) -> None:
        """Has a function called between two points of the run. From any thread."""
        self._asked.append(function)

    # --- where it stands ---

    def result(self) -> dict[str, np.ndarray]:
        """What the last step gave, by the names returned; once the run has ended."""
        if self.outputs is not None:
            return dict(self.outputs)
        if not self.machine.finished:
            raise InputError("the run has given no results")
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

    def go(self, command: str, thread: int | None = None, granularity: str = "statement") -> Stop:
        """Runs until a stop: see `COMMANDS`. `thread`: the stream that is to make the step.
        `granularity` "instruction": forward steps run one launch of a kernel.
        """
        self._pausing.clear()
        if granularity == "instruction" and command in ("in", "over"):
            return self._stopped(self._launch())
        if command == "continue":
            return self._stopped(self._continue())
        if command == "reverse_continue":
            return self._stopped(self._here_already() or self._backwards(lambda here: False))
        if self._after and command in ("in", "over"):
            self._after = False  # the statement that is next was not shown yet
            here = self.machine.here()
            if here is not None and not hidden(here):
                return self._stopped(self.checks.at_point() or Stop("step", thread=self._thread()))
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
            raise InputError(f"there is no statement at {path}:{line}")
        self._pausing.clear()
        wanted = found[2]
        return self._stopped(self._forwards(lambda at: at[1].statement is wanted))

    def restart(self) -> Stop:
        """Begins anew, as the program's text is now, with the named tensors that it had when it
        began. What was set by hand is forgotten.
        """
        self.machine.executor.settle()
        self.host.begin_anew()
        self.machine, self.outputs, self._after = self._machine(), None, False
        return self._stopped(self.start())

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
        """Whether a step begins here, and nothing could stop it before its end. With control flow
        in it a step may take long: then it can be paused in the midst.
        """
        at_start = at[0].parent is None and self.machine.cursor == at[0].start
        return at_start and not self.breakpoints.armed and not at[0].points.calls

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

    def _launch(self) -> Stop:
        """Runs one launch."""
        machine, self._after = self.machine, False
        here = machine.here()
        if here is None:
            return self._end()
        try:
            done = machine.forward_launch()
        except OpstepError as error:
            return self._failed(error)
        if done is not None:
            name = here[0].plan.steps[here[1].step].op.name
            return Stop("step", f"launch {done[0]} of {done[1]} of {name}", self._thread())
        stop = self._behind() if self.breakpoints.filters or self.breakpoints.data else None
        if stop is None and machine.here() is None:
            stop = self._end()
        return stop or self.checks.at_point() or Stop("step", thread=self._thread())

    def _here_already(self) -> Stop | None:
        """Trouble that one stands behind, and that has not been told."""
        watched = self.breakpoints.filters or self.breakpoints.data
        return self._behind() if watched and not self._after else None

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
                text = (
                    "the beginning of the run"
                    if not machine.base
                    else "the beginning of what is kept"
                )
                return Stop("entry", text, self._thread())
            stop = self.checks.at_point()
            if stop:
                return stop
            here = machine.here()
            assert here is not None
            if arrived(here) and not hidden(here):
                return Stop("step", thread=self._thread())

    def _fast(self) -> Stop | None:
        """Whole steps at full speed, where nothing can stop them; None where that is not so, or to
        go on from behind them.
        """
        machine = self.machine
        here = machine.here()
        if self._after or here is None or machine.cursor != machine.frontier:
            return None
        step = here[0].turn
        steps = machine.steps - step - self.stop_at_end
        if steps < 1 or not self._may_go_fast(here) or machine.changes.concern(here[0].start):
            return None
        self._commit()

        def go_on() -> bool:
            while self._asked:
                self._asked.popleft()()
            return not self._pausing.is_set() and not self.breakpoints.armed

        done, outputs, error = self.host.run_fast(steps, go_on)
        try:
            machine.begin_anew(step + done)
        except OpstepError as another:
            return self._failed(error or another)
        if error is not None:  # what happened is looked at point by point
            return self._forwards(lambda at: False)
        if outputs is not None and not self.stop_at_end:
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
            return Stop("end", "assert", self._thread(), (), problem)
        if self.outputs is None:
            self._commit()
        return Stop("end")

    def _commit(self) -> None:
        """The program's named tensors are those of the end of the log; those that the log began
        with stay what they were.
        """
        machine, changed, moved = self.machine, {}, {}
        for name, versions in machine.named.items():
            node, memory = versions[-1][1], self.host.tensor(name)[1] if name else None
            if memory is None or (node is versions[0][1] and node.memory is memory):
                continue
            machine.executor.ensure(node)
            changed[name] = node
            moved[id(memory)] = machine.executor.copied(memory)
        if changed:
            machine.keep(moved)
            self.host.commit(changed)

    def _failed(self, error: OpstepError) -> Stop:
        from opstep.runtime.ir.errors import DeviceError

        kind = "device" if isinstance(error, DeviceError) else "error"
        problem = Problem(kind, error.diagnostics[0].message, None, self.machine.cursor, error)
        return Stop("exception", kind, self._thread(), (), problem)
