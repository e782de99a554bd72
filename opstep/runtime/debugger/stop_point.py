"""The point where a stopped run is shown, and what is seen from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opstep.runtime.debugger.activation import OP, RETURN, Activation, Node, Point
from opstep.runtime.debugger.frames import Frame, innermost, stack
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.python.lines import PythonLines
from opstep.runtime.debugger.python.names import PythonNames
from opstep.runtime.debugger.python.stack import python_stack
from opstep.runtime.debugger.scope import FrameScope
from opstep.runtime.ir.errors import InputError

RecordedRuns = Callable[[str, int | None], Any]


class StopPoint:
    """The point that is next; or (`after_op`) the op that was just passed, with its results.
    `level`: the innermost function of Python that is entered there, of those that the point is in;
    None: all are. `shows_python`: in the place of graphs.

    `files`: the folder below which expressions may load arrays; `runs`: runs of a workspace, by
    their key, for expressions.
    """

    def __init__(self, machine: Machine, files: Path | None, lines: PythonLines):
        self.machine = machine
        self.after_op = False
        self.level: int | None = None
        self.shows_python = False
        self.read(lines)
        self.files = files
        self.runs: RecordedRuns | None = None

    def read(self, lines: PythonLines) -> None:
        """These are the lines that the program was imported from."""
        self.lines, self.names = lines, PythonNames(lines)

    def leave(self) -> None:
        """It stands before the point that is next, and in all functions of Python there."""
        self.after_op, self.level = False, None

    def point(self) -> tuple[Activation, Point] | None:
        """The point; None at the end of the run."""
        history = self.machine.history
        if not self.after_op:
            return history.next_point()
        return _of_op(history.last_point())

    def point_or_last(self) -> tuple[Activation, Point] | None:
        """The same, but at the end of the run the last one."""
        return self.point() or self.machine.history.last_point()

    def stands_behind(self, node: Node) -> bool:
        """Whether the op that was just passed is the one that computed a value."""
        history, home = self.machine.history, node.home
        own = home is not None and home[0].host is self.machine.host  # no other rank's
        return self.after_op and own and history.behind(node) == history.cursor

    def stream(self) -> int:
        here = self.point()
        return here[1].stream if here else 0

    def streams(self) -> int:
        """The number of streams of the plan that is run."""
        history = self.machine.history
        here = history.next_point() or history.last_point()
        return max(here[0].plan.streams, 1) if here else 1

    def stack(self, stream: int | None = None) -> list[Frame]:
        """The frames of a stream, innermost first: what it runs next, or has run last."""
        history, at = self.machine.history, self.point_or_last()
        if at is None:
            return []
        if stream is not None and at[1].stream != stream:
            at = (at[0], _point_of_stream(at[0], history.index(), stream) or at[1])
        return stack(self.machine, at, history.cursor)

    def view(self, frames: list[Frame]) -> list[Frame]:
        """A stack with the functions of Python that are shown in the place of graphs."""
        if not self.shows_python:
            return frames
        here = self.point_or_last()
        stands = here is not None and frames and frames[0].statement is here[1].statement
        return python_stack(self.lines, frames, self.level if stands else None)

    def scope(
        self, frame: Frame | None = None, extra: dict[str, Node] | None = None, python: bool = False
    ) -> FrameScope:
        """The names of a frame, the innermost one with values if none is given; in a function of
        Python, or with `python`, those of its variables, too.
        """
        if frame is None:
            at = self.point_or_last()
            if at is None:
                raise InputError("the run has not begun")
            frame = innermost(self.machine, at, self.machine.history.cursor)
            if python:
                found = python_stack(self.lines, self.stack(), self.level)
                frame = found[0] if found else frame
        found = FrameScope(frame, extra, self.files, self.runs)
        if frame.python is not None:
            found.variables = self.names.meant(frame)
        return found


def _of_op(at: tuple[Activation, Point] | None) -> tuple[Activation, Point] | None:
    """The statement of an op that has run: of a composite, whose graph has."""
    while at is not None:
        activation, point = at
        frame = activation.plan.frames[point.frame]
        if frame.step is None:
            break
        at = (
            activation,
            point._replace(frame=frame.parent, depth=point.depth - 1, statement=frame.statement),
        )
    return at


def _point_of_stream(activation: Activation, k: int, stream: int) -> Point | None:
    """The next op of a stream in a plan, or its last."""
    points = activation.points.points
    following = (p for p in points[k:] if p.kind == OP and p.stream == stream)
    before = (p for p in reversed(points[:k]) if p.kind == OP and p.stream == stream)
    return next(following, None) or next(before, None)


def hidden(location: tuple[Activation, Point]) -> bool:
    """Whether a point is no statement of the program: a copy that the plan needs, or the end of a
    composite.
    """
    activation, point = location
    if point.kind == RETURN:
        return activation.plan.frames[point.frame].step is not None
    return point.kind == OP and activation.plan.steps[point.step].op.name == "snapshot"
