"""Functions of `jax.jit` in a script that is debugged as Python: opstep runs them while a client
debugs the graphs of the process, else JAX.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opstep.dap import attach
from opstep.frontends.jax import debugging
from opstep.frontends.jax.framework import CALLBACKS, Jax


class SteppedInto(Jax):
    """Those that opstep has no counterpart for are JAX's, with a warning."""

    def __init__(self) -> None:
        super().__init__({"fallback": True}, ())

    def __enter__(self) -> Jax:
        debugging.untraced = _untraced
        super().__enter__()
        CALLBACKS.setLevel(self._level)  # callbacks that fail are the script's own
        return self

    def wants(self, function: debugging.Debugged) -> bool:
        return attach.is_attached() and super().wants(function)


@contextmanager
def _untraced() -> Iterator[None]:
    """A function that is imported is not stepped into: its graph is."""
    infos: Any = sys.modules["_pydevd_bundle.pydevd_additional_thread_info"]
    info = infos.set_additional_thread_info(threading.current_thread())
    info.is_tracing += 1
    try:
        yield
    finally:
        info.is_tracing -= 1
