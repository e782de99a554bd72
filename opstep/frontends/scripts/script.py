"""Runs a Python script as ``python train.py`` and ``python -m train`` do, in this process.

script = Script.find("train.py", ["--epochs", "3"])
with Frameworks({"hunt": True}) as frameworks:
    code = script.run(frameworks)
"""

from __future__ import annotations

import importlib.util
import io
import os
import select
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as _thread_pools
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, Protocol

from opstep.frontends.scripts.frames import own_frames
from opstep.runtime.ir.errors import InputError, NoSuchFile
from opstep.runtime.ir.wording import Wording, Words, in_python, worded

FRAMES = 100  # of ours that may be on the stack of a script
_pools: Any = _thread_pools


class Leave(BaseException):
    """Ends a script, or one of its threads, from within a call of a module."""


Ended = Callable[[BaseException | None], None]


class Judge(Protocol):
    """What says what an error of a script means."""

    def cause_of(self, error: Exception) -> BaseException | None:
        """What is to be raised in its place: ours that it came from, or `Leave`."""
        ...

    def advice(self, error: Exception) -> Wording | None:
        """What to do about it, where we know."""
        ...


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
        with search_path(os.getcwd()):
            spec = _spec(name)
        return Script(name, str(spec.origin), tuple(arguments), spec)

    def run(self, judge: Judge, words: Words = in_python, ended: Ended = lambda error: None) -> int:
        """Runs it to its end, and that of its threads; gives its exit code. `ended` is called then,
        while its globals are still there, with the error that it failed with. What it raises is
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
                code, error = executed(compiled, main, judge, words)
                _join_threads(before)
                if os.getpid() == process:
                    ended(error)
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
        _forget_main()
        first = self.name if self.spec is None else self.path
        sys.argv = [first, *self.arguments]
        folder = os.getcwd() if self.spec else os.path.dirname(os.path.realpath(self.path))
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + FRAMES)
        usual = threading.excepthook
        threading.excepthook = lambda args: None if args.exc_type is Leave else usual(args)
        try:
            with search_path(folder):
                yield main
        finally:
            sys.modules["__main__"], sys.argv, threading.excepthook = before, argv, usual
            sys.setrecursionlimit(limit)


def _forget_main() -> None:
    """Dynamo keeps the module that it found as `__main__` first, which was another script's."""
    dynamo: Any = sys.modules.get("torch._dynamo.symbolic_convert")
    cached: Any = getattr(dynamo, "_import_module", None)
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()


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
def search_path(folder: str) -> Iterator[None]:
    """While the block lasts, a folder is searched first, in place of that of our command."""
    before = list(sys.path)
    sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.path[:] = before


def executed(
    code: types.CodeType, main: types.ModuleType, judge: Judge, words: Words
) -> tuple[int, BaseException | None]:
    """The exit code of a script, and the error where that says it failed."""
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        found = _code_of(error)
        return found, error if found else None
    except Exception as error:
        if (ours := judge.cause_of(error)) is not None:
            raise ours from None
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            raise
        error.__traceback__ = own_frames(error.__traceback__)
        if (advice := judge.advice(error)) is not None:
            error.add_note(f"hint: {worded(advice, words)}")
        sys.excepthook(type(error), error, error.__traceback__)
        return 1, error
    return 0, None


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
