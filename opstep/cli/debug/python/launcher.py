"""Runs a script for debugpy's adapter, in the terminal of ``opstep debug``.

The adapter is given this file in place of debugpy's own launcher, which puts the script into a
process group of its own and hands it the terminal: Ctrl-C would then reach the script alone, and
nobody could read commands. Here the script stays in the group of ``opstep debug``. It ignores
SIGINT, which ``opstep debug`` makes a request to pause. A script that ended by a signal ends this
process by the same one, since the exit code that the adapter reports does not show it.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


def launch() -> None:
    """Takes the command line of debugpy's launcher."""
    del sys.path[0]  # this folder, whose modules are not for a script's process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # and the script with it
    from debugpy.launcher import debuggee
    from debugpy.launcher.__main__ import main

    debuggee.spawn, debuggee.kill = spawn, kill
    try:
        main()
    finally:
        kill()
        process: Any = debuggee.process
        if process is not None and (code := process.wait()) < 0:
            end_by(-code)


def spawn(name: str, command: list[str], environment: dict[str, str], redirects: bool) -> None:
    """Starts the script, and reports it to the adapter."""
    from debugpy import launcher
    from debugpy.launcher import debuggee

    process = subprocess.Popen(command, env=environment)
    debuggee.process = process
    atexit.register(kill)
    about = {
        "startMethod": "launch", "isLocalProcess": True, "systemProcessId": process.pid,
        "name": name, "pointerSize": struct.calcsize("P") * 8,
    }  # fmt: skip
    launcher.channel.send_event("process", about)
    threading.Thread(target=debuggee.wait_for_exit, daemon=True).start()


def kill() -> None:
    """Ends the script, if it runs, and the processes that it has started."""
    from debugpy.launcher import debuggee

    process: Any = debuggee.process
    if process is not None and process.poll() is None:
        for number in [process.pid, *started_by(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def started_by(process: int) -> list[int]:
    """The processes below one."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            for child in map(int, task.read_text().split()):
                found += [child, *started_by(child)]
    return found


def end_by(number: int) -> None:
    """Ends this process by a signal, without a core of its own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    launch()
