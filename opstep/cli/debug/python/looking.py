"""Commands that look at a script's values and threads, and run Python in it."""

from __future__ import annotations

from functools import partial
from typing import Any

from opstep.cli.common import amount
from opstep.cli.debug.commands.stack import show_lines
from opstep.cli.debug.python.breaking import listed
from opstep.cli.debug.python.places import locate
from opstep.cli.debug.python.session import PythonSession
from opstep.cli.debug.registry import PYTHON, Refused
from opstep.cli.debug.words import count
from opstep.runtime.ir.diagnostics import visible

command = partial(PYTHON.command, section="data")
_MOST_OPS = 2000  # of a line that are shown


@command("print EXPR", "p", "inspect", completes="expression")
def print_(session: PythonSession, text: str) -> None:
    """Show the value of an expression of Python in the selected frame; of a tensor its statistics.

    print loss.item(), print x[0, :3], print self.encoder.weight.grad.
    """
    session.print_value(expression(text, "print x.shape"), f"{text} = ")


@command("pp EXPR", completes="expression")
def pp(session: PythonSession, text: str) -> None:
    """Show the value of an expression as pprint writes it."""
    written = f"__import__('pprint').pprint(({expression(text, 'pp vars(self)')}))"
    session.evaluate(written, "repl")


def expression(text: str, example: str) -> str:
    """Raises `Refused` where there is none."""
    if not text:
        raise Refused("an expression is missing", example)
    return text


@command("! STATEMENT", completes="expression")
def python(session: PythonSession, text: str) -> None:
    """Run a statement of Python in the selected frame, or show an expression's value.

    x = x * 2, loss.item() and import math need no !, as all that no command begins. ! n = 3: a line
    that a command begins.
    """
    result = session.evaluate(expression(text, "! n = 3"), "repl").get("result", "")
    for line in str(result).splitlines():
        session.say(visible(line))


@command("whatis EXPR", "ptype", completes="expression")
def whatis(session: PythonSession, text: str) -> None:
    """Show the type of an expression."""
    kind = session.evaluate(expression(text, "whatis x[0]")).get("type")
    session.say(f"type = {visible(str(kind or 'not known'))}")


@command("display [EXPR]", repeats=False, completes="expression")
def display(session: PythonSession, text: str) -> None:
    """Show an expression at each stop where it can be evaluated. Without EXPR: show all now."""
    if text:
        session.displays[max(session.displays, default=0) + 1] = text
    if session.stands:
        session.show_displays()


@command("list [LOCATION|FIRST,LAST|-]", "l", section="stack", then="list", completes="place")
def list_(session: PythonSession, text: str) -> None:
    """Show ten lines around a location, or the next ten; list - shows the previous ten.

    list 10,20 shows these lines.
    """

    def find(word: str) -> tuple[list[str], str, int]:
        place = locate(session, word)
        if not place.path:
            raise Refused(f"no file is known to have {place.function}")
        return session.file(place.path).lines, place.path, place.line

    show_lines(session, text, find)


@command("disassemble", "disas", section="stack", repeats=False)
def disassemble(session: PythonSession, text: str) -> None:
    """Show the ops of PyTorch that the selected frame's line ran last, with their results.

    They are listed from the first time that this is asked of a line, so that what it ran before is
    not known.
    """
    at = session.frame().instruction
    request = session.alive().client.request
    if not at:
        raise Refused("no ops are listed for this frame", "up selects the one that runs them")
    answer = request(
        "disassemble", memoryReference=at, instructionOffset=-_MOST_OPS,
        instructionCount=2 * _MOST_OPS,
    )  # fmt: skip
    for one in answer.get("instructions") or []:
        if one.get("presentationHint") != "invalid":
            marker = session.paint("=>", "bold green") if one["address"] == at else "  "
            session.say(f"{marker} {visible(str(one['instruction']))}")


@command("thread [N]", "t", section="stack", repeats=False, completes="thread")
def thread(session: PythonSession, text: str) -> None:
    """Select thread N of info threads, and show where it stands. Steps follow it."""
    found = list(session.threads())
    number = count(text, found.index(session.thread) + 1 if session.thread in found else 1)
    if not 1 <= number <= len(found):
        raise Refused(f"there is no thread {number}", f"there are 1 to {len(found)}")
    session.choose(found[number - 1])
    session.say(f"[{session.thread_name(session.thread)}]")
    session.show_frame(session.select(0))


# --- info ---


@command("info TOPIC", "i", completes="topic")
def info(session: PythonSession, text: str) -> None:
    """Show information: locals, args, globals, breakpoints, display, threads or catch."""
    word = text.split()[0] if text else ""
    found = [name for name in TOPICS if word and name.startswith(word)]
    if not found:
        raise Refused(f"info has no topic {visible(word[:60])}" if word else "a topic is missing",
                      ", ".join(TOPICS))  # fmt: skip
    TOPICS[found[0]](session)


def show(session: PythonSession, found: list[dict[str, Any]], none: str) -> None:
    for one in found:
        session.say_text(f"{one['name']} = ", str(one["value"]))
    if not found:
        session.say(none)


def locals_(session: PythonSession) -> None:
    show(session, session.variables("locals"), "There are no locals.")


def globals_(session: PythonSession) -> None:
    show(session, session.variables("globals"), "There are no globals.")


def arguments(session: PythonSession) -> None:
    frame = session.frame()
    function = session.file(frame.path).around(frame.line)
    names = function.arguments if function is not None else ()
    found = [one for one in session.variables("locals") if one["name"] in names]
    show(session, found, "There are no arguments.")


def breakpoints(session: PythonSession) -> None:
    for entry in session.points.entries.values():
        about = [] if entry.enabled else ["disabled"]
        about += [f"if {entry.condition}"] if entry.condition else []
        about += [amount(entry.stops, "stop")] if entry.stops else []
        about += [entry.message] if entry.message else []
        kind = entry.title.lower()
        line = f"{entry.number:<4}{kind} {entry.place}" + "".join(f", {word}" for word in about)
        session.say(visible(line))
    if not session.points.entries:
        session.say("There are no breakpoints.")


def displays(session: PythonSession) -> None:
    for number, text in session.displays.items():
        session.say(visible(f"{number:<4}{text}"))
    if not session.displays:
        session.say("There are no displays.")


def threads(session: PythonSession) -> None:
    for number, (one, name) in enumerate(session.threads().items(), 1):
        marker = session.paint("*", "bold green") if one == session.thread else " "
        frames = session.frames_of(one)
        where = session.described(frames[0]) if frames else "it does not stand"
        session.say(f"{marker} {number:<3}{visible(name)}: {where}")


TOPICS = {
    "locals": locals_, "args": arguments, "globals": globals_, "breakpoints": breakpoints,
    "display": displays, "threads": threads, "catch": listed,
}  # fmt: skip
