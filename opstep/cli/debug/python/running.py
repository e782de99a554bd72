"""Commands that have a script go on, and back."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from opstep.cli.debug.python.places import Place, locate
from opstep.cli.debug.python.session import PythonSession
from opstep.cli.debug.registry import PYTHON, Refused
from opstep.cli.debug.showing import shown_path
from opstep.cli.debug.words import count

command = partial(PYTHON.command, section="running")

BACK = "Back to "  # begins the labels of targets in the past
_TURN = re.compile(r"\b(step|iteration) +(\d+)\b")


@command("run", "r", repeats=False)
def run(session: PythonSession, text: str) -> None:
    """Run the script from its start to the first stop. If it runs already, it is ended first."""
    session.launch(at_entry=False)


@command("start", repeats=False)
def start(session: PythonSession, text: str) -> None:
    """Start the script, or restart it, and stop at its first line."""
    session.launch(at_entry=True)


@command("continue", "c", "cont")
def continue_(session: PythonSession, text: str) -> None:
    """Continue until something stops the script. Before its start: run."""
    if session.has_run:
        session.go("continue")
    else:
        session.launch(at_entry=False)


@command("next [N]", "n")
def next_(session: PythonSession, text: str) -> None:
    """Run one line, stepping over calls. N: repeat N times. Before the start: start."""
    moves(session, "next", text)


@command("step [N]", "s")
def step(session: PythonSession, text: str) -> None:
    """Run one line, stepping into calls of functions in files of yours. Before the start: start."""
    moves(session, "stepIn", text)


@command("stepi [N]", "si")
def stepi(session: PythonSession, text: str) -> None:
    """Run to the end of the next op of PyTorch, in functions that are called or a backward, too."""
    by_ops(session, "stepIn", text)


@command("nexti [N]", "ni")
def nexti(session: PythonSession, text: str) -> None:
    """Run to the end of the next op of PyTorch that no function runs which this one calls."""
    by_ops(session, "next", text)


def by_ops(session: PythonSession, move: str, text: str) -> None:
    """Raises `Refused` where the adapter cannot."""
    if not session.alive().capabilities.get("supportsSteppingGranularity"):
        raise Refused("this debug adapter does not step by ops", "step goes to the next line")
    session.go(move, count(text), granularity="instruction")


def moves(session: PythonSession, move: str, text: str) -> None:
    times = count(text)
    if session.has_run:
        session.go(move, times)
    else:
        session.launch(at_entry=True)


@command("finish", "fin")
def finish(session: PythonSession, text: str) -> None:
    """Run until the selected frame returns, and show what it returned."""
    levels = session.frame().number + 1
    if levels >= len(session.frames()):
        raise Refused("the outermost frame does not return to anything", "continue")
    stop = session.go("stepOut", levels)
    if stop is not None and stop.get("reason") == "step":
        for found in session.variables("locals"):
            if found["name"].startswith("(return) "):
                name = found["name"].removeprefix("(return) ")
                session.say_text(f"{name} returned ", str(found["value"]))


@command("until [LOCATION]", "u", "unt", completes="place")
def until(session: PythonSession, text: str) -> None:
    """Like next, but go on where a line above follows, so that a loop runs to its end.

    With a location: run until it is reached.
    """
    if text:
        advance(session, text)
        return
    session.go_past()


@command("advance LOCATION", completes="place")
def advance(session: PythonSession, text: str) -> None:
    """Run to a line or to the start of a function, or to the next stop before."""
    session.alive()
    if not text:
        raise Refused("a location is missing", "write a line, FILE:LINE or a function")
    place = locate(session, text)
    with session.points.passing(*place):
        session.go("continue")


@command("jump LINE", "j", repeats=False, completes="place")
def jump(session: PythonSession, text: str) -> None:
    """Go to another line of this function without running anything in between.

    Unlike in gdb, the script stays there.
    """
    if not text:
        raise Refused("a line is missing", "jump 12")
    place = locate(session, text)
    targets = [t for t in _targets(session, place) if not t["label"].startswith(BACK)]
    if not targets:
        raise Refused(
            f"{shown_path(place.path)}:{place.line} cannot be jumped to", "advance runs there"
        )
    session.go("goto", targetId=targets[0]["id"])


def _targets(session: PythonSession, place: Place) -> list[dict[str, Any]]:
    request = session.alive().client.request
    found = request("gotoTargets", source={"path": place.path}, line=place.line)
    return found.get("targets") or []


def backwards(session: PythonSession, move: str, text: str = "") -> None:
    """Raises `Refused` where the adapter cannot."""
    if not session.alive().capabilities.get("supportsStepBack"):
        raise Refused("this debug adapter does not record the script, so nothing goes back")
    session.go(move, count(text))


@command("reverse-next [N]", "rn", section="backwards")
def reverse_next(session: PythonSession, text: str) -> None:
    """Step back to the previous line of this function, or to the one that called it."""
    backwards(session, "stepBack", text)


@command("reverse-step [N]", "rs", section="backwards")
def reverse_step(session: PythonSession, text: str) -> None:
    """The same as reverse-next: the protocol has one step back."""
    backwards(session, "stepBack", text)


@command("reverse-continue", "rc", section="backwards")
def reverse_continue(session: PythonSession, text: str) -> None:
    """Go back to the last breakpoint, or to the start of what is recorded."""
    backwards(session, "reverseContinue")


@command("back [LOCATION] [step N] [iteration N]", section="backwards")
def back(session: PythonSession, text: str) -> None:
    """Go back to the last time that a line ran; to this one, where no location is given.

    With a step of training or an iteration: to the last time in it. back step 11 goes to this
    line as it was in step 11.
    """
    wanted = [" ".join(found) for found in _TURN.findall(text)]
    place = locate(session, _TURN.sub("", text))
    targets = [t for t in _targets(session, place) if t["label"].startswith(BACK)]
    where = f"{shown_path(place.path)}:{place.line}"
    if not targets:
        raise Refused(f"{where} has not run before, as far as is kept")
    for target in targets:
        if all(re.search(rf"\b{each}\b", target["label"]) for each in wanted):
            session.go("goto", targetId=target["id"])
            return
    raise Refused(
        f"{where} did not run in {' and '.join(wanted)}, as far as is kept",
        f"it ran last in {targets[0]['label'].removeprefix(BACK)}",
    )
