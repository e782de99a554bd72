"""Places in Python files: ``12``, ``net.py:12``, ``Net.forward``, ``net.py:Net.forward``; ops and
modules of PyTorch: ``op softmax``, ``module encoder.0``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opstep.cli.common import amount
from opstep.cli.debug.python.source import python_file
from opstep.cli.debug.registry import Refused
from opstep.runtime.ir.diagnostics import visible

if TYPE_CHECKING:
    from opstep.cli.debug.python.session import PythonSession

_NUMBER = re.compile(r"[+-]?\d{1,9}$")
_NAME = re.compile(r"[^\W\d][\w.<>]*$")
_OP = re.compile(r"(?:op\s+([\w:.]+)|(\w+::[\w.]+))$")
_MODULE = re.compile(r"module\s+([\w.]+)$")


class Place(NamedTuple):
    """A line of a file; or, without a path, a function of any module, an op or a module."""

    path: str
    line: int
    function: str = ""


def locate(session: PythonSession, text: str) -> Place:
    """The place that a command names; without words, the current line. Raises `Refused`."""
    text = text.strip()
    if not text:
        frame = session.frame()
        return Place(frame.path, frame.line)
    if _NUMBER.match(text):
        line = int(text) + (session.frame().line if text[0] in "+-" else 0)
        return _line(session.path, line)
    if op := _OP.match(text):
        return Place("", 0, f"op {op[1] or op[2]}")
    if module := _MODULE.match(text):
        return Place("", 0, f"module {module[1]}")
    path, colon, rest = text.rpartition(":")
    if colon and path and rest.isdecimal() and len(rest) < 10:
        return _line(find_file(session, path), int(rest))
    if colon and path and _NAME.match(rest):
        found = find_file(session, path)
        line = function_at(found, rest)
        if line is None:
            raise Refused(f"{Path(found).name} has no function {visible(rest[:60])}")
        return Place(found, line)
    if not _NAME.match(text):
        raise Refused(
            f"{visible(text[:60])} is not a place", "write a line, FILE:LINE or a function"
        )
    return _function(session, text)


def _line(path: str, line: int) -> Place:
    """Raises `Refused` for a line that a file does not have."""
    file = python_file(path)
    if file is not None and not 1 <= line <= len(file.lines):
        raise Refused(f"{Path(path).name} has {amount(len(file.lines), 'line')}")
    return Place(path, line)


def _function(session: PythonSession, name: str) -> Place:
    """Raises `Refused` where several files have it, or a class that is known has not."""
    found = {path: function_at(path, name) for path in known_files(session)}
    places = [Place(path, line) for path, line in found.items() if line is not None]
    if len(places) > 1:
        listed = ", ".join(f"{Path(p.path).name}:{name}" for p in places)
        raise Refused(f"there are several {name}", f"choose from {listed}")
    owner = name.rpartition(".")[0]
    files = filter(None, map(python_file, found))
    if not places and any(owner in file.alone for file in files):
        raise Refused(f"no function is called {name}", "in another file: break FILE:FUNCTION")
    return places[0] if places else Place("", 0, name)


def function_at(path: str, name: str) -> int | None:
    """The line of a function's first statement."""
    file = python_file(path)
    return next((f.line for f in file.functions if f.name == name), None) if file else None


def known_files(session: PythonSession) -> list[str]:
    """The script's, and those that the frames are in."""
    script = str(Path(session.script.path).absolute())
    frames = [frame.path for frame in session.frames() if Path(frame.path).is_file()]
    return list(dict.fromkeys([script, *frames]))


def find_file(session: PythonSession, name: str) -> str:
    """Of a name: a file that is known, one here, or one beside the script. Raises `Refused`."""
    for path in known_files(session):
        if name == path or Path(path).name == name:
            return path
    for folder in (Path.cwd(), Path(session.script.path).absolute().parent):
        path = folder / Path(name).expanduser()
        if path.is_file():
            return str(path.resolve())
    raise Refused(f"there is no file {visible(name[:60])}", "write its path")
