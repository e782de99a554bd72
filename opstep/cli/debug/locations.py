"""Where a command is to happen: ``12``, ``lenet.opg:12``, ``features``, ``conv2d``, ``h.c1``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.cli.common import amount
from opstep.cli.debug.points import Location
from opstep.cli.debug.registry import Refused
from opstep.runtime.debugger.python.files import python_file
from opstep.runtime.ir.diagnostics import visible

if TYPE_CHECKING:
    from opstep.cli.debug.session import Session

_NUMBER = re.compile(r"[+-]?\d{1,9}$")
_NAME = re.compile(r"[A-Za-z_][\w.]*$")


def locate(session: Session, text: str) -> Location:
    """What the words of a command mean; none: where one stands. Raises `Refused`."""
    text = text.strip()
    if not text:
        frame = session.frame()
        return Location(frame.path, frame.line)
    if _NUMBER.match(text):
        frame = session.frame()
        line = int(text)
        if text[0] in "+-":
            line += frame.line
        return Location(frame.path, line)
    path, colon, rest = text.rpartition(":")
    if colon and rest.isdecimal() and len(rest) < 10 and path:
        return Location(resolve_file(session, path), int(rest))
    if colon and _NAME.match(rest) and path:
        file = resolve_file(session, path)
        return of_function([file], rest) or Location(name=rest)
    if _NAME.match(text):
        return Location(name=text)
    raise Refused(
        f"{visible(text[:60])} is not a place", "write a line, FILE:LINE, a graph or an op"
    )


def resolve_file(session: Session, name: str) -> str:
    """The path of one of the program's texts, or of a file that it was imported from. Raises
    `Refused`.
    """
    paths = [t.source.path for t in session.debugger.host.texts()]
    paths += session.debugger.stop_point.lines.starts()
    for path in paths:
        if path == name or Path(path).name == name or _same(path, name):
            return path
    names = ", ".join(dict.fromkeys(visible(Path(p).name) for p in paths))
    raise Refused(f"the program has no file {visible(name[:60])}", f"its files: {names}")


def _same(a: str, b: str) -> bool:
    try:
        return Path(a).resolve() == Path(b).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def line_of(session: Session, found: Location) -> Location:
    """A place as a line: of a graph its first statement, of a value where it is computed. Raises
    `Refused`.
    """
    if not found.name:
        return found
    for text in session.debugger.host.texts():
        for graph in text.graphs:
            if graph.name.text == found.name and graph.body:
                line = text.source.locate(graph.body[0].span.start)[0]
                return Location(text.source.path, line)
    lines = computed_at(session, found.name)
    if not lines and (place := of_function(_python_files(session), found.name)):
        return place
    if not lines:
        raise Refused(f"no graph and no value is called {found.name}")
    return lines[0]


def computed_at(session: Session, name: str) -> list[Location]:
    """The lines that compute a value: ``c1``, ``features.c1``."""
    from opstep.runtime.ir.graph import Apply

    found = []
    for text in session.debugger.host.texts():
        for graph in text.graphs:
            of_graph = f"{graph.name.text}."
            value = name.removeprefix(of_graph)
            for one in graph.body:
                if isinstance(one, Apply) and value in [r.name.text for r in one.results]:
                    line = text.source.locate(one.span.start)[0]
                    found.append(Location(text.source.path, line))
    return found


def stopping(session: Session, found: Location) -> Location:
    """Where a breakpoint is: a value that one line computes is that line, a function of Python is
    where it begins. Raises `Refused` for a line that a file does not have.
    """
    from opstep.runtime.ir.foreign import is_foreign_name
    from opstep.runtime.ir.op import OPS

    file = python_file(found.path) if found.path.endswith(".py") else None
    if file is not None and not 1 <= found.line <= len(file.lines):
        raise Refused(f"{Path(found.path).name} has {amount(len(file.lines), 'line')}")
    graphs = {g.name.text for t in session.debugger.host.texts() for g in t.graphs}
    if not found.name or found.name in {*graphs, *OPS} or is_foreign_name(found.name):
        return found
    lines = computed_at(session, found.name)
    if not lines:
        return of_function(_python_files(session), found.name) or found
    return lines[0] if len(lines) == 1 else found


def of_function(paths: Iterable[str], name: str) -> Location | None:
    """Where a function of Python begins, such as ``Net.forward``. Raises `Refused` where several
    files have one.
    """
    files = filter(None, map(python_file, dict.fromkeys(paths)))
    found = []
    for file in files:
        around = map(file.function, range(1, len(file.lines) + 1))
        begins = dict.fromkeys(f.first for f in around if f is not None and f.name == name)
        found += [Location(file.path, line) for line in begins]
    if len(found) > 1:
        raise Refused(f"there are several {name}", f"choose from {', '.join(map(str, found))}")
    return found[0] if found else None


def _python_files(session: Session) -> list[str]:
    """Those that the program came from."""
    return [str(Path(path).resolve()) for path in session.debugger.stop_point.lines.starts()]


def lines_of(session: Session, path: str) -> list[str]:
    for text in session.debugger.host.texts():
        if text.source.path == path:
            return text.source.text.splitlines()
    file = python_file(path)
    if file is not None and path in session.debugger.stop_point.lines.starts():
        return file.lines
    raise Refused(f"the program has no file {path}")
