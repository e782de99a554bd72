"""Calls of functions of `jax.jit` that a person steps into: the graph is debugged in a session of
its own, which attaches to this process.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from opstep.dap import attach

ATTACHING_S = 20.0  # that a client may take to attach


def watch() -> None:
    """JAX is there: the script's calls of `jax.jit` are seen from now on."""
    from opstep.frontends.jax.stepping import SteppedInto

    SteppedInto().__enter__()


def enter(frame: FrameType | None) -> int:
    """Before a step into what a line calls. Gives the port to which a client has to attach first;
    0 where the line calls no function of `jax.jit`, or one is attached: that stops in the graph.
    """
    if frame is None or not any(_is_jitted(f) for f in _callees(frame)):
        return 0
    if attach.is_attached():
        attach.pause_next(True)
        return 0
    port = attach.port()
    if port is None:
        threading.current_thread().pydev_do_not_trace = True  # pyright: ignore
        port = attach.listen()
    return port


def wait() -> bool:
    """Until a client has attached."""
    return attach.wait_for_client(ATTACHING_S)


def leave() -> None:
    """The step is done."""
    if attach.is_attached():
        attach.pause_next(False)


def _is_jitted(function: Any) -> bool:
    from opstep.frontends.jax.debugging import Debugged

    return isinstance(function, Debugged)


def _callees(frame: FrameType) -> Iterator[Any]:
    """The functions that a frame's statement calls by name, found without running any code."""
    text = "".join(linecache.getlines(frame.f_code.co_filename))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            yield _value(node.func, frame)


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        found = inspect.getattr_static(_value(node.value, frame), node.attr, None)
        return getattr(found, "__func__", found)
    return None
