"""Sessions on standard input and output, and on ports of this machine."""

from __future__ import annotations

import socket
import threading

from opstep.dap.ahead import prepare
from opstep.dap.session import HostProgram, Session
from opstep.dap.wire import Wire, wire_of
from opstep.editors import server
from opstep.editors.server import Log, standard_streams

LEAVING_S = 5  # how long a run may take to end once its client is gone


def serve(
    wire: Wire, log: Log | None = None, *, alone: bool = False, attached: HostProgram | None = None
) -> None:
    """One session, from its first message until the client is gone and the run has ended."""
    session = Session(wire, log, alone=alone, attached=attached)
    owner = threading.Thread(target=own, args=(session,), name="opstep debuggee", daemon=True)
    owner.start()
    try:
        session.read_all()
    finally:
        session.leave()
        if attached is not None:
            attached.client_left(session)
        goes_on = session.debuggee is not None and session.debuggee.goes_on
        owner.join(None if goes_on else LEAVING_S)


def own(session: Session) -> None:
    """Handles requests, and behind them what the client left to go on by itself."""
    session.own()
    if session.debuggee is not None and session.attached is None:
        session.debuggee.finish_detached()


def serve_stdio(log: Log | None = None, ahead: bool = False) -> None:
    """A session on this process's standard input and output; `ahead`: before anybody needs it."""
    streams = standard_streams()
    if ahead:
        prepare(*streams)
    serve(Wire(*streams), log, alone=True)


class Listener(server.Listener):
    """Listens on a port of this machine; each connection is a session of its own.

    Raises `InputError` where the address is not one of this machine, or cannot be had.
    """

    def __init__(
        self, host: str, port: int, log: Log | None = None, attached: HostProgram | None = None
    ):
        def one(connection: socket.socket) -> None:
            serve(wire_of(connection), log, attached=attached)

        super().__init__(host, port, one, log)
