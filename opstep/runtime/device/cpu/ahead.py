"""Kernels that are compiled in a thread of their own, before somebody waits for them."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Iterable

from opstep.runtime.device.cpu.jit import Kernel

_wanted: deque[Kernel] = deque()
_known: set[Kernel] = set()  # that were asked for once
_lock = threading.Lock()
_thread: threading.Thread | None = None


def compile_ahead(kernels: Iterable[Kernel]) -> None:
    """Has kernels compiled, in this order, that are neither loaded nor kept on disk."""
    global _thread
    new = [k for k in dict.fromkeys(kernels) if k not in _known and not k.is_compiled()]
    if not new:
        return
    with _lock:
        _known.update(new)
        _wanted.extend(new)
        if _thread is None:
            _thread = threading.Thread(target=_compile_all, daemon=True, name="opstep compiler")
            _thread.start()


def waiting() -> int:
    """The number of kernels still to be compiled."""
    with _lock:
        return sum(not k.is_compiled() for k in _wanted)


def _compile_all() -> None:
    global _thread
    while True:
        with _lock:
            if not _wanted:
                _thread = None
                return
            kernel = _wanted.popleft()
        if not kernel.is_compiled():
            kernel.address()


@atexit.register
def _stop() -> None:
    """Waits for the kernel that is under way: LLVM does not survive the end of the process."""
    with _lock:
        _wanted.clear()
        thread = _thread
    if thread is not None:
        thread.join()
