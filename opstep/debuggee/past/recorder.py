"""The recorder in C++: built, installed before the debugger's own trace function, and removed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opstep.debuggee.files import is_user
from opstep.debuggee.past import kinds
from opstep.runtime.device.extension import Extension, Unavailable, what_is_missing
from opstep.runtime.ir.errors import InputError

TOOL = 4  # of sys.monitoring; debuggers take 0, coverage 1, profilers 2
_SOURCES = Path(__file__).parent / "native"
_CORE: dict[str, str] = dict.fromkeys(
    ("shim.c", "kinds.cpp", "nodes.cpp", "contents.cpp", "codes.cpp", "log.cpp", "lines.cpp",
     "hooks.cpp", "answers.cpp", "loops.cpp", "module.cpp"), "-O2",
)  # fmt: skip
_HAS_MONITORING = sys.version_info >= (3, 12)


class Handle(int):
    """Of something in the past that has a content."""


@cache
def core() -> Extension:
    include = sysconfig.get_paths()["include"]
    flags = ["-fPIC", "-fvisibility=hidden", f"-isystem{include}", f"-isystem{include}/internal"]
    probe = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("opstep_past", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.statistics()["events"] == 0
"""
    return Extension(
        "opstep_past", "past", _SOURCES, _CORE, flags, libraries=["-O2"],
        optional=["-flto"],  # a line is many short functions of several files
        stands_on=(sys.version, os.path.realpath(sys.executable)), probe=probe,
    )  # fmt: skip


@cache
def tensors() -> Extension | None:
    """The part that needs PyTorch's headers; None where there is no PyTorch. Does not import it."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    include = root / "include"
    paths = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    version = (root / "version.py").read_text("utf-8")
    return Extension(
        "opstep_past_tensors", "past-tensors", _SOURCES,
        {"tensors.cpp": "-O1", "storages.cpp": "-O2"},
        flags=["-fPIC", "-fvisibility=hidden", *(f"-isystem{p}" for p in paths)],
        libraries=[f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"],
        stands_on=(version, str(root), sys.version), probe=_TENSORS_PROBE, works_with="PyTorch",
    )  # fmt: skip


def is_built() -> bool:
    """Whether recording can begin at once, or never."""
    parts = [part for part in (core(), tensors()) if part is not None]
    return bool(what_is_missing()) or all(part.path.exists() or part.failed for part in parts)


def build_in_background() -> None:
    """For the next session, in a process of its own."""
    core().build_in_background(_BACKGROUND)


_BACKGROUND = """
import os, sys
from opstep.debuggee.past import recorder
try:
    for one in (recorder.core(), recorder.tensors()):
        if one is not None:
            one.build(gently=True)
    if recorder.tensors() is not None:
        from opstep.frontends.torch.eager import native
        native.build(gently=True)
finally:
    os.unlink(sys.argv[1])
"""
_TENSORS_PROBE = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location("opstep_past_tensors", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.describe(torch.arange(6.0)[1:3])[:2] == (24, 1)
"""


class Recorder:
    """Records the main thread; there is one of it. Raises `InputError` where that cannot be."""

    def __init__(self, folders: list[str], memory: int):
        if not ((3, 11) <= sys.version_info < (3, 15)) or sys.implementation.name != "cpython":
            version = ".".join(map(str, sys.version_info[:2]))
            raise InputError(f"the past is recorded in CPython 3.11 to 3.14; this is {version}")
        try:
            if core().failed:
                raise Unavailable(core().failed)
            core().build()
            self.native: Any = core().load()
            self.without_tensors = self._build_tensors()
            self.without_writes = ""
            self._tensors: Any = None
        except Unavailable as error:
            raise InputError(f"the past cannot be recorded: {error}") from None
        self._folders = tuple(map(os.path.abspath, folders))
        monitoring: Any = getattr(sys, "monitoring", None)
        disable = monitoring.DISABLE if monitoring else None
        main = threading.main_thread().ident
        self._undo: list[Callable[[], None]] = []
        self.native.start(
            main, memory, self._classify, self.is_user, kinds.lines_of, Handle, deque, disable
        )
        if _HAS_MONITORING:
            self._monitor()
        else:
            self._stay_in_front()
        os.register_at_fork(after_in_child=self.end)

    def is_user(self, filename: str) -> bool:
        return is_user(filename, self._folders)

    def watch_writes(self) -> None:
        if self.without_tensors:
            return
        from opstep.frontends.torch.debugging import writes

        self.without_writes = writes.begin(self._use_tensors())

    def dropped_copies(self) -> int:
        """Of large tensors, to stay within memory."""
        return self._tensors.copies()[1] if self._tensors else 0

    def end(self) -> None:
        self.native.stop()
        while self._undo:
            self._undo.pop()()

    def _classify(self, t: type) -> int:
        kind = kinds.kind_of(t)
        if kind == kinds.TENSOR and not self.without_tensors:
            self._use_tensors()
        return kind | kinds.DEEP * kinds.is_deep(t)

    def _use_tensors(self) -> Any:
        extension = tensors()
        assert extension is not None
        self._tensors = extension.load()
        self.native.use_tensors(self._tensors.api())
        return self._tensors

    def _build_tensors(self) -> str:
        """Why there is no part for tensors; "" where there is."""
        extension = tensors()
        if extension is None:
            return "there is no PyTorch"
        if extension.failed:
            return extension.failed
        try:
            extension.build()
        except Unavailable as error:
            return str(error)
        return ""

    def _monitor(self) -> None:
        monitoring: Any = getattr(sys, "monitoring", None)
        native = self.native
        events = monitoring.events
        if monitoring.get_tool(TOOL) is not None:
            raise InputError(f"the past cannot be recorded: {monitoring.get_tool(TOOL)} does")
        monitoring.use_tool_id(TOOL, "opstep")
        for event, function in (
            (events.PY_START, native.on_start), (events.LINE, native.on_line),
            (events.PY_RETURN, native.on_return), (events.PY_UNWIND, native.on_unwind),
        ):  # fmt: skip
            monitoring.register_callback(TOOL, event, function)
        all_events = events.PY_START | events.LINE | events.PY_RETURN | events.PY_UNWIND
        monitoring.set_events(TOOL, all_events)
        monitoring.restart_events()

        def undo() -> None:
            monitoring.set_events(TOOL, 0)
            monitoring.free_tool_id(TOOL)

        self._undo.append(undo)

    def _stay_in_front(self) -> None:
        """pydevd sets trace functions of threads by functions of this module."""
        tracing = sys.modules.get("pydevd_tracing")
        for name in ("set_trace_to_threads", "SetTrace"):
            if (original := getattr(tracing, name, None)) is not None:
                self._wrap(tracing, name, original)

    def _wrap(self, module: Any, name: str, original: Callable[..., Any]) -> None:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.native.compose()
            return result

        setattr(module, name, wrapped)
        self._undo.append(lambda: setattr(module, name, original))
