"""How a kernel's LLVM becomes an object file.

numba makes machine code of each function that it compiles and loads it, so that Python can call it,
and optimises a function again in each that calls it. Here only the entry is called, which holds all
the others: they stay LLVM, the kernel is optimised with what it calls, and the entry, which does
nothing but call it, is made into machine code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import codegen, compiler


class Library(codegen.JITCodeLibrary):
    """A function and what it calls, optimised LLVM."""

    def _finalize_specific(self) -> None:
        """Nothing is made into machine code."""


class Entry(Library):
    """The function that is called, and a kernel that is optimised already."""

    def _optimize_final_module(self) -> None:
        """Leaves the kernel as it is."""

    def object_code(self) -> bytes:
        return self._codegen._tm.emit_object(self._final_module)


class _Codegen(codegen.JITCPUCodegen):
    _library_class = Library

    def _add_module(self, module: Any) -> None:
        """Nothing is loaded."""

    def set_env(self, env_name: str, env: Any) -> None:
        """What is not loaded has no place for it: only functions that raise or call Python do."""


@cache
def _codegen() -> _Codegen:
    return _Codegen("kernels")


def entry() -> Entry:
    return Entry(_codegen(), "entry")


class Compiler(compiler.Compiler):
    """numba's, whose functions go to libraries of ours."""

    def __init__(self, typing: Any, target: Any, library: Library | None, *rest: Any):
        super().__init__(typing, target, library or Library(_codegen(), "kernel"), *rest)
