"""With which code this process ends, as far as that can be known while it does (`atexit`)."""

from __future__ import annotations

import dis
import sys
import threading
from types import FrameType

FAILED, INTERRUPTED = 1, 130  # of an uncaught exception, and of Ctrl-C


def outermost_frame() -> FrameType | None:
    """The main thread's: the program's own, if that is a script or a module."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return None if hasattr(sys, "ps1") or sys.flags.interactive else frame


def exit_code(outermost: FrameType | None) -> int | None:
    """None where `SystemExit` has the code, which cannot be seen here."""
    if outermost is None:
        return None
    if dis.opname[outermost.f_code.co_code[outermost.f_lasti]].startswith("RETURN"):
        return 0
    uncaught = getattr(sys, "last_value", None)
    traceback = getattr(uncaught, "__traceback__", None)
    if traceback is None or traceback.tb_frame is not outermost:
        return None
    return INTERRUPTED if isinstance(uncaught, KeyboardInterrupt) else FAILED
