"""Commands that look at the stack and at the text."""

from __future__ import annotations

from opstep.cli.debug import showing
from opstep.cli.debug.locations import count, line_of, locate
from opstep.cli.debug.registry import Refused, command
from opstep.cli.debug.session import Session
from opstep.runtime.debugger.python.files import python_file

PAGE = 10  # lines of list


@command("backtrace", "bt", "where", usage="backtrace [N]", section="stack")
def backtrace(session: Session, text: str) -> None:
    """Show the frames: calls of graphs, iterations of loops, functions of Python.

    N: the innermost N alone; -N the outermost.
    """
    frames = session.frames()
    if not frames:
        raise Refused("there is no stack")
    word = text.strip()
    n = count(word.removeprefix("-"), len(frames))
    chosen = frames[-n:] if word.startswith("-") and n else frames[:n]
    selected = session.frame().number
    for frame in chosen:
        marker = session.paint("*", "bold green") if frame.number == selected else " "
        arguments = showing.arguments_of(frame)
        line = showing.frame_line(session.paint, frame, arguments)
        session.say(f"{marker} #{frame.number:<3}{line}")
    if len(chosen) < len(frames):
        session.say("(more frames)")


def selected(session: Session, number: int) -> None:
    frame = session.select(number)
    session.say(f"#{number}  " + showing.frame_line(
        session.paint, frame, showing.arguments_of(frame)))  # fmt: skip
    session.show_frame(frame, heading=False)


@command("frame", "f", usage="frame [N]", section="stack")
def frame(session: Session, text: str) -> None:
    """Select frame N, or show the selected one. Expressions are evaluated in it."""
    selected(session, count(text, session.frame().number))


@command("up", usage="up [N]", section="stack")
def up(session: Session, text: str) -> None:
    """Select the frame that called this one."""
    number, last = session.frame().number, len(session.frames()) - 1
    if number == last:
        raise Refused("this is the outermost frame")
    selected(session, min(number + count(text), last))


@command("down", "do", usage="down [N]", section="stack")
def down(session: Session, text: str) -> None:
    """Select the frame that this one called."""
    number = session.frame().number
    if number == 0:
        raise Refused("this is the innermost frame")
    selected(session, max(number - count(text), 0))


@command("view", usage="view [python|graph|auto]", section="stack", repeats=False)
def view(session: Session, text: str) -> None:
    """Show Python's lines or the graph's text in frames, and step by them; alone: the other one.

    auto, as at the beginning: Python's lines where the file is found.
    """
    debugger, word = session.debugger, text.strip()
    if word not in ("", "python", "graph", "auto"):
        raise Refused(f"there is no view {word}", "write python, graph or auto")
    debugger.view = word or ("auto" if debugger.view == "graph" else "graph")
    session.say(f"[{debugger.view}]")
    if session.frames():
        session.show_frame(session.select(0))


@command("list", "l", usage="list [LOCATION|FIRST,LAST|-]", section="stack", then="list",
         completes="place")  # fmt: skip
def list_(session: Session, text: str) -> None:
    """Show ten lines around a location, or the next ten; list - shows the previous ten.

    list 10,20 shows these lines.
    """
    frame, word = session.frame(), text.strip()
    lines, path = session.lines(frame), frame.path
    if not lines:
        raise Refused(f"{path} cannot be read from here")
    current = frame.line
    if word == "-":
        top = (session.listed[1] - 2 * PAGE) if session.listed else current - PAGE - PAGE // 2
        if top <= 1 - PAGE:
            raise Refused("these were the first lines")
        first, last = max(top, 1), max(top, 1) + PAGE - 1
    elif "," in word:
        first, last = bounds(word)
    elif word:
        where = line_of(session, locate(session, word))
        if where.path != path:
            lines, path = lines_of(session, where.path), where.path
        first, last = where.line - PAGE // 2, where.line + PAGE // 2 - 1
    elif session.listed is None:
        first, last = current - PAGE // 2, current + PAGE // 2 - 1
    else:
        (lines, path), first = session.listed[0], session.listed[1]
        last = first + PAGE - 1
    first = max(first, 1)
    if first > len(lines):
        raise Refused(f"the text has {len(lines)} lines")
    marked = current if path == frame.path else 0
    for line in showing.excerpt(session.paint, lines, first, last, marked):
        session.say(line)
    session.listed = ((lines, path), last + 1)


def bounds(word: str) -> tuple[int, int]:
    first, _, last = word.partition(",")
    low = count(first)
    high = count(last, low + PAGE - 1)
    return low, min(high, low + 10_000)


def lines_of(session: Session, path: str) -> list[str]:
    for text in session.debugger.host.texts():
        if text.source.path == path:
            return text.source.text.splitlines()
    file = python_file(path)
    if file is not None and path in session.debugger.stop_point.lines.starts():
        return file.lines
    raise Refused(f"the program has no file {path}")
