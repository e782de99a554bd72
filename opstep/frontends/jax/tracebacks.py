"""Tracebacks of equations, with the lines of rules.

While JAX derives or evaluates what it traced before, each new equation has the traceback of the old
one. So have those that a rule of `custom_vjp` or `custom_jvp` writes meanwhile, whose lines nothing
would tell. In `rules_seen`, their tracebacks begin with the rule's frames.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from jax.extend import source_info_util

# Libraries whose lines are left out where a line of somebody else's called them.
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "chex", "haiku", "equinox", "orbax")
_OWN = str(Path(__file__).parent) + os.sep
_jax: Any = sys.modules[source_info_util.current.__module__]
_plain, _plain_context = source_info_util.current, source_info_util.user_context
_Traceback: Any = type(_plain().traceback)
JOINS = hasattr(_Traceback, "__add__")  # not in JAX 0.9: what called a rule is not known there
_local = threading.local()  # `frame`: that which said of which equation new ones are
_contexts: set[tuple[str, int]] = set()  # functions with such frames: their files and first lines
_lock = threading.Lock()
_uses = 0


class Frame(NamedTuple):
    file: str
    line: int
    start: int  # of its function


class _Context(_plain_context):
    """Knows the frame that entered it."""

    __slots__ = ("outer",)

    def __enter__(self) -> None:
        super().__enter__()
        self.outer = getattr(_local, "frame", None)
        if self.traceback is not None:
            _local.frame = sys._getframe(1)

    def __exit__(self, *error: Any) -> None:
        _local.frame = self.outer
        super().__exit__(*error)


def _current() -> Any:
    """The origin of an equation that is being written."""
    info = _plain()
    frame, context = sys._getframe(1), getattr(_local, "frame", None)
    if context is None:
        return info
    while frame is not None and frame is not context and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame is context:
        return info
    _contexts.add((context.f_code.co_filename, context.f_code.co_firstlineno))
    rule = _Traceback.get_traceback()
    return info.replace(traceback=rule + info.traceback if JOINS else rule)


_STARTS = {(f.__code__.co_filename, f.__code__.co_firstlineno) for f in (_current, _plain)}


@cache
def _folders() -> tuple[tuple[str, ...], str]:
    """The folders of libraries, and of JAX."""
    found = []
    for name in LIBRARIES:
        spec = find_spec(name)
        found += [f"{p}{os.sep}" for p in (spec and spec.submodule_search_locations) or ()]
    return tuple(found), found[0]


@lru_cache(4096)
def is_library(file: str) -> bool:
    return file.startswith((*_folders()[0], "<frozen", _OWN))


def is_jax(file: str) -> bool:
    return file.startswith(_folders()[1])


@contextmanager
def rules_seen() -> Iterator[None]:
    """While the block lasts, what is traced has the lines of rules."""
    global _uses
    with _lock:
        _uses += 1
        _jax.current, _jax.user_context = _current, _Context
    try:
        yield
    finally:
        with _lock:
            _uses -= 1
            if not _uses:
                _jax.current, _jax.user_context = _plain, _plain_context


@lru_cache(4096)
def frames_of(traceback: Any) -> tuple[list[Frame], int]:
    """The frames, innermost first, and how many rules they are of: those which called a rule are
    the ones that JAX says it is called in.
    """
    listed = traceback.frames if traceback is not None else ()
    rest = [Frame(f.file_name, f.line_num, f.function_start_line) for f in listed]
    found: list[Frame] = []
    rules = 0
    while rest and rest[0].file == __file__:
        end = _first(rest, _contexts | _STARTS, 1)
        found += rest[1:end]
        rest = rest[_first(rest, _STARTS, end) :]
        rules += 1
    return found + [f for f in rest if f.file != __file__], rules


def _first(frames: Sequence[Frame], functions: set[tuple[str, int]], start: int) -> int:
    """The place of the first frame of one of these functions."""
    places = range(start, len(frames))
    return next((k for k in places if (frames[k].file, frames[k].start) in functions), len(frames))
