"""One run under control: commands that run until something stops them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation, Node, Point
from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints
from opstep.runtime.debugger.checks import Checks, Problem, Stop
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.goto import Goto, Target, entry_of
from opstep.runtime.debugger.host import Host
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.meeting import Door
from opstep.runtime.debugger.python.lines import PythonLines
from opstep.runtime.debugger.python.stepping import LineStep
from opstep.runtime.debugger.reloading import (
    NO_LONGER,
    Reloaded,
    replace_program,
    replayed,
    restart_program,
)
from opstep.runtime.debugger.runner import (
    Arrived,
    Mailbox,
    Moves,
    Runner,
    arrival,
    finished,
)
from opstep.runtime.debugger.scope import FrameScope
from opstep.runtime.debugger.stop_point import StopPoint, hidden
from opstep.runtime.expressions import parse
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Policy

FORWARDS = ("continue", "in", "over", "out", "until")
BACKWARDS = ("reverse_continue", "back", "back_in", "back_out")
COMMANDS = FORWARDS + BACKWARDS


class Debugger:
    """All methods belong to one thread, but for `pause` and `later`.

    `inputs`: arrays of exactly these `types`. `files`: the folder below which expressions may load
    arrays. `locate`: where a file is that a program in a folder was imported from. `stop_at_end`:
    the last step never runs at full speed, so that one can look at its end and go back from there.
    `door`: of one of several ranks; `beside`: another one, whose breakpoints stop this one, too.
    Raises `OpstepError` where no plan can be made.
    """

    def __init__(
        self, host: Host, graph: str, inputs: Sequence[np.ndarray], types: Sequence[TensorType],
        names: Sequence[str], *, policy: Policy, memory_budget: int, steps: int = 1,
        stop_on_entry: bool = False, files: Path | None = None, stop_at_end: bool = False,
        locate: Callable[[str, str], str | None] = lambda file, folder: None,
        door: Door | None = None, beside: Debugger | None = None,
    ):  # fmt: skip
        self.stop_on_entry = stop_on_entry
        self.on_output: Callable[[str, Frame | None], Any] = lambda text, frame: None
        self.stop: Stop | None = None
        self.machine = Machine(
            host,
            graph,
            inputs,
            types,
            names,
            policy,
            steps,
            memory_budget,
            self._output_dropped,
            door,
        )
        self._locate, self._view = locate, "graph"
        lines = self._lines()
        self.breakpoints = Breakpoints(host.texts(), list(host.tensors), lines)
        self.stop_point = StopPoint(self.machine, files, lines)
        self._mailbox = Mailbox()
        if beside is not None:
            self.breakpoints, self._mailbox = beside.breakpoints, beside._mailbox
        self._checks = Checks(self.machine, self.breakpoints, self.stop_point, self._output)
        self._runner = Runner(
            self.machine, self.stop_point, self.breakpoints, self._checks,
            self._mailbox if door is None else Mailbox(),  # of ranks whoever moves them looks
            stop_at_end,
        )  # fmt: skip
        self._goto = Goto(self.machine, self.breakpoints, self.stop_point)

    def _output(self, text: str, frame: Frame | None) -> None:
        self.on_output(text, frame)

    def _output_dropped(self, names: list[str]) -> None:
        self._output(f"{NO_LONGER}: {', '.join(names)}.", None)

    label = ""  # of several ranks, whose it is: ``rank 2: ``

    # --- from other threads ---

    def pause(self) -> None:
        """Stops the run as soon as the op that it is at is done. From any thread."""
        self._mailbox.pausing.set()

    def later(self, function: Callable[[], Any]) -> None:
        """Has a function called between two points of the run. From any thread."""
        self._mailbox.calls.append(function)

    # --- where it stands ---

    @property
    def host(self) -> Host:
        """The program as it is now: `reload` brings another."""
        return self.machine.host

    @property
    def position(self) -> int:
        """Points passed."""
        return self.machine.history.cursor

    @property
    def outputs(self) -> Mapping[str, np.ndarray] | None:
        """What a run that ended at full speed has given."""
        return self._runner.outputs

    def result(self) -> dict[str, np.ndarray]:
        """What the last step gave, by the names returned; once the run has ended."""
        if self.outputs is not None:
            return dict(self.outputs)
        finished = self.machine.history.finished
        if not finished:
            raise InputError("the run has given no results")
        returned = finished[-1][1].plan.frames[0].graph.body[-1:]
        names = [v.text for s in returned for v in getattr(s, "values", ())]
        arrays = [self.machine.executor.array(n) for n in self.machine.outputs()]
        return dict(zip(names, arrays, strict=True))

    def results(self) -> dict[str, np.ndarray]:
        """The same; of several ranks, what each has that another has not."""
        return self.result()

    def at(self, thread: int) -> Debugger:
        """That of the rank of a thread, where there are several."""
        return self

    def of(self, frame: Frame) -> Debugger:
        """That of the rank of a frame, where there are several."""
        return self

    def threads(self) -> list[tuple[int, str]]:
        """The streams of the plan that is run."""
        return [(k, f"stream {k}") for k in range(self.stop_point.streams())]

    def stack(self, thread: int | None = None) -> list[Frame]:
        """The frames of a stream, innermost first: what it runs next, or has run last (`view`)."""
        return self.stop_point.view(self.stop_point.stack(thread))

    def calls(self) -> list[Frame]:
        """The frames of graphs, whatever is shown in their place."""
        return self.stop_point.stack()

    @property
    def view(self) -> str:
        """What frames show, and steps by lines go by: "graph", the program's text; "python", the
        lines that it was imported from, where there are any; "auto", those that are found here.
        """
        return self._view

    @view.setter
    def view(self, view: str) -> None:
        self.show(view)

    def show(self, view: str) -> None:
        """Of this run; see `view`."""
        changed = "python" in (view, self._view) and view != self._view
        self._view, self.stop_point.shows_python = view, view != "graph"
        if changed:
            self._read_lines()

    def _lines(self) -> PythonLines:
        texts = self.host.texts()
        file = Path(texts[0].source.path) if texts else Path()
        imported = file.stat().st_mtime if file.is_file() else time()
        known = self._view == "python", self.host.changed_in_place
        return PythonLines(texts, self._locate, imported, *known)

    def _read_lines(self) -> list[Breakpoint]:
        """Those of the program as it is now. Gives the breakpoints that moved."""
        lines = self._lines()
        self.stop_point.read(lines)
        self.stop_point.level = None
        return self.breakpoints.relocate(self.host.texts(), lines)

    def scope(self, frame: Frame | None = None, extra: dict[str, Node] | None = None) -> FrameScope:
        """The names of a frame, the innermost one with values if none is given."""
        return self.stop_point.scope(frame, extra)

    def evaluate(
        self, text: str, frame: Frame | None = None, extra: dict[str, Node] | None = None
    ) -> Any:
        """The value of an expression. Raises `ExpressionError`."""
        return parse(text).evaluate(self.scope(frame, extra))

    # --- commands ---

    def start(self) -> Stop:
        """Runs to the first stop."""
        at_entry = self.stop_on_entry
        return self._driven(lambda one: one._first_moves(at_entry))

    def _first_moves(self, at_entry: bool) -> Moves:
        if at_entry:
            here = self.stop_point.point()
            self.stop_point.level = 0 if here and self.stop_point.shows_python else None
            return self._runner.stopped("entry")
        return self._checks.at_point() or (yield from self.moves("continue", None, "statement"))

    def go(
        self, command: str, thread: int | None = None, granularity: str = "statement",
        alone: bool = False,
    ) -> Stop:  # fmt: skip
        """Runs until a stop: see `COMMANDS`. `thread`: the stream that is to make the step.
        `granularity` "instruction": forward steps run one launch of a kernel, or, where Python is
        shown, one op; else steps run a line of what is shown. `alone`: of several ranks this one.
        """
        return self._driven(lambda one: one.moves(command, thread, granularity), alone)

    def moves(self, command: str, thread: int | None, granularity: str) -> Moves:
        """What `go` does, a point at a time."""
        runner, stop_point = self._runner, self.stop_point
        if command in FORWARDS:
            runner.pass_hidden()
        if self._stands_in_python():
            if command in ("continue", "reverse_continue") or granularity != "instruction":
                return (yield from self._line_step(command, thread))
        elif granularity == "instruction" and command in ("in", "over"):
            return (yield from runner.launch())
        if command == "continue":
            return (yield from self._continue())
        if command == "reverse_continue":
            here = self._problem_here()
            return here or (yield from runner.backwards(lambda here: False))
        if stop_point.after_op and command in ("in", "over"):
            stop_point.after_op = False  # the statement that is next was not shown yet
            here = stop_point.point()
            if here is not None and not hidden(here):
                return self._checks.at_point() or runner.stopped("step")
        arrived = self._of_stream(arrival(command, stop_point.point()), thread)
        if command in BACKWARDS:
            return (yield from runner.backwards(arrived))
        return (yield from runner.forwards(arrived))

    def run_to(self, path: str, line: int) -> Stop:
        """Continues to a line, or to where something else stops it. Raises `InputError`."""
        found = self.breakpoints.at_line(path, line)
        if not found:
            raise InputError(f"there is no statement at {path}:{line}")
        levels = {id(start.statement): start.level for start in found}
        return self._driven(lambda one: one._moves_to(levels))

    def _moves_to(self, levels: dict[int, int | None]) -> Moves:
        stop = yield from self._runner.forwards(lambda at: id(at[1].statement) in levels)
        here = self.stop_point.point()
        if stop.reason == "step" and here is not None:
            self.stop_point.level = levels[id(here[1].statement)]
        return stop

    def _driven(self, moves: Callable[[Debugger], Moves], alone: bool = False) -> Stop:
        """Makes moves until a stop."""
        self._mailbox.pausing.clear()
        return self._stopped(finished(moves(self)))

    def stop_for(self, problem: Problem, after_op: bool) -> Stop:
        """Stops where it stands, for a problem that was found elsewhere; `after_op`: after the op
        that was passed last, if it is that one's.
        """
        self.stop_point.after_op = after_op
        thread = self.stop_point.stream()
        return self._stopped(Stop("exception", problem.kind, thread, (), problem))

    def stand_at(self, problem: Problem) -> Stop:
        """Goes back to after the op that a problem is of. Raises `InputError`."""
        history = self.machine.history
        if not history.base < problem.position <= history.frontier:
            raise InputError("the run has gone past it")
        history.cursor = problem.position
        return self.stop_for(problem, after_op=True)

    def stand_behind(self, node: Node, problem: Callable[[int], Problem]) -> Stop:
        """Goes back to after the op that computed a value, for what is wrong with it: `problem` is
        given the position. Raises `InputError` where that op is not known any more.
        """
        position = self.machine.history.behind(node)
        if position is None:
            raise InputError(f"{node.name}: the run has gone past this value")
        self.machine.history.cursor = position
        return self.stop_for(problem(position), after_op=True)

    def restart(self) -> Stop:
        """Begins anew, as the program's text is now, with the named tensors that it had when it
        began. What was set by hand is forgotten.
        """
        self._begin_anew()
        return self.start()

    def _begin_anew(self) -> None:
        self.machine.executor.settle()
        self.host.begin_anew()
        self.machine.restart()
        self._runner.outputs = None
        self.stop_point.leave()

    # --- going elsewhere ---

    def goto_targets(self, path: str, line: int) -> list[Target]:
        """Targets of `goto` for a line: its last visit before where one stands, else the next one
        that was run, else the point ahead in the present frame.
        """
        return self._goto.targets(path, line)

    def can_go(self, number: int) -> bool:
        """Whether `goto` has a target of that number."""
        return number in self._goto.found

    def goto(self, number: int) -> Stop:
        """Goes to a target. Raises `InputError`, where an operand there has no value too."""
        target = self._goto.go(number)
        self.stop_point.after_op, self.stop_point.level = False, target.level
        return self._stopped(self._runner.stopped("goto", target.label))

    def restart_frame(self, frame: Frame) -> Stop:
        """Goes back to where a frame was entered."""
        self.machine.history.cursor = entry_of(frame)
        self.stop_point.leave()
        self.stop_point.level = 0 if self.stop_point.shows_python else None
        text = f"at the beginning of {frame.name}"
        return self._stopped(self._runner.stopped("restart", text))

    # --- changing things ---

    def set(
        self, frame: Frame, name: str, array: np.ndarray, part: np.ndarray | None = None
    ) -> Node:
        """Gives a name another value, of its type. What depends on it is computed again, up to
        where one stands (or after it, where that does not come any more); nothing else is.

        `part`: which elements are given, as bools; the others stay what they are computed to be,
        also when something before is set. What was set before holds; what cannot (its loop ends
        earlier now) is reported by `on_output`. Raises `InputError`.
        """
        old = frame.lookup(name)
        if old is None:
            raise InputError(f"{name} has no value here")
        if array.shape != old.type.shape:
            new_type = TensorType(old.type.dtype, array.shape)
            raise InputError(f"{name} is {old.type}, not {new_type}")
        machine, history = self.machine, self.machine.history
        location, position = history.location(), history.cursor
        array = np.array(array, old.type.dtype.numpy)
        value = frame.value(name)
        if value is None:
            history.set_named(name, array, part)
        else:
            frame.check_settable(name)
            history.set(frame.activation, value, frame.frame, name, array, part)
            if others := frame.namesakes(name):
                self._output(f"{', '.join(others)} and {name} are one value: both are set", frame)
        self._goto.found.clear()
        after_op, self.stop_point.after_op = (
            self.stop_point.after_op,
            False,
        )  # an op may fail on the way
        machine.run_to(location, position)
        self.stop_point.after_op = after_op and history.location() == location
        return frame.lookup(name) or old

    def reload(self) -> Reloaded:
        """Reads the file again and goes on with it, at the start of the present frame. Values whose
        op and operands are the same are kept. Raises `OpstepError`; then nothing has changed.
        """
        machine = self.machine
        frames, length = self.stop_point.stack(), machine.history.cursor
        host = self.host.reload()
        host.plan_for(machine.graph, machine.types, machine.policy)  # else one stays where one is
        if not frames:  # nothing is kept of a run at full speed
            restart_program(machine, host)
            self._runner.outputs = None
            moved = self._read_lines()
            self._stopped(self._runner.stopped("restart", "nothing was kept"))
            return Reloaded(0, 0, moved, [])
        self.stop_point.after_op = False
        dropped = replace_program(machine, host)
        deque(replayed(machine, length, frames), 0)
        moved = self._read_lines()
        hits, lookups = machine.memo_hits, machine.memo_lookups
        self._stopped(self._runner.stopped("restart", f"kept {hits} of {lookups} values"))
        return Reloaded(hits, lookups, moved, dropped)

    # --- helpers ---

    def _stopped(self, stop: Stop) -> Stop:
        self.stop = stop
        self._goto.found.clear()
        self._mailbox.pausing.clear()
        return stop

    def _continue(self) -> Moves:
        if self.stop_point.after_op:  # what is next was not shown yet
            self.stop_point.leave()
            stop = self._checks.at_point()
            if stop:
                return stop
        while True:
            stop = self._runner.full_speed()
            if stop:
                return stop
            stop = yield from self._runner.forwards(self._runner.is_fast_at)
            if stop.reason != "step":
                return stop

    def _problem_here(self) -> Stop | None:
        """Trouble that one stands after, and that has not been reported."""
        watched = self.breakpoints.filters or self.breakpoints.data
        return self._runner.stop_after_op() if watched and not self.stop_point.after_op else None

    def _stands_in_python(self) -> bool:
        """Whether the function that is innermost is one of Python's that is shown."""
        here = self.stop_point.point_or_last()
        if here is None or not (self.stop_point.shows_python and self.stop_point.lines.imported):
            return False
        graph = here[0].plan.frames[here[1].frame].graph
        return self.stop_point.lines.shown(graph, here[1].statement) is not None

    def _line_step(self, command: str, thread: int | None) -> Moves:
        """A step of one line of Python; also where a function is entered without an op."""
        runner, stop_point, lines = self._runner, self.stop_point, self.stop_point.lines
        here, level, after_op = stop_point.point(), stop_point.level, stop_point.after_op
        stop = None if here is None or after_op else self._at_level(here, command)
        if stop is not None:
            return stop
        if command == "continue":
            return (yield from self._continue())
        if command == "reverse_continue":
            problem = self._problem_here()
            return problem or (yield from runner.backwards(lambda here: False))
        step = LineStep(lines, here, level)
        arrived = self._of_stream(step.arrival(command), thread)
        if command in BACKWARDS:
            stop = yield from runner.backwards(arrived)
        elif after_op:
            stop_point.leave()  # the statement that is next was not shown yet
            following = stop_point.point()
            stop = self._checks.at_point()
            if stop is None and following and not hidden(following) and arrived(following):
                stop = runner.stopped("step")
        if stop is None:
            stop = yield from runner.forwards(arrived)
        if stop.reason == "step":
            stop_point.level = step.level
        return stop

    def _at_level(self, here: tuple[Activation, Point], command: str) -> Stop | None:
        """Into a function of Python that is called at this very point, or back out of it; or to a
        breakpoint on a line there.
        """
        graph = here[0].plan.frames[here[1].frame].graph
        origin, stop_point = self.stop_point.lines.origin(graph, here[1].statement), self.stop_point
        if origin is None:
            return None
        innermost = len(origin.lines) - 1
        level, forwards = stop_point.level, command not in BACKWARDS
        level = innermost if level is None else level
        if level == innermost if forwards else level <= origin.begins:
            return None
        stop = self._checks.at_point(forwards, level)
        if stop is None and command not in ("in", "back", "back_in", "back_out"):
            return None
        if stop is None:
            stop_point.level = level + 1 if forwards else level - 1
        return stop or self._runner.stopped("step")

    def _of_stream(self, arrived: Arrived, thread: int | None) -> Arrived:
        if thread is None or self.stop_point.streams() < 2:
            return arrived
        return lambda at: at[1].stream == thread and arrived(at)
