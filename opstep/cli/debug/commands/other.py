"""Commands of the session itself: help, scripts, the file that changes, the end."""

from __future__ import annotations

import re

from opstep.cli.debug.registry import COMMANDS, SECTIONS, Refused, command, find
from opstep.cli.debug.session import Session


@command("help", "h", "?", usage="help [COMMAND]", section="session", completes="command")
def help_(session: Session, text: str) -> None:
    """List the commands, or explain one."""
    if not text:
        overview(session)
        return
    found = find(text.split()[0])
    session.say(session.paint(found.usage, "bold"))
    others = [name for name in found.names[1:] if name]
    if others:
        session.say(f"short: {', '.join(others)}")
    session.say(f"\n{found.help}")
    if found.name == "print":
        from opstep.cli.debug.commands.data import formats

        session.say(f"\nFormats:\n{formats()}")


def overview(session: Session) -> None:
    width = max(len(c.usage) for c in COMMANDS.values()) + 2
    brief = {c: min(c.names[1:], key=len, default="") for c in COMMANDS.values()}
    second = max(map(len, brief.values())) + 1
    for section in SECTIONS:
        session.say(session.paint(section, "bold cyan"))
        for one in COMMANDS.values():
            if one.section == section:
                session.say(f"  {one.usage:<{width}}{brief[one]:<{second}}{one.summary}")
    session.say("\nAn empty line does the last command again. docs/debugging.md is the guide.")


@command("quit", "q", "exit", usage="quit", section="session", repeats=False)
def quit_(session: Session, text: str) -> None:
    """End the session, without asking. Files stay as they are."""
    session.over = True


@command("reload", usage="reload", section="editing", repeats=False)
def reload(session: Session, text: str) -> None:
    """Reload the program's file and continue from the start of the current graph.

    Values whose op and operands did not change are kept. If the file has errors, they are shown
    and nothing changes.
    """
    told = session.debugger.reload()
    session.ended = False
    session.select(0)
    if told.of:
        session.say(f"Kept {told.reused} of {told.of} values.")
    if told.dropped:
        session.say(told.dropped_text)
    for entry in session.points.entries.values():
        if entry.core is not None and not entry.place.name:
            entry.place = entry.place._replace(line=entry.core.request.line)
        if entry.core is not None and entry.core in told.moved:
            where = f"line {entry.core.line}" if entry.core.verified else entry.core.message
            session.say(f"Breakpoint {entry.number}: now {where}")
    session.show_frame(session.frame())


@command("edit", usage="edit [LINE]", section="editing", repeats=False, completes="place")
def edit(session: Session, text: str) -> None:
    """Open the file in the editor named by EDITOR; reload applies your changes."""
    import shutil
    import subprocess

    from opstep.cli.debug.places import line_of, place

    if not session.interactive:
        raise Refused("there is no terminal to edit in")
    where = line_of(session, place(session, text))
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


@command("source", usage="source FILE", section="session", repeats=False)
def source(session: Session, text: str) -> None:
    """Run the commands in a file, up to the first one that fails."""
    from opstep.cli.debug.reading import script

    if not text:
        raise Refused("a file is missing")
    session.loop(script(text))


@command("echo", usage="echo TEXT", section="session", repeats=False)
def echo(session: Session, text: str) -> None:
    r"""Print a text, for scripts. As in gdb, \n and \t are escapes and no newline is added."""
    from opstep.runtime.ir.diagnostics import visible

    escapes = {"n": "\n", "t": "\t"}
    session.write(re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), visible(text)))
