"""Commands for the texts of a program: which is shown, and when it changes."""

from __future__ import annotations

from opstep.cli.debug.commands.stack import show_lines
from opstep.cli.debug.locations import line_of, lines_of, locate
from opstep.cli.debug.registry import Refused, command
from opstep.cli.debug.session import Session


@command("reload", section="editing", repeats=False)
def reload(session: Session, text: str) -> None:
    """Reload the program's file and continue from the start of the current graph.

    Values whose op and operands did not change are kept. If the file has errors, they are shown
    and nothing changes.
    """
    report = session.debugger.reload()
    session.ended = False
    session.select(0)
    if report.of:
        session.say(f"Kept {report.reused} of {report.of} values.")
    if report.dropped:
        session.say(report.dropped_text)
    for entry in session.points.entries.values():
        if entry.core is not None and not entry.location.name:
            entry.location = entry.location._replace(line=entry.core.request.line)
        if entry.core is not None and entry.core in report.moved:
            where = f"line {entry.core.line}" if entry.core.verified else entry.core.message
            session.say(f"Breakpoint {entry.number}: now {where}")
    session.show_frame(session.frame())


@command("edit [LINE]", section="editing", repeats=False, completes="place")
def edit(session: Session, text: str) -> None:
    """Open the file in the editor named by EDITOR; reload applies your changes."""
    import shutil
    import subprocess

    if not session.interactive:
        raise Refused("there is no terminal to edit in")
    where = line_of(session, locate(session, text))
    words = editor()
    if shutil.which(words[0]) is None:
        raise Refused(f"there is no editor {words[0]}", "set EDITOR")
    subprocess.run([*words, f"+{where.line}", where.path], check=False)
    session.say("reload takes what was changed")


def editor() -> list[str]:
    import os
    import shlex

    for name in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(name, ""))
        except ValueError:
            continue
        if words:
            return words
    return ["vi"]


@command("view [python|graph|auto]", section="stack", repeats=False)
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


@command("list [LOCATION|FIRST,LAST|-]", "l", section="stack", then="list", completes="place")
def list_(session: Session, text: str) -> None:
    """Show ten lines around a location, or the next ten; list - shows the previous ten.

    list 10,20 shows these lines.
    """

    def find(word: str) -> tuple[list[str], str, int]:
        where, frame = line_of(session, locate(session, word)), session.frame()
        is_here = where.path == frame.path
        lines = session.lines(frame) if is_here else lines_of(session, where.path)
        return lines, where.path, where.line

    show_lines(session, text, find)
