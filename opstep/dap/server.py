"""Sessions on standard input and output, and on ports of this machine; also those of a server that
an editor starts before it needs one, as most of a launch is imports.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from opstep.dap.registry import requests
from opstep.dap.session import HostProgram, Session
from opstep.dap.wire import Wire, wire_of
from opstep.editors import server
from opstep.editors.server import Log, standard_streams

PROGRAM = "graph main(x: f32[1]) -> f32[1] {\n  return x\n}\n"


def prepare(reader: BinaryIO, writer: BinaryIO) -> None:
    """Returns at the first message, which is left to be read. Starts this process anew if a file
    that was imported has changed by then: opstep was upgraded, or is worked on.
    """
    warm_up()
    if sys.platform == "win32":  # select is for sockets there
        return
    before = stamps()
    select.select([reader], [], [])
    if stamps() != before:
        os.dup2(reader.fileno(), 0)
        os.dup2(writer.fileno(), 1)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def warm_up() -> None:
    """Imports what the launch of a program on made-up inputs needs, and compiles nothing."""
    import llvmlite.binding  # noqa: F401

    from opstep.api import sources
    from opstep.api.debugging import Debugger
    from opstep.api.program import loads

    requests()
    program = loads(PROGRAM)
    graph = program.graph("main")
    machine = Debugger(program, "main", sources.gather(program, graph, ["random"], {}, 0)).machine
    machine.executor.statistics(machine.inputs[0])


def stamps() -> dict[str, tuple[int, ...]]:
    """Of every file that was imported: another one in its place has another stamp."""
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        with suppress(OSError):
            if file:
                at = os.stat(file)
                found[file] = at.st_ino, at.st_size, at.st_mtime_ns
    return found


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
