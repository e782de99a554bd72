"""Kernels that are compiled on the way, shown to the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.dap.progress import Progress

COMPILING = "opstep: compiling kernels"


@contextmanager
def compile_progress(progress: Progress) -> Iterator[None]:
    """Shows which kernels are compiled meanwhile, if that takes long."""
    from opstep.runtime.device.cache import Compiler

    before = Compiler.on_compile
    with progress as bar:
        Compiler.on_compile = lambda kernel: bar.update(f"{kernel} (once: it is kept)")
        try:
            yield
        finally:
            Compiler.on_compile = before
