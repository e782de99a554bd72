"""Going on and going back: continue, steps, goto, restart of a frame, pause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opstep.dap.client import Source
from opstep.dap.client_breakpoints import ClientBreakpoints
from opstep.dap.debuggee import FIRST_THREAD
from opstep.dap.frames import frame_of, stream_of
from opstep.dap.registry import INITIALIZED, LAUNCHED, DapError, State, request
from opstep.dap.requests.breakpoints import path_of

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.checks import Stop
    from opstep.runtime.debugger.debugger import Debugger
    from opstep.runtime.debugger.frames import Frame


def graphs_called(debugger: Debugger) -> list[str]:
    """Names of the graphs that the statement at the present position calls, or may call: by its
    name, or as attributes of control flow.
    """
    from opstep.runtime.ir.effects import called_graphs

    upcoming = debugger.machine.history.next_point()
    if upcoming is None:
        return []
    activation, point = upcoming
    if point.kind == "call":
        callee = getattr(point.statement, "callee", None)
        return [callee.text] if callee else []
    if point.step < 0:
        return []
    step = activation.plan.steps[point.step]
    return list(called_graphs(step.attrs)) if step.op.traits.host else []


@dataclass(frozen=True)
class StepArguments:
    thread_id: int
    single_thread: bool = False
    granularity: Literal["statement", "line", "instruction"] = "statement"


@dataclass(frozen=True)
class StepInArguments(StepArguments):
    target_id: int | None = None


@request("threads", states=INITIALIZED)
def threads(session: Session) -> dict[str, Any]:
    """Streams are threads, and so are ranks. There is always one, as the protocol wants it."""
    debuggee = session.debuggee
    if debuggee is None or debuggee.debugger is None:
        return {"threads": [{"id": FIRST_THREAD, "name": "no graph is running"}]}
    found = debuggee.debugger.threads()
    return {"threads": [{"id": k + FIRST_THREAD, "name": name} for k, name in found]}


def resume(
    session: Session, action: Callable[[], Stop], steps: bool = False, announced: bool = False
) -> None:
    """Lets the run go on behind the response; `announced`: see `Debuggee.announce`."""
    debuggee = session.debuggee
    assert debuggee is not None
    if announced:
        debuggee.announce()
    session.after(lambda: debuggee.go(action, steps=steps))


def step(session: Session, command: str, arguments: StepArguments) -> None:
    debugger, stream = session.debugger, stream_of(session, arguments.thread_id)
    alone = arguments.single_thread
    resume(session, lambda: debugger.go(command, stream, arguments.granularity, alone), steps=True)


@request("continue", capability="supportsSingleThreadExecutionRequests")
def continue_(session: Session, thread_id: int, single_thread: bool = False) -> dict[str, Any]:
    """To the next stop. Streams go on together, and so do ranks, unless one alone is asked for."""
    debugger, stream = session.debugger, stream_of(session, thread_id)
    alone = single_thread
    resume(session, lambda: debugger.go("continue", stream, alone=alone))
    return {"allThreadsContinued": not alone or len(debugger.threads()) == 1}


@request("next", capability="supportsSteppingGranularity")
def next_(session: Session, arguments: StepArguments) -> None:
    """To the next statement of this graph, or of the one that called it."""
    step(session, "over", arguments)


@request("stepIn")
def step_in(session: Session, arguments: StepInArguments) -> None:
    """To the next statement, also of a graph that is called."""
    if arguments.target_id is None:
        step(session, "in", arguments)
        return
    target = session.references.get(arguments.target_id, StepInTarget, "target")
    target.enter()


@request("stepOut")
def step_out(session: Session, arguments: StepArguments) -> None:
    """To behind the call of this graph."""
    step(session, "out", arguments)


@request("stepBack", capability="supportsStepBack")
def step_back(session: Session, arguments: StepArguments) -> None:
    """To the statement before."""
    step(session, "back", arguments)


@request("reverseContinue")
def reverse_continue(session: Session, thread_id: int, single_thread: bool = False) -> None:
    """Back to the stop before, or to the begin."""
    debugger, stream = session.debugger, stream_of(session, thread_id)
    alone = single_thread
    resume(session, lambda: debugger.go("reverse_continue", stream, alone=alone))


@request("pause", states=LAUNCHED)
def pause(session: Session) -> None:
    """Stops before the next op, be it of the next run. Where it stands already, it stands."""
    debuggee = session.debuggee
    if session.state is State.RUNNING and debuggee is not None:
        debuggee.pause()
    elif session.state is State.IDLE and debuggee is not None:
        debuggee.pauses_next = True


# --- targets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepInTarget:
    """Where one can step into from a statement. `enter` is called to do it; it lets the run go on
    itself (`resume`), or does something else in its place.
    """

    label: str
    enter: Callable[[], None]


Offer = Callable[["Session", "Frame"], "list[StepInTarget]"]
_offers: list[Offer] = []


def offers_targets(offer: Offer) -> Offer:
    """Declares a function that finds step-in targets at a stop, in a frame."""
    _offers.append(offer)
    return offer


@request("stepInTargets", capability="supportsStepInTargetsRequest")
def step_in_targets(session: Session, frame_id: int) -> dict[str, Any]:
    """What can be stepped into from a frame: the graph that is called, the op's kernels."""
    frame = frame_of(session, frame_id)
    found = [target for offer in _offers for target in offer(session, frame)]
    number = session.references.add
    return {
        "targets": [{"id": number(t, ("target", t.label)), "label": t.label} for t in found],
    }


@offers_targets
def called_graph(session: Session, frame: Frame) -> list[StepInTarget]:
    """The graphs that the frame's statement calls, where it is the innermost one."""

    debugger = session.debugger.of(frame)
    names = [] if frame.call else graphs_called(debugger)
    if not names:
        return []
    label = f"graph {' or '.join(names)}"
    return [StepInTarget(label, lambda: resume(session, lambda: debugger.go("in")))]


@request("gotoTargets", capability="supportsGotoTargetsRequest")
def goto_targets(session: Session, source: Source, line: int) -> dict[str, Any]:
    """Targets of a go to for a line: back to its last visit, on to the next one, or ahead over ops
    whose results are not needed.
    """
    path, line = path_of(session, source), session.client.our_line(line)
    found = session.debugger.goto_targets(path, line)
    return {
        "targets": [
            {"id": t.number, "label": t.label, "line": session.client.line(t.line)} for t in found
        ]
    }


@request("goto")
def goto(session: Session, thread_id: int, target_id: int) -> None:
    """Goes there, and stops."""
    stream = stream_of(session, thread_id)
    debuggee, stop = session.debuggee, session.debugger.at(stream).goto(target_id)
    assert debuggee is not None
    session.after(lambda: debuggee.go(lambda: stop))


@request("restartFrame", capability="supportsRestartFrame")
def restart_frame(session: Session, frame_id: int) -> None:
    """Back to where the frame was entered; with the program's file as it is now, if it has changed:
    then values whose op and operands are the same are kept.
    """
    debuggee, debugger = session.debuggee, session.debugger
    frame = frame_of(session, frame_id)
    debugger = debugger.of(frame)
    assert debuggee is not None
    if not debuggee.edited:
        stop = debugger.restart_frame(frame)
        session.after(lambda: debuggee.go(lambda: stop))
        return
    above = len(debugger.calls()) - frame.call
    reload(session)
    frames = debugger.calls()
    if len(frames) >= above:
        debugger.restart_frame(frames[len(frames) - above])
    session.after(lambda: debuggee.go(lambda: last_stop(session)))


def last_stop(session: Session) -> Stop:
    stop = session.debugger.stop
    assert stop is not None
    return stop


def reload(session: Session) -> dict[str, Any]:
    """Goes on with the program's file as it is now. Raises `OpstepError`; then nothing changed."""
    debuggee, debugger = session.debuggee, session.debugger
    assert debuggee is not None
    breakpoints = session.per_session(ClientBreakpoints)
    before = breakpoints.snapshot()
    found = debugger.reload()
    debuggee.reloaded()
    breakpoints.report_changes(before)
    session.invalidate()
    session.output(f"The program was read again: kept {found.reused} of {found.of} values.")
    if found.dropped:
        session.output(found.dropped_text)
    if session.client.supports_invalidated_event:
        session.event("invalidated", {"areas": ["all"]})
    return {"kept": found.reused, "of": found.of, "lost": found.dropped}


# --- of our own -----------------------------------------------------------------------------------


@request("opstep/reload", custom=True)
def reload_request(session: Session) -> dict[str, Any]:
    """Goes on with the program's file as it is now, at the start of the present frame."""
    body = reload(session)
    resume(session, lambda: last_stop(session), announced=True)
    return body


@request("opstep/runTo", custom=True)
def run_to(session: Session, source: Source, line: int) -> None:
    """Continues to a line, or to where something else stops the run."""
    path, line = path_of(session, source), session.client.our_line(line)
    debugger = session.debugger
    if not debugger.breakpoints.at_line(path, line):
        raise DapError("there is no statement on this line", show=True)
    resume(session, lambda: debugger.run_to(path, line), announced=True)
