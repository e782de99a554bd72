"""Commands that look at values, and change them."""

from __future__ import annotations

import re
from functools import partial

from opstep.cli.debug.commands.threads import lock
from opstep.cli.debug.registry import GRAPHS, Refused
from opstep.cli.debug.session import Session
from opstep.cli.debug.values import FORMATS, format_of, named_line, type_of

_ASSIGNED = re.compile(r"(?<![=<>!])=(?!=)")

command = partial(GRAPHS.command, section="data")


def formats() -> str:
    """For help."""
    return "Formats:\n" + "\n".join(f"  /{key}  {what}" for key, what in FORMATS.items())


@command("print[/FMT] EXPR", "p", "inspect", completes="expression", more=formats)
def print_(session: Session, text: str) -> None:
    """Show the value of an expression in the selected frame.

    print c1 shows its type and statistics, print c1[0, :3] its elements. Functions: print mean(c1),
    print where(nan(c1)), print diff(a, b), print prev(loss); docs/expressions.md has them all.
    """
    form, expression = format_of(text)
    if not expression:
        raise Refused("an expression is missing", "print mean(x)")
    session.print_value(expression, form, f"{expression} = ")


@command("whatis EXPR", "ptype", completes="expression")
def whatis(session: Session, text: str) -> None:
    """Show the type of an expression."""
    if not text:
        raise Refused("an expression is missing", "whatis x[0]")
    session.say(f"type = {type_of(session.debugger.evaluate(text, session.frame()))}")


@command("display[/FMT] [EXPR]", repeats=False, completes="expression")
def display(session: Session, text: str) -> None:
    """Show an expression at each stop where its names have values. Without EXPR: show all now."""
    if not text:
        session.show_displays()
        return
    from opstep.runtime.expressions import parse

    form, expression = format_of(text)
    parse(expression)
    number = max(session.displays, default=0) + 1
    session.displays[number] = (form, expression)
    session.show_displays()


@command("set NAME[…] = VALUE", repeats=False, completes="expression")
def set_(session: Session, text: str) -> None:
    """Change a tensor, a slice or an element; what depends on it is recomputed.

    set loss = 0, set x[0, :3] = [1, 2, nan], set conv1.w = load("w.npy"), set h = clip(h, -1, 1).
    A param keeps the new value from here on. set scheduler-locking on: of several ranks, commands
    move the selected one alone; off: all of them.
    """
    if text.split()[:1] == ["scheduler-locking"]:
        lock(session, text.removeprefix("scheduler-locking").strip())
        return
    from opstep.runtime.expressions.assignment import assign

    text = re.sub(r"^var(iable)?\s+", "", text)
    match = _ASSIGNED.search(text)
    if match is None or not text[: match.start()].strip() or not text[match.end() :].strip():
        raise Refused("it takes a name and a value", "set x[0, 1] = 3.5")
    target, value = text[: match.start()].strip(), text[match.end() :].strip()
    debugger, frame = session.debugger, session.frame()
    scope = debugger.scope(frame)
    name, array, part = assign(scope, target, value)
    name = scope.value_name(name) or name
    number = session.frame().number
    debugger.set(frame, name, array, part)
    session.ended = False
    frame = session.select(number)
    node = frame.lookup(name)
    if node is not None:
        session.say(named_line(session.paint, frame, name, node))
