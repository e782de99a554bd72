"""From the first word to the last: initialize, launch, attach, configurationDone, restart,
terminate, disconnect; and cancel, which is for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opstep.dap.checking import Mismatch, check, plain
from opstep.dap.client import Client
from opstep.dap.compiling import Compiling
from opstep.dap.launching import (
    LaunchArguments,
    launch,
    run_plainly,
    set_environment,
)
from opstep.dap.registry import (
    ANY,
    BAD_ARGUMENTS,
    INITIALIZED,
    LAUNCHED,
    NO_ANSWER,
    DapError,
    State,
    capabilities,
    request,
)
from opstep.dap.relay import Relay, connection_to
from opstep.dap.source_view import SourceView, View

if TYPE_CHECKING:
    from opstep.dap.session import Session

NEW, READY, CONFIGURING = (frozenset({s}) for s in (State.NEW, State.READY, State.CONFIGURING))
STARTED = LAUNCHED - CONFIGURING


@request("initialize", states=NEW)
def initialize(session: Session, arguments: Client) -> dict[str, Any]:
    """Both sides say what they can do."""
    session.client = arguments
    session.state = State.READY
    return capabilities()


# --- launch and attach ----------------------------------------------------------------------------


@request("launch", states=READY)
def launch_request(session: Session, arguments: LaunchArguments) -> Any:
    """Loads a program. What is wrong with it is reported, and the session stays: another launch
    may follow.
    """
    if session.attached is not None:
        raise DapError("this is a Python program that runs already: attach to it", show=True)
    if arguments.no_debug:
        session.after(lambda: initialized(session))
        session.per_session(Launched).plainly = arguments
        return None
    set_environment(session, arguments)
    session.per_session(Compiling)
    debuggee = session.shows(lambda: launch(session, arguments))
    session.per_session(Launched).arguments = arguments
    adopt(session, debuggee)
    session.after(lambda: initialized(session))
    return None


class Launched:
    """``session.per_session(Launched)``: what was asked for."""

    def __init__(self, session: Session):
        self.arguments: LaunchArguments | None = None
        self.plainly: LaunchArguments | None = None


def adopt(session: Session, debuggee: Any) -> None:
    """This is debugged from now on."""
    session.debuggee = debuggee
    if debuggee.debugger is not None:
        debuggee.debugger.view = session.per_session(SourceView).view
        debuggee.begin(debuggee.debugger)


def initialized(session: Session) -> None:
    """The client may set breakpoints now, and then say that it is done."""
    session.state = State.CONFIGURING
    session.event("initialized")


@dataclass(frozen=True)
class AttachArguments:
    """Arguments of ``attach``. `port`: where the program listens, for clients that start the server
    by themselves; one that is connected to the program already leaves it out. `mode`: of the runs,
    in place of what the program asks for.
    """

    port: int | None = None
    host: str = "127.0.0.1"
    on_disconnect: Literal["terminate", "continue"] = "continue"
    mode: Literal["async", "debug"] | None = None
    stop_on_entry: bool = False
    stop_at_end: bool = False
    cwd: str | None = None
    source_view: View = "auto"


@request("attach", states=READY)
def attach(session: Session, arguments: AttachArguments) -> Any:
    """To a Python program that called ``opstep.debug.listen``."""
    if session.attached is None:
        if arguments.port is None:
            raise DapError("port: where does the Python program listen?", BAD_ARGUMENTS, show=True)
        relay = Relay(session, connection_to(arguments.host, arguments.port))
        session.relay(relay)
        relay.start(session.current)
        return NO_ANSWER
    # Clients detach in place of a restart, and attach again.
    session.event("capabilities", {"capabilities": {"supportsRestartRequest": False}})
    session.per_session(SourceView).view = arguments.source_view
    session.per_session(Compiling)
    adopt(session, session.attached.debuggee(session, arguments))
    session.after(lambda: initialized(session))
    return None


@request("configurationDone", capability="supportsConfigurationDoneRequest", states=CONFIGURING)
def configuration_done(session: Session) -> None:
    """The breakpoints are set: off it goes."""
    launched, debuggee = session.per_session(Launched), session.debuggee
    if launched.plainly is not None:
        plainly = launched.plainly
        session.after(lambda: go_plainly(session, plainly))
    elif debuggee is not None and debuggee.exits:
        send_process_event(session)
        session.after(lambda: debuggee.go(debuggee.started))
    elif session.attached is not None:
        session.state = State.IDLE
        session.attached.configured()


def send_process_event(session: Session) -> None:
    """Tells what is debugged."""
    import os

    arguments = session.per_session(Launched).arguments
    assert arguments is not None
    session.event(
        "process",
        {
            "name": arguments.program,
            "systemProcessId": os.getpid(),
            "isLocalProcess": True,
            "startMethod": "launch",
        },
    )


def go_plainly(session: Session, arguments: LaunchArguments) -> None:
    """A run without debugging, from begin to end."""
    session.state = State.RUNNING
    code = 1
    try:
        code = run_plainly(session, arguments)
    finally:
        session.state = State.ENDED
        session.event("exited", {"exitCode": code})
        session.event("terminated")


# --- restart, and the end -------------------------------------------------------------------------


@dataclass(frozen=True)
class RestartArguments:
    """Of ``restart``: launch arguments stand in `arguments`. Some clients send them as they are."""

    arguments: dict[str, Any] | None = None
    program: Any = None
    graph: Any = None
    inputs: Any = None
    symbols: Any = None
    steps: Any = None


@request("restart", capability="supportsRestartRequest", states=STARTED - {State.ENDED})
def restart(session: Session, arguments: RestartArguments) -> None:
    """Begins anew: with the program's file as it is now, and the arguments that are given. Without
    a `program` among them, those that are not given stay.
    """
    debuggee, launched = session.debuggee, session.per_session(Launched)
    if debuggee is None or launched.arguments is None:
        raise DapError("only what was launched for debugging can be restarted", show=True)
    launch_arguments, changes = launched.arguments, plain(arguments)
    changes = changes.get("arguments", changes)
    if changes:
        try:
            changes = changes if "program" in changes else plain(launch_arguments) | changes
            launch_arguments = check(LaunchArguments, changes, "arguments")
        except Mismatch as error:
            raise DapError(f"restart: {error}", BAD_ARGUMENTS) from None
    restarted = session.shows(lambda: launch(session, launch_arguments))

    def begin() -> None:
        launched.arguments = launch_arguments
        adopt(session, restarted)
        restarted.go(restarted.started)

    debuggee.announce()
    session.after(lambda: debuggee.interrupt(begin))


@request("terminate", capability="supportsTerminateRequest", states=LAUNCHED)
def terminate(session: Session) -> None:
    """Ends the run; the session stays until ``disconnect``."""
    debuggee = session.debuggee
    if session.state is State.ENDED or debuggee is None:
        return
    session.after(lambda: debuggee.interrupt(debuggee.terminate))


@request("disconnect", capability="supportTerminateDebuggee", states=ANY, wire=True)
def disconnect(session: Session, terminate_debuggee: bool | None = None) -> None:
    """The client takes its leave."""
    session.after(lambda: session.leave(terminate_debuggee))


@request("cancel", capability="supportsCancelRequest", states=INITIALIZED, wire=True)
def cancel(session: Session, request_id: int | None = None, progress_id: str | None = None) -> None:
    """Of a request that waits or is being handled. One that is done is not undone."""
    session.cancel(request_id, progress_id)
