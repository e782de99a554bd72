"""Stops the script at a line of its own from within an op, with nothing unwound.

debugpy can stop at an exception that was caught; here there was none, only a text to show. In a
thread that the script did not start, such as autograd's for a GPU, the script's line is that of the
main thread, which waits for it: a step that the person asks for then is the main thread's.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from opstep.frontends.torch.eager.places import is_library, is_own


class NotFinite(Exception):
    """Shown by its name, and never raised."""


class AtOp(Exception):
    """The script stands after an op that somebody asked for; likewise never raised."""


class _Local(threading.local):
    is_stopped = False


_local = _Local()


def stop(text: str, shown: type[Exception] = NotFinite) -> None:
    """Returns when the person lets the script go on. Without a client, without a line of the
    script's, and within a stop, whose expressions must not stop again, it returns at once.
    """
    frame, is_elsewhere = script_frame(sys._getframe(1))
    if frame is None or _local.is_stopped:
        return
    import debugpy

    trace = types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
    _local.is_stopped = True
    try:
        debugpy.trigger_exception_handler((shown, shown(text), trace), as_uncaught=False)
    finally:
        _local.is_stopped = False
    if is_elsewhere:
        _hand_step_over(frame)


def is_stopped() -> bool:
    """Whether this thread is in a stop of ours."""
    return _local.is_stopped


def script_frame(frame: types.FrameType | None) -> tuple[types.FrameType | None, bool]:
    """The innermost of the script's own among a frame and its callers; else that of the main
    thread, and True.
    """
    found = _own_frame(frame)
    if found is not None:
        return found, False
    main = threading.main_thread().ident
    return _own_frame(sys._current_frames().get(main or 0)), True


def _own_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost one of the script's own files; else of a library's."""
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own(file):
            if not is_library(file):
                return frame
            library = library or frame
        frame = frame.f_back
    return library


def _hand_step_over(frame: types.FrameType) -> None:
    """A step that this thread was asked for is the main thread's, at `frame`."""
    bundle: Callable[[str], Any] = lambda name: sys.modules[f"_pydevd_bundle.{name}"]  # noqa: E731
    info = bundle("pydevd_additional_thread_info").set_additional_thread_info
    mine, main = info(threading.current_thread()), info(threading.main_thread())
    if mine.pydev_step_cmd in (-1, None):
        return
    main.pydev_original_step_cmd = main.pydev_step_cmd = mine.pydev_step_cmd
    main.pydev_step_stop = frame
    main.pydev_state = bundle("pydevd_constants").STATE_RUN
    main.update_stepping_info()
    mine.pydev_original_step_cmd = mine.pydev_step_cmd = -1
    mine.pydev_step_stop = None
    mine.update_stepping_info()
    debugger = bundle("pydevd_constants").get_global_debugger()
    debugger.set_trace_for_frame_and_parents(threading.main_thread().ident, frame)
    if sys.version_info >= (3, 12):
        monitoring: Any = sys.modules["pydevd"].pydevd_sys_monitoring
        monitoring.update_monitor_events(suspend_requested=True)
        monitoring.restart_events()
