"""The lines of Python that a program's statements came from, and which ops execute a line once.

An *execution* of a line is a run of statements of a graph that came from it, or from what it
calls. It ends where another line of the same function begins, or the next turn of a loop over
modules.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from opstep.runtime.debugger.python.files import Function, PythonFile, python_file
from opstep.runtime.ir.graph import Apply, Graph, Provenance, Source, SourceLine, Statement

_NUMBERED = re.compile(r"(.*?)\b(\d+)(?=\.|$)")
_UNREAD = PythonFile("", "")
TOLERANCE_S = 2.0  # a checkout writes files in any order


class PythonLine(NamedTuple):
    """`path`: of the file, where it is found; else as the program has it. `first`: the first line
    of the statement that the line is in.
    """

    path: str
    line: int
    first: int
    file: PythonFile
    found: bool
    changed: bool  # since it was imported

    @property
    def function(self) -> Function | None:
        """The innermost around it."""
        return self.file.function(self.line)


class Origin(NamedTuple):
    """Where a statement came from, outermost function first. `runs`: the number, in its graph, of
    the execution of each line; the lines from level `begins` on are executed from this statement
    on.
    """

    lines: tuple[PythonLine, ...]
    runs: tuple[int, ...]
    begins: int
    module: str


class PythonFrame(NamedTuple):
    """A frame of Python's stack: a function at a line. `level`: of the statement's origin;
    `module`: the path of the module whose code it is, `within` that as seen from the graph's own
    module.
    """

    at: PythonLine
    line: int
    level: int
    origin: Origin
    module: str
    within: str

    @property
    def function(self) -> Function | None:
        return self.at.function

    @property
    def name(self) -> str:
        """``Block.forward (h.3)``"""
        function, file = self.function, self.at.path.rpartition("/")[2]
        name = function.name if function else f"{file}:{self.line}"
        if function is None and self.at.file.lines:
            name = "<module>"
        return f"{name} ({self.module})" if self.module else name


class Start(NamedTuple):
    """Where an execution of a line begins: at a level of a statement's origin; None for a line of
    the program's own text.
    """

    first: int
    graph: Graph
    statement: Statement
    level: int | None


class _Text(Protocol):
    """A text with its graphs."""

    @property
    def source(self) -> Source: ...
    @property
    def graphs(self) -> list[Graph]: ...


class PythonLines:
    """Of one program; its attribute `imported`: whether any statement came from Python. `locate`:
    where a file is that a program in a folder names. `imported`: when files were read, in seconds
    since the epoch. With `missing`, files that are not found count,
    too. `changing`: files, as the program has them, with lines that changed tensors in place.
    """

    def __init__(
        self, texts: Sequence[_Text], locate: Callable[[str, str], str | None], imported: float,
        missing: bool = False, changing: Collection[tuple[str, int]] | None = None,
    ):  # fmt: skip
        self._graphs = [graph for text in texts for graph in text.graphs]
        self._by_name = {graph.name.text: graph for graph in self._graphs}
        self._folders = {
            id(graph): str(Path(text.source.path).absolute().parent)
            for text in texts
            for graph in text.graphs
        }
        self.imported = any(s.at is not None for graph in self._graphs for s in graph.body)
        self._locate = locate
        self._read_at = imported
        self._missing = missing
        self._changing = changing
        self._files: dict[tuple[str, str], PythonLine | None] = {}
        self._origins: dict[int, dict[int, Origin]] = {}
        self._shown: dict[int, dict[int, Origin]] = {}
        self._starts: dict[str, list[Start]] | None = None
        self._callers: dict[str, list[Origin]] | None = None

    def graph(self, name: str) -> Graph | None:
        """The program's graph of that name."""
        return self._by_name.get(name)

    def changed_in_place(self, file: PythonFile) -> Collection[int] | None:
        """The lines of a file that changed tensors in place; None where that is not known."""
        if self._changing is None:
            return None
        names = {name for (name, _), at in self._files.items() if at and at.path == file.path}
        return {line for name, line in self._changing if name in names}

    def callers(self, graph: Graph) -> list[Origin]:
        """The places that the statements which call a graph came from."""
        if self._callers is None:
            self._callers = {}
            for caller in self._graphs:
                for statement in caller.body:
                    name = statement.callee.text if isinstance(statement, Apply) else ""
                    one = self.origin(caller, statement) if name in self._by_name else None
                    if one is not None:
                        self._callers.setdefault(name, []).append(one)
        return self._callers.get(graph.name.text, [])

    # --- of a statement ---

    def origin(self, graph: Graph, statement: Statement | None) -> Origin | None:
        """Where it came from; None where that is not known."""
        return self.of_graph(graph).get(id(statement))

    def of_graph(self, graph: Graph) -> dict[int, Origin]:
        """Of each statement of a graph that has one, by its id."""
        found = self._origins.get(id(graph))
        if found is None:
            found = self._origins[id(graph)] = self._origins_of(graph)
        return found

    def shown(self, graph: Graph, statement: Statement | None) -> Origin | None:
        """Likewise; of what the importer added, in a graph that was imported, the function's line
        before it.
        """
        found = self.origin(graph, statement)
        if found is not None or not self.of_graph(graph):
            return found
        own = self.of_graph(graph)
        before = None
        for one in graph.body:
            before = own.get(id(one), before)
            if one is statement and before is not None:
                break
        assert before is not None
        return Origin(before.lines[:1], before.runs[:1], 1, "")

    def _origins_of(self, graph: Graph) -> dict[int, Origin]:
        found: dict[int, Origin] = {}
        last, turns, number = Origin((), (), 0, ""), _Turns(), 0
        folder = self._folders.get(id(graph), "")
        for statement in graph.body:
            at: Provenance | None = statement.at
            lines = self._lines(at, folder) if at else ()
            if at is None or not lines:
                continue
            begins = _in_common(last.lines, lines)
            if turns.another(at.owner, begins == 0):
                looping = [k for k in range(begins) if lines[k].file.calls_in_turn(lines[k].line)]
                begins = max(looping, default=begins)
            runs = (*last.runs[:begins], *range(number, number + len(lines) - begins))
            number += len(lines) - begins
            last = found[id(statement)] = Origin(lines, runs, begins, at.owner)
        return found

    def _lines(self, at: Provenance, folder: str) -> tuple[PythonLine, ...]:
        found = (self._line(frame, folder) for frame in reversed(at.frames))
        return tuple(one for one in found if one is not None)

    def _line(self, frame: SourceLine, folder: str) -> PythonLine | None:
        key = frame.file, folder
        if key not in self._files:
            self._files[key] = self._file(*key)
        of_file = self._files[key]
        if of_file is None:
            return None
        first = of_file.file.statement(frame.line).first
        return of_file._replace(line=frame.line, first=first)

    def _file(self, name: str, folder: str) -> PythonLine | None:
        if name.endswith(".opg"):  # a gradient's: it is read in its own text
            return None
        path = self._locate(name, folder)
        file = python_file(path) if path else None
        if path is None or file is None:
            return PythonLine(name, 0, 0, _UNREAD, False, False) if self._missing else None
        changed = Path(path).stat().st_mtime > self._read_at + TOLERANCE_S
        return PythonLine(path, 0, 0, _UNREAD if changed else file, True, changed)

    # --- of a line ---

    def starts(self) -> dict[str, list[Start]]:
        """Where executions begin, by the path of the file (`canonical`), in the order of lines."""
        if self._starts is None:
            self._starts = {}
            for graph in self._graphs:
                origins = self.of_graph(graph)
                for statement in graph.body if origins else ():
                    one = origins.get(id(statement))
                    if one is None:
                        continue
                    for level, line in [*enumerate(one.lines)][one.begins :]:
                        start = Start(line.first, graph, statement, level)
                        self._starts.setdefault(canonical(line.path), []).append(start)
            for found in self._starts.values():
                found.sort(key=lambda s: s.first)
        return self._starts

    def at_line(self, path: str, line: int) -> list[Start]:
        """Where executions of a line begin; or of the next one of its function that has some.
        Outside of functions, of the file.
        """
        starts, file = self.starts().get(canonical(path), []), python_file(path)
        if not starts or file is None:
            return []
        first = file.statement(line).first
        k = bisect_left(starts, first, key=lambda s: s.first)
        if k == len(starts):
            return []
        function, moved = file.function(first), starts[k].first
        if moved != first and function and moved > function.last:
            return []
        return [s for s in starts[k:] if s.first == moved]


class _Turns:
    """Tells the turns of a loop over modules: ``h.0.act`` and then ``h.1.act``."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def another(self, module: str, elsewhere: bool) -> bool:
        """Whether a module is of another turn; `elsewhere`: its statement is of another line."""
        if elsewhere:
            self._numbers.clear()
        match = _NUMBERED.match(module)
        if match is None:
            return False
        before = self._numbers.get(match[1])
        if before is not None and before != match[2]:
            self._numbers.clear()
        self._numbers[match[1]] = match[2]
        return before is not None and before != match[2]


@lru_cache(4096)
def canonical(path: str) -> str:
    """A path as it is compared."""
    try:
        return str(Path(path).resolve())
    except (OSError, ValueError, RuntimeError):
        return path


def _in_common(a: Sequence[PythonLine], b: Sequence[PythonLine]) -> int:
    """How many lines, from the outermost on, are of the same statement."""
    k = 0
    while k < min(len(a), len(b)) and (a[k].path, a[k].first) == (b[k].path, b[k].first):
        k += 1
    return k
