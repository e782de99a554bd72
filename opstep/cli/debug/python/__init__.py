"""``opstep debug train.py``: a client of the Debug Adapter Protocol, with gdb's and pdb's commands.

client.py      the adapter: requests, answers, events
run.py         one run of the script: how it starts, goes on, stops and ends
launcher.py    the script's process, in this terminal
session.py     what is shown; points.py: the breakpoints; places.py, source.py: lines of files
running.py, breaking.py, looking.py    the commands; completing.py: what Tab offers
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, NoReturn

from opstep.cli.common import OK, PROGRAM, is_explicit
from opstep.cli.debug.opening import asked, begun, given_commands
from opstep.cli.scripts import script_arguments
from opstep.frontends.scripts.script import Script
from opstep.runtime.ir.errors import DeviceError, InputError

# Options of `opstep debug` that a script takes.
_TAKEN = {"file", "is_module", "script", "given", "batch", "listen", "wait"}
_COMMANDS = {"script": "-x", "given": "-ex", "batch": "--batch"}


def debug_script(file: str, options: dict[str, Any], flags: dict[str, str]) -> int:
    """Gives the script's exit code; that of a session that was ended before is 0. `flags`: how each
    option is written. Raises `InputError`.
    """
    check_options(options, flags)
    script = Script.find(file, script_arguments() or (), options["is_module"])
    if options["listen"] is not None:
        listened(script, options["listen"], options["wait"])
    check_installed()
    from opstep.cli.debug.python.completing import completions
    from opstep.cli.debug.python.session import PythonSession

    first = given_commands(options)
    # What comes from a pipe is commands, unless there is no reading any.
    reads = sys.stdin.isatty() or options["batch"]
    session = begun(PythonSession, (script, reads), options["batch"])
    if session.interactive:
        session.say(f"{file}: run, start or break first; help lists the commands.")
    try:
        for reader in first:
            session.loop(reader)
        if not options["batch"] and not session.over:
            session.loop(asked(session, partial(completions, session)))
    finally:
        session.end()
    failed = options["batch"] and session.failed
    return session.code or (PROGRAM if failed else OK)


def check_options(options: dict[str, Any], flags: dict[str, str]) -> None:
    """Raises `InputError` for what makes no sense with a script."""
    if options["wait"] and options["listen"] is None:
        raise InputError("--wait needs --listen PORT")
    for name, flag in flags.items():
        if is_explicit(name) and name not in _TAKEN:
            hint = "opstep debug runs a script in Python, as python does; leave it out"
            raise InputError(f"{flag} is not for scripts", hint=hint)
        if is_explicit(name) and name in _COMMANDS and options["listen"] is not None:
            hint = "the editor that attaches says what to do"
            raise InputError(f"{_COMMANDS[name]} and --listen exclude each other", hint=hint)


def check_installed() -> None:
    """Raises `DeviceError` without debugpy."""
    from importlib.util import find_spec

    if find_spec("debugpy") is None:
        raise DeviceError(
            "scripts are debugged with debugpy, not installed here",
            hint="pip install 'opstep[debug]'",
        )


def listened(script: Script, port: int, waits: bool) -> NoReturn:
    """Becomes the script, which an editor attaches to."""
    named = [script.name] if script.spec is None else ["-m", script.name]
    own = ["--listen", str(port), *["--wait"] * waits]
    command = [sys.executable, "-m", "opstep.debuggee.listening", *own, *named, *script.arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
