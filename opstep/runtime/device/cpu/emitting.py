"""How a kernel's LLVM becomes an object file.

numba makes machine code of each function that it compiles and loads it, so that Python can call it,
and optimises a function again in each that calls it. Here only the entry is called, which holds all
the others: they stay LLVM, the kernel is optimised with what it calls, and the entry, which does
nothing but call it, is made into machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba.core import codegen, compiler, registry, types

from opstep.runtime.device import compiling
from opstep.runtime.device.cpu import processor
from opstep.runtime.ir.types import DType

_WORD = ir.IntType(64)
_SEEN_AS = {"f64": types.float64, "f32": types.float32, "i64": types.int64, "i32": types.int32}
_SEEN_AS |= {"i16": types.int16, "i8": types.int8, "u8": types.uint8, "bool": types.uint8}
_SEEN_AS |= {"u16": types.uint16, "f16": types.uint16, "bf16": types.uint16}


class Library(codegen.JITCodeLibrary):
    """A function and what it calls, optimised LLVM."""

    def _finalize_specific(self) -> None:
        """Nothing is made into machine code."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Not one by one: the passes over the whole module do what these would."""
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Without the pass before that looks for counts of references: kernels hold none."""
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)


class Swaps(Library):
    """A kernel that `source.swaps` marks."""

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            _mark_parallel(function)
            _let_vectors_be_long(function)
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


def _let_vectors_be_long(function: ir.Function) -> None:
    """Has loops take the longest registers, as tiles do; LLVM prefers half of 512 bits."""
    bits = 8 * processor.this().registers[0]
    set.add(function.attributes, f'"prefer-vector-width"="{bits}"')  # llvmlite knows no such word


def _is_element(pointer: Any) -> bool:
    """Whether it points into an array, not to a variable of the function."""
    return isinstance(pointer, ir.GEPInstr) and not isinstance(pointer.pointer, ir.AllocaInstr)


class Entry:
    """What is called of a kernel that is optimised already: it unpacks the words of its arguments
    and calls the kernel with them and the first `rest` of lo, hi and lane.
    """

    symbol = "entry"

    def __init__(self, kernel: Any, signature: Sequence[str], dtype: DType, rest: int):
        target: Any = registry.cpu_target.target_context
        kinds = [_type(kind, dtype) for kind in signature]
        seen = (*kinds, *[types.int64] * rest)
        with compiling.remembering(registry.cpu_target.typing_context):
            kernel.compile(seen)
        result = kernel.overloads[seen]
        self._codegen = _codegen()
        module = self._codegen._create_empty_module(self.symbol)
        slot = ir.IntType(8).as_pointer()  # numba's: of the result, of an error
        parameters = [slot, slot, _WORD.as_pointer(), _WORD, _WORD, _WORD]
        function = ir.Function(module, ir.FunctionType(ir.IntType(32), parameters), self.symbol)
        builder = ir.IRBuilder(function.append_basic_block())
        _, _, words, *rest_of_arguments = function.args
        passed = [
            _argument(target, builder, builder.load(builder.gep(words, [_WORD(k)])), t)
            for k, t in enumerate(kinds)
        ]
        target.call_conv.call_function(
            builder,
            target.declare_function(module, result.fndesc),
            result.signature.return_type,
            result.signature.args,
            [*passed, *rest_of_arguments[:rest]],
        )
        builder.ret(ir.IntType(32)(0))
        self._module = llvm.parse_assembly(str(module))
        self._module.link_in(result.library._get_module_for_linking(), preserve=True)
        self._module.verify()

    def outside(self) -> list[str]:
        """Names of the functions that the code refers to and does not hold."""
        return [f.name for f in self._module.functions if f.is_declaration]

    def object_code(self) -> bytes:
        return self._codegen._tm.emit_object(self._module)

    def assembly(self) -> str:
        return self._codegen._tm.emit_assembly(self._module)

    def llvm(self) -> str:
        return str(self._module)


def _type(kind: str, dtype: DType) -> Any:
    """Of an argument, as the kernel sees it."""
    if kind == "i":
        return types.int64
    if kind == "f":
        return _SEEN_AS[dtype.name] if not dtype.is_half else types.float32
    return types.CPointer(_SEEN_AS[kind[1:]])


def _argument(target: Any, builder: ir.IRBuilder, word: Any, t: Any) -> Any:
    """What a word stands for: a pointer, an integer, or the bits of a float64."""
    if isinstance(t, types.CPointer):
        return builder.inttoptr(word, target.get_value_type(t))
    if t is types.int64:
        return word
    return target.cast(builder, builder.bitcast(word, ir.DoubleType()), types.float64, t)


class _Codegen(codegen.JITCPUCodegen):
    _library_class = Library

    def _add_module(self, module: Any) -> None:
        """Nothing is loaded."""

    def set_env(self, env_name: str, env: Any) -> None:
        """What is not loaded has no place for it: only functions that raise or call Python do."""


@cache
def _codegen() -> _Codegen:
    return _Codegen("kernels")


class Compiler(compiler.Compiler):
    """numba's with fewer passes, whose functions go to libraries of ours."""

    def __init__(self, typing: Any, target: Any, library: Library | None, *rest: Any):
        super().__init__(typing, target, library or Library(_codegen(), "kernel"), *rest)

    def define_pipelines(self) -> list[Any]:
        (manager,) = super().define_pipelines()
        manager.passes = compiling.needed(manager.passes)
        return [manager]


class CompilerOfSwaps(Compiler):
    """Of a kernel that `source.swaps` marks."""

    def __init__(self, typing: Any, target: Any, library: Library | None, *rest: Any):
        super().__init__(typing, target, library or Swaps(_codegen(), "kernel"), *rest)
