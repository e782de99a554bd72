"""Runs a Python script as ``python train.py`` and ``python -m train`` do, in this process.

script = Script.find("train.py", ["--epochs", "3"])
with ModuleCalls(partial(opstep_backend, options={"hunt": True})):
    code = script.run()
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import select
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import thread as _thread_pools
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError, NoSuchFile
from opstep.runtime.ir.wording import Argument, Blank, Wording, Words, in_python, worded

_pools: Any = _thread_pools
_COMPILING = ("opstep.", "torch._dynamo.")  # modules whose frames nobody wants to see
_TWICE = Wording(
    "a compiled module has no second derivatives, which is PyTorch's limit: with ",
    Argument("module", Blank("PATTERN", "pattern")), " only others are compiled",
)  # fmt: skip
_OTHERS = Wording(
    "with ", Argument("module", Blank("PATTERN", "pattern")), " only other modules are compiled"
)  # fmt: skip
_NOWHERE = None, None
_REST = re.compile("torch_dynamo_resume_in_(.*)_at_[0-9]+")  # of a function, made by Dynamo


class Leave(BaseException):
    """Ends a script, or one of its threads, from within a call of a module."""


@dataclass(frozen=True)
class Script:
    """`name`: as it was given, a file or a module. `path`: of the file that is run."""

    name: str
    path: str
    arguments: tuple[str, ...]
    spec: ModuleSpec | None = None  # of a module

    @staticmethod
    def find(name: str, arguments: Sequence[str] = (), is_module: bool = False) -> Script:
        """Raises `InputError` where there is none."""
        if not is_module:
            path = Path(name)
            if path.is_dir():
                raise InputError(f"{name} is a directory, not a file")
            if not path.exists():
                raise NoSuchFile(name)
            return Script(name, str(path.absolute()), tuple(arguments))
        with _search_path(os.getcwd()):
            spec = _spec(name)
        return Script(name, str(spec.origin), tuple(arguments), spec)

    def run(self, words: Words = in_python) -> int:
        """Runs it to its end, and that of its threads; gives its exit code. What it raises is
        shown as Python shows it, without what is above the script, and with what to do about it in
        `words`, where we know. Raises `OpstepError` where that is why it ended, and `Leave` and
        `KeyboardInterrupt`. A fork of the script's never returns.
        """
        process = os.getpid()
        code = 1
        try:
            compiled = self._compiled()
        except SyntaxError as error:
            error.__traceback__ = None
            sys.excepthook(SyntaxError, error, None)
            return 1
        before = set(threading.enumerate())
        try:
            with self._as_main() as main:
                code = _executed(compiled, main, words)
                _join_threads(before)
        finally:
            if os.getpid() != process:
                sys.exit(code)
        return code

    def _compiled(self) -> types.CodeType:
        if self.spec is not None and self.spec.loader is not None:
            code = self.spec.loader.get_code(self.spec.name)  # pyright: ignore
            if code is not None:
                return code
        with io.open_code(self.path) as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)

    @contextmanager
    def _as_main(self) -> Iterator[types.ModuleType]:
        """While the block lasts, the script is the program that this process runs."""
        main = types.ModuleType("__main__")
        main.__file__ = self.path
        main.__loader__ = SourceFileLoader("__main__", self.path)
        main.__spec__ = self.spec
        main.__package__ = None if self.spec is None else self.spec.parent
        main.__dict__.update(__builtins__=__builtins__, __cached__=None)
        before, argv = sys.modules["__main__"], sys.argv
        sys.modules["__main__"] = main
        first = self.name if self.spec is None else self.path
        sys.argv = [first, *self.arguments]
        folder = os.getcwd() if self.spec else os.path.dirname(os.path.realpath(self.path))
        told = threading.excepthook
        threading.excepthook = lambda args: None if args.exc_type is Leave else told(args)
        try:
            with _search_path(folder):
                yield main
        finally:
            sys.modules["__main__"], sys.argv, threading.excepthook = before, argv, told


def _spec(name: str) -> ModuleSpec:
    """Of what ``python -m`` would run. Raises `InputError`."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.loader is None or not spec.has_location:
        raise InputError(f"there is no module {name}, or none that can be run")
    return spec


@contextmanager
def _search_path(folder: str) -> Iterator[None]:
    """While the block lasts, a folder is searched first, in place of that of our command."""
    before = list(sys.path)
    sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.path[:] = before


def _executed(code: types.CodeType, main: types.ModuleType, words: Words) -> int:
    """The exit code of a script."""
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        return _code_of(error)
    except Exception as error:
        if (ours := cause_of(error)) is not None:
            raise ours from None
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            raise
        error.__traceback__ = own_frames(error.__traceback__)
        if "does not currently support double backward" in str(error):
            error.add_note(f"hint: {worded(_TWICE, words)}")
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def is_reader_gone() -> bool:
    """Whether nobody reads what this process writes to standard output."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def cause_of(error: BaseException) -> OpstepError | None:
    """The error of ours that PyTorch raised another one for, or that it is."""
    inner = getattr(error, "inner_exception", None)  # torch._dynamo.exc.BackendCompilerFailed
    found = next((e for e in (error, inner) if isinstance(e, OpstepError)), None)
    if found is None and type(inner) is RuntimeError:
        from opstep.frontends.missing import source_line
        from opstep.frontends.torch.errors import cause

        at = own_frames(error.__traceback__)
        while at is not None and at.tb_next is not None and not _is_hidden(at.tb_next.tb_frame):
            at = at.tb_next
        source, span = source_line(at.tb_frame.f_code.co_filename, at.tb_lineno) if at else _NOWHERE
        what = f"PyTorch cannot compile what is called here: {cause(inner)}"
        return InputError(what, span=span, source=source, hint=_OTHERS)
    return found


def own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without what runs the script, and what compiles its modules."""
    levels = []
    while traceback is not None:
        levels.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for one in reversed(levels):
        frame = one.tb_frame
        found = _REST.fullmatch(rest.tb_frame.f_code.co_name) if rest is not None else None
        resumed = found is not None and found[1] == _REST.sub(r"\1", frame.f_code.co_name)
        if not resumed and not str(frame.f_globals.get("__name__")).startswith(_COMPILING):
            rest = types.TracebackType(rest, frame, one.tb_lasti, one.tb_lineno)
    return rest


def line_now(ran: tuple[str, int] | None = None) -> tuple[str, int] | None:
    """Where the script is: the innermost line that is neither PyTorch's nor ours. `ran`: the line
    of what was run; a function that goes on behind a break of the graph does not know its own.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_hidden(frame):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    if ran is not None and ran[0] == code.co_filename and _REST.fullmatch(code.co_name):
        return ran
    return code.co_filename, frame.f_lineno


def _is_hidden(frame: types.FrameType) -> bool:
    """Whether it is PyTorch's, or ours."""
    from opstep.frontends.torch.sources import is_pytorch

    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    return module.startswith(_COMPILING) or file.startswith("<") or is_pytorch(file)


def _join_threads(before: set[threading.Thread]) -> None:
    """As Python does before it ends, for threads that the script began. Those of an executor that
    nobody shut down do what they have been given, and no more.
    """
    _pools._shutdown = True  # what makes a thread end that is given None, as when Python ends
    try:
        while own := [t for t in threading.enumerate() if t not in before and _is_awaited(t)]:
            for thread in own:
                if thread in _pools._threads_queues:
                    _pools._threads_queues[thread].put(None)
            for thread in own:
                thread.join()
    finally:
        _pools._shutdown = False


def _is_awaited(thread: threading.Thread) -> bool:
    """Not what looks after an executor's processes: no module is called there. Python ends it."""
    of_processes = type(thread).__module__ == "concurrent.futures.process"
    return not (thread.daemon or of_processes or thread is threading.current_thread())
