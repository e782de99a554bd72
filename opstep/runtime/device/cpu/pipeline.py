"""numba's compiler, but for machine code: it makes that of a kernel's entry alone.

numba loads what it compiles, function by function, so that Python can call each. Of a kernel only
the entry is called, from object code that has all other functions linked in; machine code for each
of them alone would take as long as for the entry.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class Library(JITCodeLibrary):
    """LLVM's text of one function and of those that it calls, optimised, not loaded."""

    codegen: Any = SimpleNamespace(set_env=lambda *_: None)  # it is where a loaded function is

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def object_code(self) -> bytes:
        return self._codegen._tm.emit_object(self._final_module)


class Pipeline(Compiler):
    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        library = library or Library(targetctx.codegen(), "opstep")
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)
