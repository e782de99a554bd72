"""Commands that let the program run on."""

from __future__ import annotations

from functools import partial

from opstep.cli.debug.locations import line_of, locate
from opstep.cli.debug.registry import GRAPHS, Refused
from opstep.cli.debug.session import Session
from opstep.cli.debug.words import count

command = partial(GRAPHS.command, section="running")


def alive(session: Session) -> None:
    """Raises `Refused` where the run is over."""
    if session.ended:
        back = "reverse-next goes back, " if session.frames() else ""
        raise Refused("the run has ended", f"{back}run starts again")


@command("run", "r", repeats=False)
def run(session: Session, text: str) -> None:
    """Run from the start to the first stop.

    If the program is running already, it starts again with the same inputs, and the params and
    states that the session began with.
    """
    begin(session, at_entry=False)


@command("start", repeats=False)
def start(session: Session, text: str) -> None:
    """Start the program, or restart it, and stop at the first statement."""
    begin(session, at_entry=True)


def begin(session: Session, at_entry: bool) -> None:
    debugger = session.debugger
    debugger.stop_on_entry = at_entry
    again, session.ended = session.started, False
    session.go(debugger.restart if again else debugger.start)


@command("continue [N]", "c", "fg")
def continue_(session: Session, text: str) -> None:
    """Continue until something stops the run.

    N: skip the current breakpoint N - 1 more times.
    """
    alive(session)
    skipped = count(text) - 1
    if skipped > 0:
        stop = session.debugger.stop
        stopped_at = [e for e in session.points.entries.values()
                if stop and e.core and e.core.number in stop.hits]  # fmt: skip
        if not stopped_at:
            raise Refused("the run is not stopped at a breakpoint", "continue, without a number")
        session.points.get(stopped_at[0].number).ignore = skipped
        session.points.apply(session.debugger.breakpoints)
        session.say(f"Will ignore next {skipped} hits of breakpoint {stopped_at[0].number}.")
    session.go(lambda: session.debugger.go("continue"))


def moves(session: Session, text: str, move: str, granularity: str = "statement") -> None:
    alive(session)
    debugger, thread = session.debugger, session.thread
    session.go(lambda: debugger.go(move, thread, granularity), count(text))


@command("next [N]", "n")
def next_(session: Session, text: str) -> None:
    """Run one statement, stepping over calls of graphs. N: repeat N times."""
    moves(session, text, "over")


@command("step [N]", "s")
def step(session: Session, text: str) -> None:
    """Run one statement, stepping into calls of graphs and loops."""
    moves(session, text, "in")


@command("nexti [N]", "ni")
def nexti(session: Session, text: str) -> None:
    """Run one kernel launch, stepping over calls; an op may have several."""
    moves(session, text, "over", "instruction")


@command("stepi [N]", "si")
def stepi(session: Session, text: str) -> None:
    """Run one kernel launch, stepping into calls; an op may have several."""
    moves(session, text, "in", "instruction")


@command("finish", "fin")
def finish(session: Session, text: str) -> None:
    """Run until the selected frame returns, and show what it returned."""
    alive(session)
    levels = session.frame().number + 1
    if levels == len(session.frames()):
        raise Refused("the outermost graph does not return to anything", "continue")
    session.go(lambda: session.debugger.go("out"), levels)


@command("until [LOCATION]", "u", completes="place")
def until(session: Session, text: str) -> None:
    """Like next, but at the end of an iteration run to the end of the loop.

    With a location: run until it is reached.
    """
    alive(session)
    if text:
        advance(session, text)
        return
    session.go(lambda: session.debugger.go("until"))


@command("advance LOCATION", completes="place")
def advance(session: Session, text: str) -> None:
    """Run to a line or to the start of a graph."""
    alive(session)
    if not text:
        raise Refused("a location is missing", "write a line, FILE:LINE or a graph")
    where = line_of(session, locate(session, text))
    session.go(lambda: session.debugger.run_to(where.path, where.line))


@command("jump LOCATION", "j", repeats=False, completes="place")
def jump(session: Session, text: str) -> None:
    """Go to another line without running anything in between.

    Back to the last time that the line was reached before the stop; else on to the next time, if
    one has gone back; otherwise ahead in the current graph, if all operands of the op there have
    values. Unlike in gdb, the run stays there.
    """
    if not text:
        raise Refused("a location is missing", "write a line, FILE:LINE or a graph")
    where = line_of(session, locate(session, text))
    targets = session.debugger.goto_targets(where.path, where.line)
    if not targets:
        raise Refused(f"{where} cannot be jumped to", "advance runs there")
    session.ended = False
    session.go(lambda: session.debugger.goto(targets[0].number))


@command("restart [frame [N]]", repeats=False)
def restart(session: Session, text: str) -> None:
    """Go back to the start of the selected frame, or of frame N. Nothing is lost."""
    words = text.split()
    if words[:1] == ["frame"]:
        words = words[1:]
    if words:
        session.select(count(words[0]))
    frame = session.frame()
    session.ended = False
    session.go(lambda: session.debugger.restart_frame(frame))


def backwards(session: Session, move, times: int = 1) -> None:
    session.ended = False
    session.go(move, times)


@command("reverse-next [N]", "rn", section="backwards")
def reverse_next(session: Session, text: str) -> None:
    """Step back to the previous statement, over calls of graphs."""
    backwards(session, lambda: session.debugger.go("back", session.thread), count(text))


@command("reverse-step [N]", "rs", section="backwards")
def reverse_step(session: Session, text: str) -> None:
    """Step back to the previous statement, into calls of graphs from their end."""
    backwards(session, lambda: session.debugger.go("back_in"), count(text))


@command("reverse-continue", "rc", section="backwards")
def reverse_continue(session: Session, text: str) -> None:
    """Run backwards until something stops the run, or to its start."""
    backwards(session, lambda: session.debugger.go("reverse_continue"))


@command("reverse-finish", section="backwards")
def reverse_finish(session: Session, text: str) -> None:
    """Step back to where the current graph was called."""
    backwards(session, lambda: session.debugger.go("back_out"))
