"""A server that an editor starts before it needs one: most of a launch is imports."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import BinaryIO

from opstep.dap.registry import requests

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
