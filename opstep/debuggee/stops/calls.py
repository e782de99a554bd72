"""Breakpoints on methods: ``Attention.forward``, ``layers.Attention.forward``. pydevd knows bare
names of functions; a condition of such a breakpoint asks here.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from opstep.frontends.debugging.breakpoints import Breakpoint

_wanted: dict[str, list[Breakpoint]] = {}  # by bare name
_latest: dict[str, Any] = {}  # of the last stop


def set_calls(breakpoints: list[dict[str, Any]]) -> list[str]:
    """In place of those before; for each, why it will not stop the program."""
    _wanted.clear()
    complaints = []
    for one in breakpoints:
        name, condition = one["name"].strip(), one.get("condition") or ""
        entry = Breakpoint(one["id"], name, condition, one.get("hitCondition") or "")
        complaints.append(entry.complaint())
        if not complaints[-1]:
            _wanted.setdefault(name.rpartition(".")[2], []).append(entry)
    return complaints


def latest() -> dict[str, Any]:
    return _latest


def stops(name: str) -> bool:
    """Whether the program stops in the function of this name that is about to begin."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name != name or _is_debuggers(frame)):
        frame = frame.f_back
    if frame is None:
        return False
    ids, text = [], ""
    for one in _wanted.get(name, []):
        if is_call_of(one.pattern, frame):
            is_hit, error = one.meets({**frame.f_globals, **frame.f_locals})
            ids += [one.id] * is_hit
            text = text or error
    _latest.update(ids=ids, text=text)
    return bool(ids)


def _is_debuggers(frame: types.FrameType) -> bool:
    return "debugpy" in frame.f_code.co_filename


def is_call_of(name: str, frame: types.FrameType) -> bool:
    """Whether a frame is that of a function or method of this name, inherited or not."""
    code = frame.f_code
    full = f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}"
    if full.endswith(f".{name}"):
        return True
    owner, _, method = name.rpartition(".")
    if not owner or not code.co_argcount:
        return False
    given = frame.f_locals.get(code.co_varnames[0])
    kind = given if isinstance(given, type) else type(given)
    found = (b for b in kind.__mro__ if f".{b.__module__}.{b.__qualname__}".endswith(f".{owner}"))
    return any(_code_of(base, method) is code for base in found)


def _code_of(kind: type, method: str) -> Any:
    """Of the method that a class has or inherits."""
    function: Any = next((vars(b)[method] for b in kind.__mro__ if method in vars(b)), None)
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)
