"""Calls that the main thread of a script makes while it runs or stands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_PENDING_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_called: list[Any] = []  # they must live until then


def on_main_thread(call: Callable[[], None]) -> None:
    """Has the main thread call it between two of its instructions, as a handler of a signal."""

    def run(_: Any) -> int:
        call()
        return 0

    _called.append(_PENDING_CALL(run))
    ctypes.pythonapi.Py_AddPendingCall(_called[-1], None)
