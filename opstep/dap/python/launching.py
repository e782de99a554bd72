"""The arguments of ``launch`` and ``attach`` of sessions on Python scripts."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]

RECORDS = ("workspace", "trace")  # launch arguments of a run that is not debugged
OURS = ("timeTravel", "memory")  # launch arguments that debugpy does not know


def adapter_command() -> list[str]:
    """Starts debugpy's adapter, on its standard input and output."""
    spec = importlib.util.find_spec("debugpy")
    assert spec is not None and spec.origin is not None
    return [sys.executable, str(Path(spec.origin).parent / "adapter")]


def is_python(command: str, arguments: Any) -> bool:
    """Whether a request begins a session on Python, and not on a graph."""
    if command not in ("launch", "attach") or not isinstance(arguments, dict):
        return False
    if command == "attach":
        return any(name in arguments for name in ("connect", "listen", "processId"))
    program = arguments.get("program")
    is_script = isinstance(program, str) and program.lower().endswith((".py", ".pyw"))
    return is_script or any(isinstance(arguments.get(name), str) for name in ("module", "code"))


def is_recorded(arguments: Message) -> bool:
    """Whether a launch is one without debugging that is kept in files."""
    return bool(arguments.get("noDebug")) and any(arguments.get(name) for name in RECORDS)


def folders(arguments: Message) -> list[str]:
    """The ones whose files are the person's own."""
    found = [arguments.get("cwd") or os.getcwd()]
    if program := arguments.get("program"):
        found.append(os.path.dirname(os.path.join(found[0], program)))
    return list(dict.fromkeys(map(os.path.abspath, found)))


def recorded(arguments: Message) -> Message:
    """A launch without debugging, run by ``opstep run`` to keep what happens in files."""
    words = ["run"]
    for name in RECORDS:
        words += [f"--{name}", str(arguments[name])] if arguments.get(name) else []
    words += ["-m", arguments["module"]] if "module" in arguments else [arguments["program"]]
    given = {k: v for k, v in arguments.items() if k not in ("program", *RECORDS)}
    return given | {"module": "opstep", "args": [*words, *(arguments.get("args") or [])]}
