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

Location = tuple[Activation, Point]
Path = tuple[tuple[Activation | None, int, int], ...]  # with frame of the plan, execution

UNKNOWN = -1  # the execution of a line that is not known


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
            self._from = self._path(around, at, runs)

    def arrival(self, command: str) -> Callable[[Location], bool]:
        """Which points the command of that name leads to."""
        return {
            "in": self._into, "over": self._over, "until": self._over, "out": self._out,
            "back": self._back, "back_in": self._back_in, "back_out": self._back_out,
        }[command]  # fmt: skip

    # --- forwards ---

    def _into(self, at: Location) -> bool:
        path, own, around = self._of(at)
        if own is None or path == self._from:
            return False
        return self._arrived(min(self._in_common(path), len(path) - 1), around, own)

    def _over(self, at: Location) -> bool:
        if self._is_within(at):
            return False
        path, own, around = self._of(at)
        same = self._in_common(path)
        if own is None or same == len(self._from):
            return False
        return self._arrived(min(same, len(path) - 1), around, own)

    def _out(self, at: Location) -> bool:
        path, own, around = self._of(at)
        same = self._in_common(path)
        if own is None or same >= len(self._from) - 1 < len(path):
            return False
        return self._arrived(min(same, len(path) - 1), around, own)

    # --- backwards ---

    def _back(self, at: Location) -> bool:
        if len(self._outside(at[0], at[1].frame)) >= len(self._from):
            return False  # in what a line has called: told fast, as a call may have many points
        return self._back_to(at, len(self._from) - 1)

    def _back_in(self, at: Location) -> bool:
        return self._back_to(at)

    def _back_out(self, at: Location) -> bool:
        return self._back_to(at, len(self._from) - 2)

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
        return self._at_begin(depth, around, own)

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
        return self._path(around, at, own.runs) if own else around, own, len(around)

    def _parts(self, at: Location) -> tuple[Path, Origin | None]:
        activation, point = at
        graph = activation.plan.frames[point.frame].graph
        own = self._lines.origin(graph, point.statement)
        return self._outside(activation, point.frame), own

    def _path(self, around: Path, at: Location, runs: tuple[int, ...]) -> Path:
        activation, frame = at[0], at[1].frame
        return (*around, *((activation, frame, run) for run in runs))

    def _outside(self, activation: Activation, frame: int) -> Path:
        """The path of what called a frame."""
        key = activation, frame
        found = self._around.get(key)
        if found is None:
            found = self._around[key] = self._path_of_caller(activation, frame)
        return found

    def _path_of_caller(self, activation: Activation, frame: int) -> Path:
        caller = activation.caller(frame)
        if caller is None:
            return ()
        activation, frame, statement = caller
        own = self._lines.origin(activation.plan.frames[frame].graph, statement)
        around = self._outside(activation, frame)
        runs = own.runs if own else ()
        return (*around, *((activation, frame, run) for run in runs))

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

    def _at_begin(self, depth: int, around: int, own: Origin) -> bool:
        """Whether the execution of the line so deep in a path begins at this point."""
        level = depth - around
        return own.begins <= level < len(own.lines) and self._arrived(depth, around, own)
