"""Commands that look at the stack and at the text."""

from __future__ import annotations

from collections.abc import Callable

from opstep.cli.debug import showing
from opstep.cli.debug.registry import Refused, shared
from opstep.cli.debug.standing import Shown, Standing
from opstep.cli.debug.words import count

Find = Callable[[str], tuple[list[str], str, int]]

PAGE = 10  # lines of list


@shared("backtrace [N]", "bt", "where", section="stack")
def backtrace(session: Standing, text: str) -> None:
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
        session.say(f"{marker} #{frame.number:<3}{session.described(frame)}")
    if len(chosen) < len(frames):
        session.say("(more frames)")


def selected(session: Standing, number: int) -> None:
    frame = session.select(number)
    session.say(f"#{number}  {session.described(frame)}")
    session.show_frame(frame, heading=False)


@shared("frame [N]", "f", section="stack")
def frame(session: Standing, text: str) -> None:
    """Select frame N, or show the selected one. Expressions are evaluated in it."""
    selected(session, count(text, session.frame().number))


@shared("up [N]", section="stack")
def up(session: Standing, text: str) -> None:
    """Select the frame that called this one."""
    number, last = session.frame().number, len(session.frames()) - 1
    if number == last:
        raise Refused("this is the outermost frame")
    selected(session, min(number + count(text), last))


@shared("down [N]", "do", section="stack")
def down(session: Standing, text: str) -> None:
    """Select the frame that this one called."""
    number = session.frame().number
    if number == 0:
        raise Refused("this is the innermost frame")
    selected(session, max(number - count(text), 0))


def show_lines(session: Standing, text: str, find: Find) -> None:
    """``list``; `find`: the lines of the file that a place is in, its path, and the line."""
    frame, word = session.frame(), text.strip()
    lines, path = session.lines(frame), frame.path
    if not lines:
        raise Refused(f"{path} cannot be read from here")
    current = frame.line
    if word == "-":
        top = (session.listed.next - 2 * PAGE) if session.listed else current - PAGE - PAGE // 2
        if top <= 1 - PAGE:
            raise Refused("these were the first lines")
        first, last = max(top, 1), max(top, 1) + PAGE - 1
    elif "," in word:
        first, last = bounds(word)
    elif word:
        lines, path, line = find(word)
        first, last = line - PAGE // 2, line + PAGE // 2 - 1
    elif session.listed is None:
        first, last = current - PAGE // 2, current + PAGE // 2 - 1
    else:
        lines, path, first = session.listed
        last = first + PAGE - 1
    first = max(first, 1)
    if first > len(lines):
        raise Refused(f"the text has {len(lines)} lines")
    marked = current if path == frame.path else 0
    for line in showing.excerpt(session.paint, lines, first, last, marked):
        session.say(line)
    session.listed = Shown(lines, path, last + 1)


def bounds(word: str) -> tuple[int, int]:
    first, _, last = word.partition(",")
    low = count(first)
    high = count(last, low + PAGE - 1)
    return low, min(high, low + 10_000)
