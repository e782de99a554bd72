"""Steps by lines of Python: over what a line calls, into it, out of a function, and back.

A point has a *path*: the executions of lines that it is part of, from the outermost function to
the innermost. Several functions may be entered at one point, as those that a line calls directly
are not called at run time: then the run stands at a *level* of the point's origin, and a step into
the function moves no further than to the next level.
"""

from __future__ import annotations

from collections.abc import Callable

from opstep.runtime.debugger.activation import Activation, Point
from opstep.runtime.debugger.python.lines import Origin, PythonLines
from opstep.runtime.ir.graph import Statement

Location = tuple[Activation, Point]
Path = tuple[tuple[Activation | None, int, int], ...]  # with frame of the plan, execution

UNKNOWN = -1  # the execution of a line that is not known


def _path(around: Path, activation: Activation, frame: int, runs: tuple[int, ...]) -> Path:
    return (*around, *((activation, frame, run) for run in runs))


class LineStep:
    """One step from a point, and the level there. `level`: where it has arrived."""

    def __init__(self, lines: PythonLines, at: Location | None, level: int | None):
        self._lines = lines
        self._around: dict[tuple[Activation, int], Path] = {}
        self._within: dict[tuple[Activation, int], bool] = {}
        self.level: int | None = None
        self._from: Path = ((None, 0, UNKNOWN),)
        if at is not None:
            around, own = self._parts(at)
            runs = own.runs[: None if level is None else level + 1] if own else (UNKNOWN,)
            self._from = _path(around, at[0], at[1].frame, runs)

    def arrival(self, command: str) -> Callable[[Location], bool]:
        """Which points the command of that name leads to."""
        length = len(self._from)

        def over(at: Location) -> bool:
            return not self._is_within(at) and self._forwards(at, lambda _, same: same < length)

        def out(at: Location) -> bool:
            return self._forwards(at, lambda path, same: same < length - 1 or len(path) < length)

        def back(at: Location) -> bool:
            if len(self._outside(at[0], at[1].frame)) >= length:
                return False  # in what a line has called: told fast, as a call may have many points
            return self._back_to(at, length - 1)

        return {
            "in": lambda at: self._forwards(at, lambda path, _: path != self._from),
            "over": over, "until": over, "out": out, "back": back, "back_in": self._back_to,
            "back_out": lambda at: self._back_to(at, length - 2),
        }[command]  # fmt: skip

    def _forwards(self, at: Location, leads: Callable[[Path, int], bool]) -> bool:
        """At a line, if a step leads to its path, of which so much is where it began, too."""
        path, own, around = self._of(at)
        same = self._in_common(path)
        if own is None or not leads(path, same):
            return False
        return self._arrived(min(same, len(path) - 1), around, own)

    def _back_to(self, at: Location, deepest: int | None = None) -> bool:
        """At a line that has called the one that the step began at, or where the execution of
        another one begins, so deep in the path at most.
        """
        path, own, around = self._of(at)
        same = self._in_common(path)
        if own is None:
            return False
        if same == len(path) < len(self._from):
            return self._arrived(same - 1, around, own)
        depth = len(path) - 1 if deepest is None else min(same, deepest)
        begins = own.begins <= depth - around < len(own.lines)  # an execution, at this point
        return begins and self._arrived(depth, around, own)

    # --- paths ---

    def _is_within(self, at: Location) -> bool:
        """Whether the line that the step began at has called the graph of a point."""
        key = at[0], at[1].frame
        found = self._within.get(key)
        if found is None:
            around = self._outside(*key)
            found = self._within[key] = around[: len(self._from)] == self._from
        return found

    def _of(self, at: Location) -> tuple[Path, Origin | None, int]:
        """A point's path, its origin, and how many lines are around its call."""
        around, own = self._parts(at)
        path = _path(around, at[0], at[1].frame, own.runs) if own else around
        return path, own, len(around)

    def _parts(self, at: Location) -> tuple[Path, Origin | None]:
        activation, point = at
        graph = activation.plan.frames[point.frame].graph
        own = self._lines.origin(graph, point.statement)
        return self._outside(activation, point.frame), own

    def _outside(self, activation: Activation, frame: int) -> Path:
        """The path of what called a frame."""
        key = activation, frame
        found = self._around.get(key)
        if found is None:
            caller = activation.caller(frame)
            found = self._around[key] = () if caller is None else self._path_to(*caller)
        return found

    def _path_to(self, activation: Activation, frame: int, statement: Statement | None) -> Path:
        own = self._lines.origin(activation.plan.frames[frame].graph, statement)
        return _path(self._outside(activation, frame), activation, frame, own.runs if own else ())

    def _in_common(self, path: Path) -> int:
        k = 0
        for one, other in zip(path, self._from, strict=False):
            if one != other:
                break
            k += 1
        return k

    def _arrived(self, depth: int, around: int, own: Origin) -> bool:
        """At the line so deep in a path."""
        self.level = min(max(depth - around, 0), len(own.lines) - 1)
        return True
