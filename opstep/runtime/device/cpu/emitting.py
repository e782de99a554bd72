"""How a kernel's LLVM becomes an object file.

numba makes machine code of each function that it compiles and loads it, so that Python can call it,
and optimises a function again in each that calls it. Here only the entry is called, which holds all
the others: they stay LLVM, the kernel is optimised with what it calls, and the entry, which does
nothing but call it, is made into machine code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba.core import codegen, compiler


class Library(codegen.JITCodeLibrary):
    """A function and what it calls, optimised LLVM."""

    def _finalize_specific(self) -> None:
        """Nothing is made into machine code."""


class Swaps(Library):
    """A kernel that `source.swaps` marks."""

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            _mark_parallel(function)
        super().add_ir_module(ir_module)


class _Node(MDValue):
    """Metadata that is equal to no other. A loop's begin with themselves."""

    def __init__(self, module: ir.Module, *operands: MDValue):
        super().__init__(module, operands, str(len(module.metadata)))
        if operands:
            self.operands = (self, *operands)

    def descr(self, buf: list[str]) -> None:
        buf.append("distinct ")
        super().descr(buf)


def _mark_parallel(function: ir.Function) -> None:
    """Tells LLVM that no iteration of a loop touches what another one writes. What one iteration
    does stays in order, as pointers may be equal.
    """
    module, seen = function.module, set[int]()
    group = _Node(module)
    parallel = module.add_metadata(["llvm.loop.parallel_accesses", group])
    for block in function.blocks:
        seen.add(id(block))
        for i in block.instructions:
            if isinstance(i, (ir.LoadInstr, ir.StoreInstr)) and _is_element(i.operands[-1]):
                i.set_metadata("llvm.access.group", group)
        end = block.terminator
        if isinstance(end, ir.Branch) and id(end.operands[0]) in seen:
            end.set_metadata("llvm.loop", _Node(module, parallel))


def _is_element(pointer: Any) -> bool:
    """Whether it points into an array, not to a variable of the function."""
    return isinstance(pointer, ir.GEPInstr) and not isinstance(pointer.pointer, ir.AllocaInstr)


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


# numba's passes over what kernels do not hold (closures, `with`, raised exceptions, arrays), and
# reports. After each one numba looks anew at where every variable is alive.
UNNEEDED = {
    "IRProcessing", "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises",
    "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll",
    "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites", "AnnotateTypes",
    "DumpParforDiagnostics",
}  # fmt: skip


class Compiler(compiler.Compiler):
    """numba's with fewer passes, whose functions go to libraries of ours."""

    def __init__(self, typing: Any, target: Any, library: Library | None, *rest: Any):
        super().__init__(typing, target, library or Library(_codegen(), "kernel"), *rest)

    def define_pipelines(self) -> list[Any]:
        (manager,) = super().define_pipelines()
        manager.passes = [p for p in manager.passes if p[0].__name__ not in UNNEEDED]
        return [manager]


class CompilerOfSwaps(Compiler):
    """Of a kernel that `source.swaps` marks."""

    def __init__(self, typing: Any, target: Any, library: Library | None, *rest: Any):
        super().__init__(typing, target, library or Swaps(_codegen(), "kernel"), *rest)
