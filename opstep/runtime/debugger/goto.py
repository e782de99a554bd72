"""Jumps to a line: back to its last visit, on to the next one, or ahead over what lies between."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.debugger.breakpoints import Breakpoints
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.machine import Machine, Skipped
from opstep.runtime.debugger.stop_point import StopPoint, hidden
from opstep.runtime.ir.errors import InputError

Levels = dict[int, int | None]  # by the ids of statements
ELSEWHERE = -1  # the level of a statement that the line is not of


class Target(NamedTuple):
    """A place that one can go to. `position` is -1 for one that has not been reached yet; `level`:
    of a line of Python, see `StopPoint`.
    """

    number: int
    position: int
    index: int
    line: int
    label: str
    level: int | None


class Goto:
    """`found`: the targets that were found last, by their numbers, until the run goes on."""

    def __init__(self, machine: Machine, breakpoints: Breakpoints, stop_point: StopPoint):
        self.machine = machine
        self.stop_point = stop_point
        self.breakpoints = breakpoints
        self.found: dict[int, Target] = {}

    def targets(self, path: str, line: int) -> list[Target]:
        """For a line: its last visit before the cursor; if there is none, the next one that was
        run; if there is none either, the point ahead in the present frame.
        """
        self.found.clear()
        starts = self.breakpoints.at_line(path, line)
        if not starts:
            return []
        number, levels = starts[0].first, {id(s.statement): s.level for s in starts}
        target = self._reached(levels, number) or self._ahead(levels, number)
        if target is not None:
            self.found[target.number] = target
        return list(self.found.values())

    def _reached(self, levels: Levels, line: int) -> Target | None:
        history = self.machine.history
        cursor, base, here = history.cursor, history.base, history.next_point()
        before = range(cursor if here else cursor - 1, base - 1, -1)
        for word, positions in (("back", before), ("on", range(cursor, history.frontier))):
            for position in positions:
                if position == cursor and here:
                    activation, k = here[0], history.index()
                else:
                    activation, k = history.log[position - base]
                point = activation.points[k]
                level = levels.get(id(point.statement), ELSEWHERE)
                if level == ELSEWHERE or hidden((activation, point)):
                    continue
                if position == cursor and not self._leads(word, level):
                    continue
                label = f"line {line}, {word} in {activation.frame_name(point.frame)}"
                return Target(1, position, k, line, label, level)
        return None

    def _leads(self, word: str, level: int | None) -> bool:
        """Whether one gets anywhere by going to a level of the very point that is next."""
        if self.stop_point.after_op:
            return word == "on"
        here = self.stop_point.level
        if word == "back":
            return level is not None and (here is None or level < here)
        return level is not None and here is not None and level > here

    def _ahead(self, levels: Levels, line: int) -> Target | None:
        history = self.machine.history
        here = history.next_point()
        if here is None:
            return None
        activation, at = here
        for k in range(history.index() + 1, len(activation.points)):
            point = activation.points[k]
            if id(point.statement) in levels and point.frame == at.frame:
                label, level = f"line {line}, past what lies between", levels[id(point.statement)]
                return Target(1, -1, k, line, label, level)
        return None

    def go(self, number: int) -> Target:
        """Goes to a target. Raises `InputError`, where an operand there has no value too."""
        target = self.found.get(number)
        if target is None:
            raise InputError("there is no such target any more")
        if target.position >= 0:
            self.machine.history.cursor = target.position
            return target
        try:
            self.machine.jump(target.index)
        except Skipped as error:
            hint = "run what computes it first"
            raise InputError(f"{error.name} has no value yet", hint=hint) from None
        return target


def entry_of(frame: Frame) -> int:
    """The position at which a frame was entered."""
    history, found = frame.machine.history, None
    here = history.next_point()
    stands = here and here[0] is frame.activation and here[1].frame == frame.frame
    entered = (
        history.cursor == frame.position and history.index() in frame.activation.points.entered
    )
    if stands and entered:
        return frame.position
    for position in range(min(frame.position, history.frontier) - 1, history.base - 1, -1):
        activation, k = history.log[position - history.base]
        if activation is not frame.activation:
            continue
        found = position
        entered = k in activation.points.entered
        if entered and activation.points[k].frame == frame.frame:
            return position
    return max(frame.activation.start, history.base) if found is None else found
