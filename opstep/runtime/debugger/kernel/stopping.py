"""Has debugpy stop in one thread, at the first line of a function, once.

It is an ordinary breakpoint with a condition, set as a client would set it. (To ask for a stop as
soon as possible instead would stop in whatever Python runs next, the debugger's own helpers
included.)
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Callable
from typing import Any

NUMBER = 1 << 30  # of the breakpoint; clients' are numbered from 1 on

_stopping_thread: list[int] = []  # the thread that is to stop


def reached() -> bool:
    """The breakpoint's condition: true once, in the thread that is wanted."""
    if _stopping_thread != [threading.get_ident()]:
        return False
    _stopping_thread.clear()
    return True


class Stopping:
    """Calls a kernel so that debugpy stops at its first line; a client must be there. Breakpoints
    that it sets in the same file later take the place of this one, when it has done its work.
    """

    def __init__(self) -> None:
        self._stopped = False

    def prepare(self, kernel: Callable[..., None]) -> None:
        """Sets the breakpoint."""
        # debugpy carries them
        import pydevd  # pyright: ignore[reportMissingImports]
        from _pydevd_bundle.pydevd_api import PyDevdAPI  # pyright: ignore[reportMissingImports]

        code: Any = kernel.__code__  # pyright: ignore[reportFunctionMemberAccess]
        condition = f"__import__('sys').modules[{__name__!r}].reached()"
        PyDevdAPI().add_breakpoint(
            pydevd.get_global_debugger(), code.co_filename, "python-line", NUMBER,
            first_line(code), condition, "None", None, "ALL", None, False,
        )  # fmt: skip

    def __call__(self, kernel: Callable[..., None], args: tuple) -> None:
        if not self._stopped:
            self._stopped = True
            _stopping_thread[:] = [threading.get_ident()]
        kernel(*args)


def first_line(code: Any) -> int:
    """Of a function's body; that of ``def`` where they are one."""
    lines = (line for _, line in dis.findlinestarts(code) if line and line > code.co_firstlineno)
    return next(lines, code.co_firstlineno)
