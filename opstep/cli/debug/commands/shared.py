"""Commands of every session: help, scripts, the end."""

from __future__ import annotations

import re
from typing import Any

from opstep.cli.debug.dialogue import Dialogue
from opstep.cli.debug.registry import SECTIONS, Refused, shared
from opstep.cli.debug.words import numbers


@shared("help [COMMAND]", "h", "?", section="session", completes="command")
def help_(session: Dialogue, text: str) -> None:
    """List the commands, or explain one."""
    if not text:
        overview(session)
        return
    found = session.registry.find(text.split()[0])
    session.say(session.paint(found.usage, "bold"))
    others = [name for name in found.names[1:] if name]
    if others:
        session.say(f"short: {', '.join(others)}")
    session.say(f"\n{found.help}")
    if found.more is not None:
        session.say(f"\n{found.more()}")


def overview(session: Dialogue) -> None:
    commands = session.registry.commands.values()
    width = max(len(c.usage) for c in commands) + 2
    brief = {c: min(c.names[1:], key=len, default="") for c in commands}
    second = max(map(len, brief.values())) + 1
    for section in SECTIONS:
        session.say(session.paint(section, "bold cyan"))
        for one in commands:
            if one.section == section:
                session.say(f"  {one.usage:<{width}}{brief[one]:<{second}}{one.summary}")
    session.say("\nAn empty line does the last command again. docs/debugging.md is the guide.")


@shared("quit", "q", "exit", section="session", repeats=False)
def quit_(session: Dialogue, text: str) -> None:
    """End the session, without asking. Files stay as they are."""
    session.over = True


@shared("source FILE", section="session", repeats=False)
def source(session: Dialogue, text: str) -> None:
    """Run the commands in a file, up to the first one that fails."""
    from opstep.cli.debug.reading import script

    if not text:
        raise Refused("a file is missing")
    session.loop(script(text))


@shared("echo TEXT", section="session", repeats=False)
def echo(session: Dialogue, text: str) -> None:
    r"""Print a text, for scripts. As in gdb, \n and \t are escapes and no newline is added."""
    from opstep.runtime.ir.diagnostics import visible

    escapes = {"n": "\n", "t": "\t"}
    session.write(re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), visible(text)))


# --- breakpoints and displays ---


def chosen(session: Any, text: str) -> list[Any]:
    """Breakpoints by number; without any, all."""
    found = [session.points.get(number) for number in dict.fromkeys(numbers(text))]
    return found or list(session.points.entries.values())


@shared("delete [N …]", "d", section="breakpoints", repeats=False, completes="breakpoint")
def delete(session: Any, text: str) -> None:
    """Delete breakpoints by number (2, 4-6), or all of them. delete display N: a display."""
    what, _, rest = text.strip().partition(" ")
    if what == "display":
        undisplay(session, rest)
        return
    found = chosen(session, rest if what == "breakpoints" else text)
    for entry in found:
        del session.points.entries[entry.number]
    session.changed(found)


@shared("enable [N …]", section="breakpoints", repeats=False, completes="breakpoint")
def enable(session: Any, text: str) -> None:
    """Enable breakpoints by number, or all of them."""
    switch(session, text, True)


@shared("disable [N …]", section="breakpoints", repeats=False, completes="breakpoint")
def disable(session: Any, text: str) -> None:
    """Disable breakpoints by number, or all of them, without deleting them."""
    switch(session, text, False)


def switch(session: Any, text: str, on: bool) -> None:
    found = chosen(session, text)
    for entry in found:
        entry.enabled = on
    session.changed(found)


@shared("undisplay [N …]", section="data", repeats=False)
def undisplay(session: Any, text: str) -> None:
    """Remove displays by number, or all of them."""
    for number in numbers(text) or list(session.displays):
        if session.displays.pop(number, None) is None:
            raise Refused(f"there is no display {number}", "info display lists them")
